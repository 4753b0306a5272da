"""History as every store tells it: one record for each message that has ended, and the parts that it lies in.

History is at least once: a record may be there twice, under the same `ref`. Readers keep one.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import msgspec

from brigade.model import FailureInfo

__all__ = ["NULL", "Attempt", "HistoryPart", "HistoryStore", "Record"]

NULL = msgspec.Raw(b"null")


class Attempt(msgspec.Struct, gc=False):
    """One lease of a message: who held it, when, and how it ended."""

    version: int
    owner: str
    claimed_at: int
    ended_at: int
    how: str
    error: str | None = None


class Record(msgspec.Struct, gc=False):
    """One finished message. Times are milliseconds since the epoch by the store's clock.

    `lane` is the lane that it lay in, `absent` the places of its segment that have no record: what was purged.
    """

    id: str
    ref: str
    queue: str
    outcome: str
    priority: int
    enqueued_at: int
    due_at: int
    finished_at: int
    attempts: list[Attempt]
    counted: int
    max_attempts: int
    content_type: str
    size: int
    correlation_id: str
    group: str | None = None
    attributes: dict[str, Any] | None = None
    reason: str | None = None
    error: str | None = None
    result: msgspec.Raw = NULL
    dead_letter_queue: str | None = None
    origin: FailureInfo | None = None
    lane: str | None = None
    absent: list[int] | None = None
    sealed: str | msgspec.UnsetType = msgspec.UNSET
    """Where encryption is on: attributes, errors and result, which are left out in the clear."""


class HistoryPart(msgspec.Struct, frozen=True):
    """A part of a queue's history that can be read by itself, in any process. `count` is about how many it holds."""

    queue: str
    key: str
    written_at: int
    count: int


@runtime_checkable
class HistoryStore(Protocol):
    """A store whose history can be read as a whole, in parts."""

    async def history_parts(self, queue: str, since: int) -> list[HistoryPart]:
        """What was written since then, in milliseconds by the store's clock. A part may hold earlier records, too."""
        ...

    async def read_history(self, part: HistoryPart) -> list[Record]:
        """The records of a part; none where it is gone."""
        ...
