"""Two who looked at the same history on their own must have seen the same."""

from __future__ import annotations

from collections.abc import Iterator

from brigade.testing.chaos.auditing import Audited
from brigade.testing.chaos.judge.recorded import Recorded

__all__ = ["disagreements"]


def disagreements(judged: Recorded, told: Recorded, audit: Audited) -> list[str]:
    """Where the judge and the audit differ. `judged` is what the judge saw in the durable record alone, `told` has
    what it saw in the answers as well: the audit may find some of that, but it must not find more."""
    return list(_differing(judged, told, audit))


def _differing(judged: Recorded, told: Recorded, audit: Audited) -> Iterator[str]:
    for what, ours, theirs in (
        ("messages that ended", judged.messages, audit.messages),
        ("leases", judged.leases, audit.leases),
        ("acks", judged.acks, audit.acks),
    ):
        if ours != theirs:
            yield f"the judge counts {ours} {what}, the audit {theirs}"
    missed = judged.broken.keys() - audit.broken.keys()
    more = audit.broken.keys() - judged.broken.keys() - told.broken.keys()
    if missed or more:
        yield f"the judge says {_said(told)}, the audit {_said(audit)}"
        yield from (f"the audit: {row}" for row in audit.rows)


def _said(one: Recorded | Audited) -> str:
    if not one.broken:
        return "that every promise was kept"
    return "that some were broken: " + ", ".join(f"{tag} {count} times" for tag, count in one.broken.items())
