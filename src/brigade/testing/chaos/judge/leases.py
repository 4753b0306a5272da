"""One lease at a time: versions grow with time, and by the store's clock no lease begins before the last one ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from brigade.testing.chaos.journal import Merged
from brigade.testing.chaos.judge.ended import Ended
from brigade.testing.sim import records as r
from brigade.testing.sim.lives import Violation

__all__ = ["check", "in_history"]


def check(merged: Merged) -> list[Violation]:
    return list(_versions_grow(merged))


def in_history(ended: Sequence[Ended], skew_ms: int) -> list[Violation]:
    return list(_no_overlap(ended, skew_ms))


def _versions_grow(merged: Merged) -> Iterator[Violation]:
    """A claim that began after another one had been answered has the higher version."""
    last: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for record, at, begun in zip(merged.records, merged.times, merged.begun, strict=True):
        if not isinstance(record, r.Delivered):
            continue
        before = last.setdefault((record.queue, record.ref), [])
        highest = max((version for answered, version in before if answered < begun), default=0)
        if record.version <= highest:
            text = f"{record.ref} of {record.queue} was claimed as version {record.version} after {highest}"
            yield Violation("versions", record.at, text)
        before.append((at, record.version))


def _no_overlap(ended: Sequence[Ended], skew_ms: int) -> Iterator[Violation]:
    """Both moments may come from clocks that are off, one each way."""
    for one in ended:
        leases = sorted(one.held)
        for first, second in pairwise(leases):
            what = f"{one.ref} of {one.queue} (message {one.uid})"
            if second.version == first.version and second != first:
                yield Violation("versions", second.claimed, f"{what}: two leases of version {first.version}")
            elif second.claimed + 2 * skew_ms < first.ended:
                yield Violation(
                    "G2",
                    second.claimed,
                    f"{what} was leased at {second.claimed} as version {second.version}, "
                    f"but version {first.version} {first.how} only at {first.ended}",
                )
