"""Queues as a whole: policies, pause, purge, delete, and redrive."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import msgspec

from brigade.clock import to_ms
from brigade.crypto.places import sealed_queue
from brigade.errors import ConfigError, QueueNotFound
from brigade.policy import QueuePolicy, decode_policy, encode_policy
from brigade.stores.postgres.steps import Ask, Steps
from brigade.stores.postgres.wire import split_ids

if TYPE_CHECKING:
    from brigade.crypto.fields import Fields

__all__ = [
    "delete_queue",
    "ensure_queue",
    "letters_params",
    "load_queue",
    "purge",
    "redrive_letters",
    "redrive_parked",
    "set_paused",
]


def _columns(policy: QueuePolicy) -> dict[str, Any]:
    """A policy as the columns of its queue."""
    return {
        "policy": msgspec.json.encode(encode_policy(policy)).decode(),
        "max_attempts": policy.failure.max_attempts,
        "retention_ms": to_ms(policy.retention),
        "ttl_ms": None if policy.ttl is None else to_ms(policy.ttl),
        "dead_letter_queue": policy.failure.dead_letter_queue,
        "strict": policy.ordering_guarantee,
        "lifo": policy.ordering == "lifo",
    }


def letters_params(queue_id: int) -> dict[str, Any]:
    """What `make_letters` needs: a dead-letter queue that nobody has made gets the default policy."""
    return {**_columns(QueuePolicy()), "queue": queue_id}


def missing(name: str) -> QueueNotFound:
    return QueueNotFound(f"queue {name!r} does not exist; hub.queue({name!r}) creates it")


def load_queue(name: str, fields: Fields | None = None) -> Steps[tuple[int, QueuePolicy]]:
    """The number and the stored policy of a queue; CannotDecrypt where it is sealed and its keys are missing."""
    while True:
        rows = yield Ask("find_queue", {"name": name})
        if not rows:
            raise missing(name)
        id, policy, sealed = rows[0]
        known: dict[str, str] = {} if sealed is None else msgspec.json.decode(sealed)
        if known and fields is None:
            raise sealed_queue(name)
        more = fields.vouch(name, known) if fields else None
        if more is not None:
            params = {"queue": id, "sealed": msgspec.json.encode(more).decode(), "before": sealed}
            if not (yield Ask("seal_queue", params)):
                continue
        return id, decode_policy(msgspec.json.decode(policy), source=f"queue {name!r}")


def ensure_queue(
    name: str, policy: QueuePolicy | None, *, replace: bool, fields: Fields | None = None
) -> Steps[tuple[int, QueuePolicy]]:
    """Create the queue, or check that its stored policy is the given one; `replace` stores the given one."""
    rows = yield Ask("find_queue", {"name": name})
    if not rows:
        yield Ask("make_queue", {"name": name, **_columns(policy or QueuePolicy())})
    id, stored = yield from load_queue(name, fields)
    if policy is None or policy == stored:
        return id, stored
    if not replace:
        names = ", ".join(
            f"{field} ({getattr(stored, field)!r} is stored, {getattr(policy, field)!r} was given)"
            for field in stored.differences(policy)
        )
        raise ConfigError(
            f"queue {name!r} exists with another policy: {names}; leave policy out to use the stored one, "
            "or pass replace=True to change it for everybody"
        )
    changed = yield Ask("change_queue", {"name": name, **_columns(policy)})
    if not changed:
        raise missing(name)
    if policy.ttl != stored.ttl:
        yield Ask("change_ttl", {"queue": id, "ttl_ms": None if policy.ttl is None else to_ms(policy.ttl)})
    return id, policy


def set_paused(name: str, queue_id: int, *, paused: bool) -> Steps[None]:
    rows = yield Ask("set_paused", {"queue": queue_id, "paused": paused})
    if not rows:
        raise missing(name)


def purge(queue_id: int, *, lifo: bool, failed_only: bool) -> Steps[int]:
    """Drop what waits and what is parked, or only that, and payloads with it. Needs a transaction."""
    lanes = [] if failed_only else [row[0] for row in (yield Ask("lock_all_lanes", {"queue": queue_id}))]
    total, blobs = 0, list[int]()
    for name in ("purge_parked",) if failed_only else ("purge_messages", "purge_parked"):
        count, apart = (yield Ask(name, {"queue": queue_id}))[0]
        total += count
        blobs += apart or []
    if blobs:
        yield Ask("drop_blobs", {"blobs": blobs})
    if lanes:
        yield Ask("seat_lanes", {"queue": queue_id, "lanes": lanes}, lifo)
    return total


def delete_queue(queue_id: int) -> Steps[None]:
    """Remove a queue and everything live in it. Needs a transaction."""
    rows = yield Ask("delete_queue", {"queue": queue_id})
    if rows[0][0]:
        yield Ask("drop_blobs", {"blobs": rows[0][0]})


def redrive_parked(queue_id: int, ids: AbstractSet[str] | None, limit: int, *, lifo: bool) -> Steps[int]:
    """Bring parked failures back. Needs a transaction."""
    numbers, own = (None, None) if ids is None else split_ids(ids, queue_id)
    chosen = {"queue": queue_id, "ids": numbers, "own_ids": own}
    lanes = sorted(row[0] for row in (yield Ask("lanes_of_parked", chosen)))
    if lanes:
        yield Ask("touch_lanes", {"queue": queue_id, "lanes": lanes})
    count: int = (yield Ask("redrive_parked", {**chosen, "limit": limit}))[0][0]
    if lanes:
        yield Ask("seat_lanes", {"queue": queue_id, "lanes": lanes}, lifo)
    return count


def redrive_letters(
    letters_id: int, origin: str | None, ids: AbstractSet[str] | None, limit: int
) -> Steps[tuple[int, Sequence[int]]]:
    """Bring dead letters back to the queue they failed in: how many, and to which queues. Needs a transaction."""
    numbers, told = ([], None) if ids is None else split_ids(ids, letters_id)
    chosen = {"queue": letters_id, "origin": origin}
    lanes: dict[int, list[str]] = {}
    for id, lane in (yield Ask("lanes_of_letters", chosen)):
        lanes.setdefault(id, []).append(lane)
    for id in sorted(lanes):
        yield Ask("touch_lanes", {"queue": id, "lanes": sorted(lanes[id])})
    params = {**chosen, "ids": numbers, "told": told, "limit": limit, "slot": None}
    count, queues = (yield Ask("redrive_letters", params))[0]
    for id in sorted(lanes):
        yield from seat(id, sorted(lanes[id]))
    return count, queues or []


def seat(queue_id: int, lanes: Sequence[str]) -> Steps[None]:
    """Seat lanes of a queue whose order is not known here."""
    rows = yield Ask("is_lifo", {"queue": queue_id})
    yield Ask("seat_lanes", {"queue": queue_id, "lanes": list(lanes)}, bool(rows and rows[0][0]))
