"""The history of a run as plain records: what clients were told, and what the store saw happen.

Records are in the order in which they happened. A simulation has both kinds; a chaos test on a real store has
only what clients were told, and the checker then says what can be said from that.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "Appended",
    "Became",
    "Born",
    "Closed",
    "Delivered",
    "Ended",
    "Extended",
    "Final",
    "Gone",
    "Granted",
    "Intent",
    "Limits",
    "Parked",
    "Raised",
    "Record",
    "Recorded",
    "Returned",
    "Shuffled",
    "Told",
    "Unparked",
    "Unsure",
]


class Base(msgspec.Struct, frozen=True, gc=False, tag=True, kw_only=True):
    """Every record says when, in milliseconds by the store's clock, and in which queue."""

    at: int
    queue: str


class Intent(Base, frozen=True, gc=False):
    """A producer is about to enqueue. The message and all its copies carry `uid` as their correlation id."""

    uid: str
    call: int
    payload: bytes
    own_id: str | None = None
    group: str | None = None
    priority: int = 5


class Returned(Base, frozen=True, gc=False):
    """The enqueue returned: from here on the message must not be lost."""

    uid: str
    ref: str
    duplicate: bool = False


class Unsure(Base, frozen=True, gc=False):
    """The enqueue raised StoreUnavailable: the message may be there or not."""

    uid: str


class Delivered(Base, frozen=True, gc=False):
    """A worker holds the message. `since` is the number of records there were when its claim began."""

    ref: str
    uid: str
    token: str
    version: int
    attempt: int
    max_attempts: int
    payload: bytes
    own_id: str | None
    group: str | None
    priority: int
    since: int


class Told(Base, frozen=True, gc=False):
    """The answer to a settlement: `ok`, `stale`, or `unknown` where the call raised or its process died."""

    ref: str
    token: str
    kind: str
    answer: str


class Raised(Base, frozen=True, gc=False):
    """A protocol function raised what it should not have."""

    where: str
    error: str


class Born(Base, frozen=True, gc=False):
    """A message became visible. `origin` is the queue it failed in, for a dead letter."""

    ref: str
    uid: str
    own_id: str | None
    max_attempts: int | None
    derived: bool
    lane: bool
    origin: str | None


class Gone(Base, frozen=True, gc=False):
    """The message's segment was deleted or voided."""

    ref: str


class Appended(Base, frozen=True, gc=False):
    """The message's segment joined its lane, at the end."""

    ref: str
    lane: str


class Granted(Base, frozen=True, gc=False):
    """A claim was applied. `present` says whether the segment was there, so that the message can be delivered."""

    ref: str
    token: str
    version: int
    attempt: int
    claimed: int
    expires: int
    due: int
    present: bool
    blocked_by: str | None = None


class Extended(Base, frozen=True, gc=False):
    """A lease got another expiry."""

    ref: str
    token: str
    expires: int


class Ended(Base, frozen=True, gc=False):
    """A lease ended: acked, nacked, released, expired, or `unlogged` where the account doesn't say how."""

    ref: str
    token: str
    how: str


class Became(Base, frozen=True, gc=False):
    """A message's state changed."""

    ref: str
    was: str
    now: str


class Closed(Base, frozen=True, gc=False):
    """A segment's account was taken away; `present` says whether the segment was still there."""

    segment: str
    present: bool


class Shuffled(Base, frozen=True, gc=False):
    """The order of a lane changed other than by appending and removing."""

    lane: str


class Parked(Base, frozen=True, gc=False):
    """A failed message was parked."""

    ref: str
    uid: str


class Unparked(Base, frozen=True, gc=False):
    """A parked message left: redriven, or purged."""

    ref: str
    uid: str
    redriven: bool


class Recorded(Base, frozen=True, gc=False):
    """A message was written to history."""

    ref: str
    outcome: str


Record = (
    Intent
    | Returned
    | Unsure
    | Delivered
    | Told
    | Raised
    | Born
    | Gone
    | Appended
    | Granted
    | Extended
    | Ended
    | Became
    | Closed
    | Shuffled
    | Parked
    | Unparked
    | Recorded
)


class Limits(msgspec.Struct, frozen=True):
    """What the checker must know of the run: policy limits, the skew of clocks, and whether anybody purged."""

    max_attempts: dict[str, int]
    skew_ms: int = 0
    purged: bool = False


class Final(msgspec.Struct, frozen=True):
    """The state after everything was drained: messages that never ended, and keys left in the bucket."""

    stuck: list[str] = []
    keys: list[str] = []
