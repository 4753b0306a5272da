"""All rules together, and what they found."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from brigade.testing.chaos.journal import Merged
from brigade.testing.chaos.judge import accounts, leases, order
from brigade.testing.chaos.judge.ended import Ended
from brigade.testing.chaos.judge.recorded import Recorded, recorded
from brigade.testing.sim import records as r
from brigade.testing.sim.checker import check
from brigade.testing.sim.lives import Violation

__all__ = ["Verdict", "judge"]


class Verdict(msgspec.Struct, frozen=True):
    """Every broken promise, and how much was looked at. `recorded` is what the durable record alone shows, `told` has
    what clients were told as well."""

    violations: list[Violation]
    messages: int
    acked: int
    records: int
    recorded: Recorded = Recorded()
    told: Recorded = Recorded()


def judge(
    merged: Merged,
    ended: Sequence[Ended],
    limits: r.Limits,
    final: r.Final,
    *,
    strict: Sequence[str] = (),
) -> Verdict:
    """Judge a run after it was drained. `strict` names the queues that are one line each."""
    durable = [*accounts.in_history(merged, ended), *leases.in_history(ended, limits.skew_ms)]
    found = check(merged.records, limits, final)
    found += [*durable, *accounts.check(merged, ended), *leases.check(merged), *order.check(merged, strict)]
    returned = {record.uid for record in merged.records if isinstance(record, r.Returned)}
    acked = sum(isinstance(one, r.Told) and (one.kind, one.answer) == ("ack", "ok") for one in merged.records)
    return Verdict(found, len(returned), acked, len(merged.records), recorded(ended, durable), recorded(ended, found))
