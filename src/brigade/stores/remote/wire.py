"""What client and server say to each other: JSON, one type a request and an answer. Both sides import this."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from brigade.machine import State
from brigade.model import FailedMessage, FailureInfo, Grant, Lease, MessageInfo, Receipt
from brigade.stores import Failed

__all__ = [
    "CORRELATION",
    "EVENTS",
    "FRAMES",
    "FRAME_SIZE",
    "KEY",
    "LONGEST",
    "NDJSON",
    "RETRY_OF",
    "SERVER",
    "Abandon",
    "Abandoned",
    "Answered",
    "Count",
    "Credit",
    "Credited",
    "Delivered",
    "Dequeue",
    "Dequeued",
    "Enqueue",
    "Enqueued",
    "Fault",
    "Found",
    "Info",
    "Line",
    "Listing",
    "Load",
    "Loaded",
    "Names",
    "NewBody",
    "Nothing",
    "One",
    "OpenQueue",
    "Opening",
    "Parked",
    "Policy",
    "Purge",
    "QueueOnly",
    "Redrive",
    "Ref",
    "SaveState",
    "SavedState",
    "Settle",
    "SettleBatch",
    "SettleBody",
    "Settled",
    "ShortText",
    "StateValue",
    "Status",
    "Subscribe",
    "Swept",
    "Wait",
    "Watch",
]

CORRELATION = "X-Correlation-Id"
KEY = "Idempotency-Key"
"""Names a request. Whoever repeats it gets the answer of the first try, if the server still knows it."""

RETRY_OF = "Brigade-Retry-Of"
"""On a repeated request: the server that may have carried the first try out."""

SERVER = "Brigade-Server"
"""On every answer: the server process that gave it."""

FRAMES = "application/vnd.brigade.frames"
"""An enqueue with streamed payloads: an `Enqueue` as JSON, then the chunks of each streamed payload in order.

Each piece is preceded by its length, four bytes, big-endian; length 0 ends a payload.
"""

FRAME_SIZE = 256 * 1024

NDJSON = "application/x-ndjson"
"""A stream of JSON values, one a line."""

EVENTS = "text/event-stream"

Version = Annotated[int, Meta(ge=0, le=2**53)]
Attempt = Annotated[int, Meta(ge=0, le=100_000)]
Moment = Annotated[int, Meta(ge=0, le=99_999_999_999_999)]
LONGEST = 1024
ShortText = Annotated[str, Meta(max_length=LONGEST)]


class _Request(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What comes in: a field that isn't known is an error, not a silent nothing."""


class Fault(msgspec.Struct, kw_only=True, omit_defaults=True):
    """An error: `code` is for programs and never changes, `message` is for people."""

    code: str
    message: str
    field: str | None = None
    kind: str | None = None
    correlation_id: str | None = None
    retry_after: float | None = None
    key: str | None = None
    reason: str | None = None


class NewBody(_Request):
    """A message to be: `payload` is a JSON value, `payload_base64` bytes; `streamed` ones follow in frames."""

    payload: Any = UNSET
    payload_base64: bytes | None = None
    streamed: bool = False
    priority: int = 5
    delay: float = 0.0
    id: str | None = None
    group: str | None = None
    ttl: float | None = None
    max_attempts: int | None = None
    attributes: dict[str, Any] | None = None
    correlation_id: str | None = None
    content_type: str | None = None


class Enqueue(NewBody, kw_only=True):
    """One message, or many in `messages`. `create` makes the queue if need be."""

    queue: str
    messages: list[NewBody] | None = None
    create: bool = True


class Enqueued(msgspec.Struct):
    receipts: list[Receipt]


class Dequeue(_Request):
    """Up to `limit` messages, waiting up to `wait` seconds. `raw` is how our own client wants them.

    The message in `ack`, which was dequeued before, is acked first. Where its lease is lost nothing is claimed.
    """

    queue: str
    limit: int = 1
    wait: float = 0.0
    owner: str | None = None
    visibility: float | None = None
    raw: bool = False
    ack: SettleBody | None = None


