"""The values that users hold: immutable, typed, and the same for every store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from brigade.clock import to_datetime
from brigade.errors import BrigadeError
from brigade.machine import State

__all__ = [
    "JSON_TYPE",
    "Ack",
    "Extend",
    "FailedMessage",
    "FailureInfo",
    "Grant",
    "Lease",
    "Message",
    "MessageInfo",
    "Nack",
    "Receipt",
    "Release",
    "Settlement",
    "Stats",
    "decode_data",
]

JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain"


def decode_data(payload: bytes, content_type: str) -> Any:
    """The payload as the value it was made from: JSON value, text or bytes."""
    if content_type == JSON_TYPE:
        return msgspec.json.decode(payload)
    if content_type.startswith("text/"):
        return payload.decode()
    return payload


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What `enqueue` returns: the message is durable. `duplicate` means that the id had been enqueued before."""

    id: str
    queue: str
    correlation_id: str
    duplicate: bool = False
    ref: str = ""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """Exclusive, temporary ownership of one message. `version` only grows: hand it on as a fencing token."""

    token: str
    version: int
    owner: str
    expires_at_ms: int

    @property
    def expires_at(self) -> datetime:
        """When the lease runs out, by the store's clock."""
        return to_datetime(self.expires_at_ms)


class Grant(msgspec.Struct, frozen=True):
    """The leases that one claim won in one segment. Plain data: it may be loaded in another process."""

    queue: str
    segment: str
    token: str
    version: int
    owner: str
    expires_at_ms: int
    members: tuple[int, ...]
    attempts: tuple[int, ...]
    max_attempts: tuple[int, ...]
    recovered: tuple[int, ...] = ()
    claimed_at_ms: int = 0
    account: str = ""

    def __len__(self) -> int:
        return len(self.members)

    def held(self) -> list[Message]:
        """Its messages as far as settling needs them, without loading any."""
        return [
            Message.held(
                queue=self.queue,
                id=f"{self.segment}-{place}",
                ref=f"{self.segment}-{place}",
                token=f"{self.token}.{place}",
                version=self.version,
                owner=self.owner,
                attempt=attempt,
                max_attempts=limit,
            )
            for place, attempt, limit in zip(self.members, self.attempts, self.max_attempts, strict=True)
        ]


class FailureInfo(msgspec.Struct, frozen=True):
    """Why and where a message failed: carried by dead letters and parked failures."""

    queue: str
    id: str
    reason: str
    error: str | None
    attempts: int
    failed_at_ms: int
    enqueued_at_ms: int
    priority: int
    ttl_ms: int | None = None
    max_attempts: int | None = None
    own_id: str | None = None

    @property
    def failed_at(self) -> datetime:
        return to_datetime(self.failed_at_ms)

    @property
    def enqueued_at(self) -> datetime:
        return to_datetime(self.enqueued_at_ms)


