"""What happened on a path, as the records that the checker judges: shared by all paths that begin alike."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

from brigade.testing.sim.records import Record

__all__ = ["NOTHING", "History", "Lines", "lines"]


class Lines(NamedTuple):
    """Records that always come together, and a digest of them."""

    records: tuple[Record, ...]
    digest: bytes


NOTHING = Lines((), b"")


def lines(records: Iterable[Record]) -> Lines:
    found = tuple(records)
    return Lines(found, blake2b(repr(found).encode(), digest_size=16).digest()) if found else NOTHING


class History:
    """All records of a path, in order."""

    __slots__ = ("_before", "_last", "digest")

    def __init__(self, before: History | None, last: Lines) -> None:
        self._before = before
        self._last = last
        self.digest = blake2b((before.digest if before else b"") + last.digest, digest_size=16).digest()

    def then(self, told: Lines) -> History:
        return History(self, told) if told.records else self

    def records(self) -> list[Record]:
        batches: list[tuple[Record, ...]] = []
        here: History | None = self
        while here is not None:
            batches.append(here._last.records)
            here = here._before
        return [record for batch in reversed(batches) for record in batch]