class Delivered(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A claimed message. Without `payload` and `payload_base64` its payload is stored apart."""

    id: str
    queue: str
    ref: str
    content_type: str
    size: int
    priority: int
    attempt: int
    max_attempts: int
    correlation_id: str
    enqueued_at_ms: int
    claimed_at_ms: int
    lease: Lease
    attributes: dict[str, Any] = {}
    group: str | None = None
    checksum: int | None = None
    failure: FailureInfo | None = None
    payload: Any = UNSET
    payload_base64: bytes | None = None
    grant: Grant | None = None
    state: Any = UNSET
    state_etag: str | UnsetType | None = UNSET


class Dequeued(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`acked` is what became of the message that was to be acked; `error` why nothing could be claimed after that."""

    messages: list[Delivered]
    paused: bool = False
    failed: list[Failed] = []
    acked: Settled | None = None
    error: Fault | None = None


class Subscribe(_Request):
    """Messages as they come, up to `prefetch` of them unsettled at a time, and up to `limit` in all."""

    queue: str
    prefetch: int = 10
    limit: int | None = None
    owner: str | None = None
    visibility: float | None = None


class Line(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of a stream: `subscribed`, `message`, `heartbeat`, `error`, or `end` with its reason."""

    type: Literal["subscribed", "message", "heartbeat", "error", "end"]
    subscription: str | None = None
    message: Delivered | None = None
    error: Fault | None = None
    reason: str | None = None


class Credit(_Request):
    """Set how many messages of a stream may be unsettled at a time."""

    queue: str
    subscription: ShortText
    prefetch: int


class Credited(msgspec.Struct):
    prefetch: int
    unsettled: int


class Abandon(_Request):
    """The answer to a dequeue with this key will not be read: give its messages back."""

    key: ShortText


class Abandoned(msgspec.Struct):
    abandoned: bool


class Nothing(msgspec.Struct):
    """It is done; there is nothing to tell."""


class Status(msgspec.Struct, kw_only=True, omit_defaults=True):
    status: str
    code: str | None = None


class Load(_Request):
    grants: list[Grant]


class Loaded(msgspec.Struct):
    messages: list[Delivered]


class Wait(_Request):
    queue: str
    seconds: float = 0.0


class _Outcome(_Request):
    """What becomes of a message, and what is known of it from when it was dequeued."""

    op: Literal["ack", "nack", "extend", "release"] | None = None
    queue: str | None = None
    ref: ShortText | None = None
    version: Version = 0
    owner: ShortText = ""
    attempt: Attempt = 1
    max_attempts: Attempt = 0
    correlation_id: ShortText | None = None
    claimed_at_ms: Moment = 0
    result: Any = None
    error: str | None = None
    delay: float | None = None
    intent: Literal["failure", "defer"] = "failure"
    reject: bool = False
    seconds: float | None = None


class SettleBody(_Outcome, kw_only=True):
    """One settlement: the message as it was dequeued, and what becomes of it."""

    id: ShortText
    token: ShortText


class Settle(_Outcome, kw_only=True):
    """One message, with its `id` and `token`, or many in `settlements`, which all get what is said here."""

    id: ShortText | None = None
    token: ShortText | None = None
    settlements: list[SettleBody] | None = None


class SettleBatch(_Request):
    queue: str
    settlements: list[SettleBody]


class Settled(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How a message stands now; `error` says that this settlement was refused."""

    state: State | None = None
    lease: Lease | None = None
    attempts: int = 0
    max_attempts: int = 0
    due_at_ms: int = 0
    correlation_id: str | None = None
    error: Fault | None = None


class Answered(msgspec.Struct):
    results: list[Settled]


class QueueOnly(_Request):
    queue: str


class Listing(QueueOnly):
    limit: int = 10


class One(QueueOnly):
    id: ShortText


class Ref(QueueOnly):
    ref: ShortText


class Watch(QueueOnly):
    """Which events of a queue are wanted, by name, with commas between; and the last one that was seen."""

    events: ShortText | None = None
    last_event_id: ShortText | None = None


class Opening(_Request):
    """Open a queue as it is, or create it with the policy that queues have by default."""

    queue: str
    create: bool = True


class OpenQueue(_Request):
    """Create a queue with a policy, or replace the one it has."""

    queue: str
    policy: dict[str, Any] | None = None
    replace: bool = False
    create: bool = True


class Policy(msgspec.Struct):
    policy: dict[str, Any]


class Names(msgspec.Struct):
    queues: list[str]


class Found(msgspec.Struct):
    messages: list[MessageInfo]


class Parked(msgspec.Struct):
    messages: list[FailedMessage]


class Redrive(_Request):
    queue: str
    ids: list[ShortText] | None = None
    limit: int = 1_000_000


class Purge(_Request):
    queue: str
    failed_only: bool = False


class Count(msgspec.Struct):
    count: int


class StateValue(msgspec.Struct, kw_only=True):
    """Workflow state; `etag` is None where nothing was saved."""

    value: Any
    etag: str | None


class SaveState(_Request):
    """`etag` is what was loaded; None: there was nothing."""

    queue: str
    ref: ShortText
    value: Any
    etag: ShortText | None = None
    correlation_id: ShortText | None = None


class SavedState(msgspec.Struct):
    etag: str


class Swept(msgspec.Struct):
    done: dict[str, int]
    failed: list[Failed] = []


class Info(msgspec.Struct):
    """What a client has to know of a server."""

    version: str
    server: str
    now_ms: int
    most_messages: int
    most_listed: int
    most_wait: float
    most_body: int = 16 * 1024 * 1024
    most_stream: int = 1024**3