class Message(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A claimed message and its lease."""

    id: str
    queue: str
    body: bytes | None
    content_type: str
    size: int
    priority: int
    attempt: int
    max_attempts: int
    correlation_id: str
    attributes: Mapping[str, Any]
    group: str | None
    enqueued_at_ms: int
    lease: Lease
    failure: FailureInfo | None
    ref: str
    claimed_at_ms: int = 0
    checksum: int | None = None
    opener: Callable[[Message], Any] | None = None

    @classmethod
    def held(
        cls,
        *,
        queue: str,
        id: str,
        ref: str,
        token: str,
        version: int = 0,
        owner: str = "",
        attempt: int = 1,
        max_attempts: int = 0,
        correlation_id: str | None = None,
        claimed_at_ms: int = 0,
    ) -> Message:
        """A claimed message as whoever was told of its lease knows it: enough to settle it, without a payload.

        The token decides; a wrong one is a StaleLease. `attempt` sets the backoff of a nack.
        """
        return cls(
            id,
            queue,
            None,
            "",
            0,
            5,
            attempt,
            max_attempts,
            correlation_id or id,
            {},
            None,
            0,
            Lease(token, version, owner, 0),
            None,
            ref,
            claimed_at_ms,
        )

    @property
    def payload(self) -> bytes:
        """The payload's bytes. A payload over 256 KiB is stored apart and is read through `open()`."""
        if self.body is None:
            raise BrigadeError(
                f"the payload of message {self.id!r} has {self.size} bytes and is stored apart; "
                "read it with message.open()"
            )
        return self.body

    @property
    def data(self) -> Any:
        """The payload as the value that was enqueued: JSON value, text or bytes."""
        return decode_data(self.payload, self.content_type)

    @property
    def enqueued_at(self) -> datetime:
        return to_datetime(self.enqueued_at_ms)

    def open(self) -> Any:
        """A reader over the payload, of any size: a binary file (sync) or an async reader (async)."""
        if self.opener is None:
            raise BrigadeError(f"message {self.id!r} is not bound to an open hub; claim it again to read its payload")
        return self.opener(self)


class MessageInfo(msgspec.Struct, frozen=True):
    """What is known of a message without a lease: from `get` and `peek`."""

    id: str
    queue: str
    state: State
    priority: int
    attempts: int
    max_attempts: int
    enqueued_at_ms: int
    due_at_ms: int
    correlation_id: str
    attributes: Mapping[str, Any]
    group: str | None
    content_type: str
    size: int
    ref: str
    body: bytes | None = None
    outcome: str | None = None
    owner: str | None = None
    lease_version: int = 0
    lease_expires_at_ms: int | None = None
    finished_at_ms: int | None = None
    error: str | None = None
    result: Any = None
    failure: FailureInfo | None = None
    checksum: int | None = None

    @property
    def data(self) -> Any:
        """The payload's value, or None where it is stored apart or the message has ended."""
        return None if self.body is None else decode_data(self.body, self.content_type)

    @property
    def enqueued_at(self) -> datetime:
        return to_datetime(self.enqueued_at_ms)

    @property
    def due_at(self) -> datetime:
        return to_datetime(self.due_at_ms)

    @property
    def finished_at(self) -> datetime | None:
        return None if self.finished_at_ms is None else to_datetime(self.finished_at_ms)


class FailedMessage(msgspec.Struct, frozen=True):
    """A parked failure: kept until it is redriven or purged."""

    id: str
    queue: str
    body: bytes | None
    content_type: str
    size: int
    priority: int
    correlation_id: str
    attributes: Mapping[str, Any]
    group: str | None
    failure: FailureInfo

    @property
    def data(self) -> Any:
        """The payload's value, or None where it is stored apart."""
        return None if self.body is None else decode_data(self.body, self.content_type)

    @property
    def reason(self) -> str:
        return self.failure.reason

    @property
    def error(self) -> str | None:
        return self.failure.error

    @property
    def attempts(self) -> int:
        return self.failure.attempts


class Stats(msgspec.Struct, frozen=True):
    """How many messages are where; `total` is the sum. What has finished is counted as long as history is kept."""

    total: int = 0
    ready: int = 0
    delayed: int = 0
    in_flight: int = 0
    succeeded: int = 0
    failed: int = 0
    dead_lettered: int = 0
    oldest_age: float = 0.0
    paused: bool = False


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The work is done. `result` is kept in history."""

    message: Message
    result: Any = None


class Nack(msgspec.Struct, frozen=True, gc=False):
    """The work failed. Without `delay` the policy's backoff applies; `penalize=False` gives the attempt back."""

    message: Message
    error: str | None = None
    delay: float | None = None
    penalize: bool = True
    reject: bool = False


class Extend(msgspec.Struct, frozen=True, gc=False):
    """Hold the lease for `seconds` from now; None means the lease length of the policy."""

    message: Message
    seconds: float | None = None


class Release(msgspec.Struct, frozen=True, gc=False):
    """Give the message back, due after `delay` seconds, as if it had not been claimed."""

    message: Message
    delay: float = 0.0


Settlement = Ack | Nack | Extend | Release
