"""What the judge makes of the durable record, in the terms of somebody else who looks at it: how much, what broke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from brigade.testing.chaos.judge.ended import Ended
from brigade.testing.sim.lives import Violation

__all__ = ["GUARANTEES", "Recorded", "guarantee_of", "recorded"]

GUARANTEES = ("G1", "G2", "G3", "G4", "G5", "G6")
_TAGS = {"versions": "G2", "attempts": "G4"}


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that ended, their leases and acks, each once; `broken` counts violations by guarantee."""

    messages: int = 0
    leases: int = 0
    acks: int = 0
    broken: dict[str, int] = {}


def guarantee_of(rule: str) -> str | None:
    """The guarantee that a rule is about; None for what no history can show, such as children left behind."""
    tag = _TAGS.get(rule, rule)
    return tag if tag in GUARANTEES else None


def recorded(ended: Sequence[Ended], violations: Iterable[Violation]) -> Recorded:
    """History may tell a message twice."""
    leases = {(one.queue, one.ref, held) for one in ended for held in one.held}
    broken = Counter(tag for one in violations if (tag := guarantee_of(one.rule)) is not None)
    return Recorded(
        messages=len({(one.queue, one.ref) for one in ended}),
        leases=len(leases),
        acks=sum(held.how == "acked" for _, _, held in leases),
        broken=dict(sorted(broken.items())),
    )
