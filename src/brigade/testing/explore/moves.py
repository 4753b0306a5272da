"""What may happen next, and what becomes of an operation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from brigade.blobs import UNKNOWN, Create, DeleteIf, Get, List, Op, Swap
from brigade.errors import StoreUnavailable
from brigade.testing.explore.shelf import Shelf

__all__ = ["Move", "act", "fates"]


class Move(NamedTuple):
    """One event: an actor's operation with its fate, a crash, a late arrival, or a jump of the clock."""

    kind: str
    actor: int = -1


def fates(op: Op, *, faults: int, lates: int) -> Iterator[str]:
    """What may become of an operation. Where a read fails nothing has happened."""
    yield "ok"
    if faults:
        if not isinstance(op, Get | List):
            yield "applied, unknown"
        yield "not applied, unknown"
        if lates and isinstance(op, Create | Swap | DeleteIf):
            yield "late"


def act(shelf: Shelf, op: Op, kind: str, now: int) -> tuple[object, Shelf]:
    """The answer that the actor gets, and the store afterwards."""
    answer, after = shelf.apply(op, now)
    if kind == "ok":
        return answer, after
    conditional = isinstance(op, Create | Swap | DeleteIf)
    told = UNKNOWN if conditional else StoreUnavailable("the store did not answer")
    return told, after if kind.startswith("applied") else shelf
