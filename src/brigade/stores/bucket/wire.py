"""The stored shapes. Arrays on the wire, so that a field costs a byte; new fields go at the end with a default."""

from __future__ import annotations

from typing import Any

import msgspec

from brigade.codec import Format
from brigade.errors import CorruptObject
from brigade.model import FailureInfo
from brigade.stores import Joined, sizes_of

__all__ = [
    "BULK",
    "LANE",
    "LEDGER",
    "MARKER",
    "NOTE",
    "PARKED",
    "PLAIN_SEGMENT",
    "SEGMENT",
    "STATE",
    "VOID_SIZE",
    "Bulk",
    "BulkPart",
    "End",
    "Entry",
    "GrantRow",
    "Lane",
    "LaneEntry",
    "Ledger",
    "Marker",
    "Move",
    "Note",
    "Packed",
    "Parked",
    "Segment",
    "Spec",
    "StateDoc",
]


class Entry(msgspec.Struct, array_like=True, gc=False):
    """One message in a segment. `payload` is None where the payload has a blob of its own, with that `checksum`."""

    payload: bytes | None
    size: int
    enqueued: int
    content_type: str
    correlation: str | None = None
    attributes: dict[str, Any] | None = None
    group: str | None = None
    due: int = 0
    ttl: int | None = None
    max_attempts: int | None = None
    own_id: str | None = None
    failure: FailureInfo | None = None
    priority: int = 5
    checksum: int | None = None


class Packed(msgspec.Struct, array_like=True, gc=False):
    """Messages that differ in nothing but their payloads: those one after the other, and the size of each.

    Bulk jobs write them without looking at each message, and a scan reads them so.
    """

    payloads: bytes
    sizes: bytes
    enqueued: int
    content_type: str
    priority: int = 5

    def entries(self) -> list[Entry | None]:
        enqueued, kind, priority = self.enqueued, self.content_type, self.priority
        return [
            Entry(payload, len(payload), enqueued, kind, priority=priority)
            for payload in Joined(self.payloads, self.sizes).values()
        ]


class Segment(msgspec.Struct, array_like=True):
    """Immutable messages. A None entry is a hole: that message had been enqueued before. `void` blocks a name.

    `source` is the key of the object that a derived segment was made from: while that stands, the step may be
    repeated, and the name must stay taken. Where the messages are `packed`, `entries` is empty.
    """

    nonce: str
    entries: list[Entry | None]
    void: bool = False
    source: str | None = None
    packed: Packed | None = None


class Spec(msgspec.Struct, array_like=True, gc=False):
    """What a claimer must know of a message of a special segment; `hole` is a message that was never there."""

    due: int = 0
    lapse: int | None = None
    max_attempts: int | None = None
    hole: bool = False


class GrantRow(msgspec.Struct, array_like=True, gc=False):
    """One claim's leases in this ledger. Rows that share a version are parts of one grant with other expiries."""

    version: int
    token: str
    owner: str
    claimed: int
    expires: int


class End(msgspec.Struct, array_like=True, gc=False):
    """How the leases of `runs` (start, length, …) under `version` ended."""

    version: int
    how: str
    at: int
    runs: list[int]
    error: str | None = None


class Move(msgspec.Struct, array_like=True):
    """Messages that failed together and go to `target` (a dead-letter queue) or, if None, to the parked ones."""

    at: int
    target: str | None
    members: list[int]
    done: bool = False


class Ledger(msgspec.Struct, array_like=True):
    """Every lease and outcome of one segment's messages; the columns hold one item a message.

    Of leases that are over, `grants` and `ends` have the recent ones; `past` has the others, packed
    (`brigade.stores.bucket.past`). `born` names this account from its first write on. While an account lives and is
    not final, its segment is there: a process that has read the segment under it need not read it again.
    """

    nonce: str
    version: int
    final: bool
    states: bytes
    attempts: bytes
    leases: bytes
    grants: list[GrantRow]
    ends: list[End]
    due: dict[int, int]
    specs: list[Spec] | None = None
    reasons: dict[int, tuple[str, str | None]] = {}
    moves: list[Move] = []
    results: dict[int, bytes] = {}
    born: str = ""
    past: list[bytes] = []


