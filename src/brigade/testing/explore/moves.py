"""What may happen next, and what becomes of an operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from brigade.blobs import UNKNOWN, Create, DeleteIf, Get, List, Op, Swap
from brigade.errors import StoreUnavailable

__all__ = ["Move", "blind", "fates", "is_applied"]


class Move(NamedTuple):
    """One event: an operation and its fate, the end of a pause, a crash, a late arrival, or a jump of the clock.

    `until` is the number of jumps after which the actor hears of it; 0 is at once.
    """

    kind: str
    actor: int = -1
    until: int = 0


def fates(op: Op, *, faults: int, lates: int) -> Iterator[str]:
    """What may become of an operation. Where a read fails nothing has happened."""
    yield "ok"
    if faults:
        if not isinstance(op, Get | List):
            yield "applied, unknown"
        yield "not applied, unknown"
        if lates and isinstance(op, Create | Swap | DeleteIf):
            yield "late"


def is_applied(kind: str) -> bool:
    return kind in ("ok", "applied, unknown")


def blind(op: Op) -> object:
    """What the actor gets that isn't told what has become of its operation."""
    conditional = isinstance(op, Create | Swap | DeleteIf)
    return UNKNOWN if conditional else StoreUnavailable("the store did not answer")
