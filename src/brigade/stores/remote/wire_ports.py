"""What client and server say of bulk jobs, scans, notes, history, chosen messages and operators.

What a server hands out to be given back to it (parts, pieces, keys of history, cursors) carries the server's seal: see
`brigade.server.sealing`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from brigade.model import Grant
from brigade.stores import ScannedTable
from brigade.stores.history import HistoryPart
from brigade.stores.operating import Action, Shown
from brigade.stores.remote.wire import QueueOnly, ShortText
from brigade.survey import Day, GroupInfo, Held

__all__ = [
    "ROWS",
    "Browse",
    "ClaimThese",
    "Cut",
    "Days",
    "Few",
    "GrantList",
    "GroupList",
    "HeldList",
    "Leasing",
    "Name",
    "NoteName",
    "NoteValue",
    "Outcomes",
    "Override",
    "Parts",
    "PartsOfHistory",
    "Pieces",
    "Publish",
    "ReadHistory",
    "Reprioritize",
    "Row",
    "Scan",
    "Scanned",
    "SinceThen",
    "Stage",
    "Tailing",
]

ROWS = 1000
"""Rows and records in one frame of an answer."""

Name = Annotated[str, Meta(min_length=1, max_length=300, pattern="^[!-~]+$")]
"""A job or a note: printable ASCII without spaces."""

Since = Annotated[int, Meta(ge=0, le=99_999_999_999_999)]
Sealed = Annotated[str, Meta(max_length=4096)]
Most = Annotated[int, Meta(ge=1, le=1_000_000)]


class Stage(QueueOnly):
    """What stands in the URL. The body is frames: lists of `Row` in MessagePack, and in the end an empty frame."""

    job: Name


class Row(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A message on its way into a bulk job: what `Outgoing` is, with its payload."""

    payload: bytes
    content_type: str
    priority: int = 5
    delay: float = 0.0
    id: str | None = None
    group: str | None = None
    ttl: float | None = None
    max_attempts: int | None = None
    attributes: dict[str, Any] | None = None
    correlation_id: str | None = None


class Parts(msgspec.Struct):
    """What was staged, to be published or dropped by whoever has it."""

    parts: list[bytes]


class Publish(Stage):
    """Show all parts of a job, in order. With `epoch` the job is a stream, and this one of its batches.

    The body is frames: lists of parts in MessagePack, and in the end an empty frame. So is that of dropping parts.
    """

    epoch: Annotated[int, Meta(ge=0, le=2**62)] | None = None


class Pieces(QueueOnly):
    """Cut a table of a queue into about `most` pieces; of history, what was written at `since` or later."""

    table: ScannedTable
    most: Annotated[int, Meta(ge=0, le=100_000)] = 0
    since: Since = 0


class Cut(msgspec.Struct):
    pieces: list[bytes]


class Scan(QueueOnly):
    """Read a piece. The answer is frames of `Scanned` in MessagePack."""

    table: ScannedTable
    piece: bytes


class Scanned(msgspec.Struct, array_like=True):
    """Some rows of a block: columns, and those with one value for all rows."""

    count: int
    columns: dict[str, list[Any]]
    same: dict[str, Any]


class NoteName(QueueOnly):
    name: Name


class NoteValue(msgspec.Struct):
    """A note. None: there is none, or, where one was written, it is as it was written."""

    value: bytes | None


class SinceThen(QueueOnly):
    since: Since = 0


class PartsOfHistory(msgspec.Struct):
    parts: list[HistoryPart]


class ReadHistory(QueueOnly):
    """Read a part of history. The answer is frames of lists of records in JSON."""

    key: Sealed


class ClaimThese(QueueOnly):
    refs: list[ShortText]
    owner: str
    visibility: float


class Leasing(QueueOnly):
    """Lease up to `limit` messages, of which only the grants are given."""

    limit: Annotated[int, Meta(ge=1, le=1_000_000)]
    owner: str
    visibility: float


class GrantList(msgspec.Struct):
    grants: list[Grant]


class Reprioritize(QueueOnly):
    refs: list[ShortText]
    priority: Annotated[int, Meta(ge=0, le=9)]


class Browse(QueueOnly):
    """A page of messages that are sought, in the words of `brigade.stores.operating.Sought`."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    most: Most = 5000
    after: Sealed | None = None
    held: bool = False
    state: Shown = "all"
    now_ms: Since | None = None
    newest_ms: Since | None = None
    attempts: Annotated[int, Meta(ge=0, le=100_000)] = 0
    text: ShortText = ""


class Few(QueueOnly):
    limit: Most = 1000


class HeldList(msgspec.Struct):
    leases: list[Held]


class GroupList(msgspec.Struct):
    groups: list[GroupInfo]


class Override(QueueOnly):
    ids: Annotated[list[ShortText], Meta(max_length=1000)]
    action: Action


class Tailing(QueueOnly):
    after: Sealed | None = None
    since_ms: Since = 0
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 2000


class Outcomes(QueueOnly):
    """How messages ended on these days: YYYY-MM-DD, with commas between."""

    days: Annotated[str, Meta(max_length=4400, pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}(,[0-9]{4}-[0-9]{2}-[0-9]{2})*$")]
    sample: Annotated[int, Meta(ge=0, le=10_000)] = 1000


class Days(msgspec.Struct):
    days: list[Day]