class LaneEntry(msgspec.Struct, array_like=True):
    """A segment in a lane; its ledger is made when one of its messages is first claimed."""

    segment: str
    priority: int
    specs: list[Spec] | None = None
    ledger: Ledger | None = None


class Lane(msgspec.Struct, array_like=True):
    """The ordered segments of a strict queue or of one group. At most one message of a lane is leased."""

    nonce: str
    group: str | None
    lifo: bool
    entries: list[LaneEntry]


class Marker(msgspec.Struct, array_like=True):
    """Where the message with the user's own id lies (or lay: `done`)."""

    nonce: str
    own_id: str
    ref: str
    at: int
    correlation: str
    done: bool = False


class Parked(msgspec.Struct, array_like=True):
    """Failures kept for somebody to look at. `moving` names the target of an entry that is being redriven."""

    nonce: str
    refs: list[str]
    entries: list[Entry | None]
    moving: dict[int, str] = {}


class BulkPart(msgspec.Struct, array_like=True):
    """A staged segment, with what a lane has to know of it. `own` says that some message has an id of its own."""

    name: str
    own: bool = False
    group: str | None = None
    priority: int = 5
    specs: list[Spec] | None = None


class Bulk(msgspec.Struct, array_like=True):
    """What a bulk job publishes. While `parts` are there, whoever finds it makes them seen; then it is done.

    `epoch` counts the batches of a stream, which are published once each and in order; `keep` says that the
    record of the last one stays.
    """

    nonce: str
    epoch: int
    count: int
    parts: list[BulkPart]
    keep: bool = False


class Note(msgspec.Struct, array_like=True):
    """What somebody wants to remember beside a queue."""

    nonce: str
    value: bytes


class StateDoc(msgspec.Struct, array_like=True):
    """Workflow state of a message: any value, as JSON."""

    nonce: str
    value: bytes
    correlation: str | None = None


VOID_SIZE = 48
"""No void is larger, and no segment with a message in it is smaller: a listing tells them apart."""


class _SegmentFormat(Format[Segment]):
    """Segments. Only packed ones have version 2, so that others can be read by what knows version 1."""

    def __init__(self, *, unpack: bool) -> None:
        super().__init__("S", Segment, version=2, version_of=lambda segment: 1 if segment.packed is None else 2)
        self._unpack = unpack

    def decode(self, data: bytes, *, key: str) -> Segment:
        segment = super().decode(data, key=key)
        packed = segment.packed
        if packed is not None:
            if len(packed.sizes) % 4 or sum(sizes_of(packed.sizes)) != len(packed.payloads):
                raise CorruptObject(key, "its payloads are not as long as it says")
            if self._unpack:
                segment.entries, segment.packed = packed.entries(), None
        return segment


SEGMENT: Format[Segment] = _SegmentFormat(unpack=True)
PLAIN_SEGMENT: Format[Segment] = _SegmentFormat(unpack=False)
"""As it lies there, for those who can use packed messages."""


def void(nonce: str, source: str | None = None) -> bytes:
    """A segment that only keeps its name taken, in place of one that was made from `source`."""
    return SEGMENT.encode(Segment(nonce, [], void=True, source=source))


def _has_past(lane: Lane) -> bool:
    return any(entry.ledger is not None and entry.ledger.past for entry in lane.entries)


LEDGER: Format[Ledger] = Format("L", Ledger, version=2, version_of=lambda ledger: 2 if ledger.past else 1)
LANE: Format[Lane] = Format("N", Lane, version=2, version_of=lambda lane: 2 if _has_past(lane) else 1)
MARKER: Format[Marker] = Format("M", Marker)
PARKED: Format[Parked] = Format("P", Parked)
NOTE: Format[Note] = Format("O", Note)
BULK: Format[Bulk] = Format("B", Bulk)
STATE: Format[StateDoc] = Format("W", StateDoc)
