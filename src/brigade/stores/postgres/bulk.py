"""Bulk jobs: many processes stage rows that nobody sees, then one transaction moves all of them into the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from brigade.clock import to_ms
from brigade.crypto.places import staged_place
from brigade.errors import PayloadTooLarge, QueueNotFound, StoreUnavailable
from brigade.policy import QueuePolicy
from brigade.stores import Outgoing
from brigade.stores.postgres.adapt import Numbers
from brigade.stores.postgres.steps import Ask, Copy, Steps
from brigade.stores.postgres.wire import kept

if TYPE_CHECKING:
    from brigade.crypto.fields import Fields

__all__ = ["STAGED_FOR", "Published", "discard", "publish", "read_note", "stage", "write_note"]

STAGED_FOR = 7 * 24 * 3_600_000
"""What was staged longer ago and is still there is nobody's any more."""

_TYPES = (*("int8",) * 6, "int4", "int4", "int2", *("text",) * 6, "bytea")
_json = msgspec.json.Encoder()


class Published(msgspec.Struct, frozen=True):
    """How many messages became visible, and whether somebody waits for them."""

    count: int
    awaited: bool


def stage(
    queue: str,
    queue_id: int,
    policy: QueuePolicy,
    part: int,
    messages: Sequence[Outgoing],
    fields: Fields | None,
    *,
    doubt: bool,
) -> Steps[int]:
    """Write rows that nobody sees; returns when, by the server's clock. Needs a transaction."""
    rows = yield Ask("stage_part", {"queue": queue_id, "part": part})
    if not rows:
        raise QueueNotFound(f"queue {queue!r} does not exist; hub.queue({queue!r}) creates it")
    now, staged = rows[0]
    if not (doubt and staged):
        made = [_row(queue_id, policy, part, *one, now) for one in enumerate(messages)]
        yield Copy("copy_staged", made if fields is None else _sealed(fields, queue, part, made), _TYPES)
    return now


def _row(queue_id: int, policy: QueuePolicy, part: int, place: int, message: Outgoing, now: int) -> tuple[object, ...]:
    payload = message.payload
    if not isinstance(payload, bytes):
        raise TypeError("a staged message's payload is bytes, not a stream")
    if len(payload) > policy.max_payload:
        raise PayloadTooLarge(
            f"the payload has {len(payload)} bytes, but the queue takes {policy.max_payload}; "
            "raise max_payload in its policy, or send a reference"
        )
    strict = policy.ordering_guarantee or message.group is not None
    return (
        part,
        place,
        now,
        now + to_ms(message.delay) if message.delay else 0,
        None if message.ttl is None else to_ms(message.ttl),
        len(payload),
        queue_id,
        message.max_attempts,
        message.priority,
        kept(message.group or "") if strict else None,
        None if message.group is None else kept(message.group),
        None if message.id is None else kept(message.id),
        message.correlation_id,
        message.content_type,
        None if message.attributes is None else _json.encode(message.attributes).decode(),
        payload,
    )


def _sealed(fields: Fields, queue: str, part: int, rows: Sequence[tuple[Any, ...]]) -> list[tuple[object, ...]]:
    """Rows as they are written where encryption is on: bound to their queue, for they have no numbers yet."""
    key = fields.vault.data_key()
    made: list[tuple[object, ...]] = []
    for place, (*rest, attributes, payload) in enumerate(rows):
        text = None
        if attributes is not None:
            sealed = fields.seal_text(attributes, staged_place("attributes", queue, part, place), key)
            text = _json.encode(sealed).decode()
        body = key.seal(payload, staged_place("payload", queue, part, place), carry=True)
        made.append((*rest, text, body))
    return made


def publish(
    queue: str,
    queue_id: int,
    job: str,
    parts: Sequence[int],
    *,
    count: int,
    epoch: int,
    keep: bool,
    token: int,
    lifo: bool,
) -> Steps[Published]:
    """Move the parts into the queue, in this order, unless the job was published before. Needs a transaction."""
    taken = yield Ask("take_job", {"queue": queue_id, "job": job, "epoch": epoch, "token": token, "keep": keep})
    if not taken:
        found = yield Ask("find_job", {"queue": queue_id, "job": job})
        ours = bool(found) and found[0][0] == token
        yield from discard(queue_id, parts)
        return Published(count if ours else 0, ours)
    wanted = {"queue": queue_id, "parts": Numbers(parts)}
    present, lanes, awaited = (yield Ask("look_at_parts", wanted))[0]
    if awaited is None:
        raise QueueNotFound(f"queue {queue!r} does not exist; hub.queue({queue!r}) creates it")
    if present != count:
        raise StoreUnavailable(
            f"{count - present} of the job's {count} messages are gone: they were staged over a week ago, or "
            "discarded; nothing was published, run it again"
        )
    if lanes:
        yield Ask("touch_lanes", {"queue": queue_id, "lanes": sorted(lanes)})
    yield Ask("publish_parts", {**wanted, "batch": token})
    if lanes:
        yield Ask("seat_lanes", {"queue": queue_id, "lanes": sorted(lanes)}, lifo)
    yield from discard(queue_id, parts)
    return Published(count, bool(awaited))


def discard(queue_id: int, parts: Sequence[int]) -> Steps[None]:
    """Remove staged rows of a queue."""
    yield Ask("drop_parts", {"queue": queue_id, "parts": Numbers(parts)})


def write_note(queue: str, queue_id: int, name: str, value: bytes) -> Steps[bytes]:
    """Write a note unless there is one; returns the one that is there."""
    yield Ask("write_note", {"queue": queue_id, "name": name, "value": value})
    found = yield from read_note(queue_id, name)
    if found is None:
        raise QueueNotFound(f"queue {queue!r} does not exist; hub.queue({queue!r}) creates it")
    return found


def read_note(queue_id: int, name: str) -> Steps[bytes | None]:
    rows = yield Ask("read_note", {"queue": queue_id, "name": name})
    return rows[0][0] if rows else None
