"""Enqueue: rows by INSERT or COPY, the user's own ids, and the lanes that messages join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from brigade.clock import to_ms
from brigade.errors import QueueNotFound
from brigade.model import Receipt
from brigade.policy import QueuePolicy
from brigade.stores import Outgoing
from brigade.stores.postgres.steps import Again, Ask, Copy, Rows, Steps
from brigade.stores.postgres.wire import kept, told_id

__all__ = ["COPY_FROM", "Draft", "Written", "drafted", "enqueue", "find_batch", "is_plain"]

COPY_FROM = 24
"""So many messages without ids of their own or lanes are written by COPY."""

_json = msgspec.json.Encoder()


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A message ready to be written: small, or with its payload in a blob already."""

    message: Outgoing
    payload: bytes | None
    size: int
    lane: str | None
    blob: int | None = None
    checksum: int | None = None


Seal = Callable[[Sequence[Draft], Sequence[int]], Sequence[Draft]]
"""Drafts with their contents sealed, each for its id."""


@dataclass(frozen=True, slots=True)
class Written:
    """Receipts, and whether somebody waits for what they stand for."""

    receipts: list[Receipt]
    awaited: bool


def drafted(
    message: Outgoing, policy: QueuePolicy, payload: bytes | None, size: int, blob: int | None = None, checksum: int = 0
) -> Draft:
    """A draft in the lane where it belongs."""
    lane = None
    if policy.ordering_guarantee or message.group is not None:
        lane = kept(message.group or "")
    return Draft(message, payload, size, lane, blob, checksum if blob is not None else None)


def is_plain(draft: Draft) -> bool:
    """Whether it can be written by COPY: no lane to lock, no id to take, no payload apart."""
    return draft.lane is None and draft.message.id is None and draft.blob is None


def enqueue(
    queue: str, queue_id: int, drafts: Sequence[Draft], batch: int, *, lifo: bool, seal: Seal | None = None
) -> Steps[Written]:
    """Write messages. More than one statement where there are lanes or own ids: then it needs a transaction.

    `seal` makes drafts out for the ids that they get, which are therefore taken first.
    """
    if all(map(is_plain, drafts)) and (seal is None or len(drafts) >= COPY_FROM):
        if len(drafts) >= COPY_FROM:
            return (yield from _copy(queue, queue_id, drafts, batch, seal))
        one = _insert_one(queue_id, drafts[0], batch) if len(drafts) == 1 else None
        rows = yield one or _insert(queue_id, drafts, [None] * len(drafts), batch)
        _check(queue, rows, drafts)
        return Written([_receipt(queue, queue_id, row[0], d) for row, d in zip(rows, drafts, strict=True)], rows[0][1])
    lanes = sorted({draft.lane for draft in drafts if draft.lane is not None})
    if lanes:
        yield Ask("touch_lanes", {"queue": queue_id, "lanes": lanes})
    allocated = yield Ask("allocate", {"queue": queue_id, "count": len(drafts)})
    _check(queue, allocated, drafts)
    ids: list[int] = allocated[0][3]
    known = yield from _take_ids(queue, queue_id, drafts, ids)
    places = [place for place in range(len(drafts)) if place not in known]
    if places:
        fresh, their_ids = [drafts[place] for place in places], [ids[place] for place in places]
        yield _insert(queue_id, seal(fresh, their_ids) if seal else fresh, their_ids, batch)
    awaited = bool(allocated[0][1])
    if lanes:
        yield Ask("seat_lanes", {"queue": queue_id, "lanes": lanes}, lifo)
    receipts = [
        known[place] if place in known else _receipt(queue, queue_id, ids[place], draft)
        for place, draft in enumerate(drafts)
    ]
    return Written(receipts, awaited)


def _check(queue: str, rows: Rows, drafts: Sequence[Draft]) -> None:
    if drafts and not rows:
        raise QueueNotFound(f"queue {queue!r} does not exist; hub.queue({queue!r}) creates it")


def _receipt(queue: str, queue_id: int, id: int, draft: Draft) -> Receipt:
    ref = f"{queue_id}-{id}"
    name = draft.message.id or ref
    return Receipt(name, queue, draft.message.correlation_id or name, False, ref)


def _copy(queue: str, queue_id: int, drafts: Sequence[Draft], batch: int, seal: Seal | None) -> Steps[Written]:
    allocated = yield Ask("allocate", {"queue": queue_id, "count": len(drafts)})
    _check(queue, allocated, drafts)
    ttl, awaited, now, ids = allocated[0]
    if seal is not None:
        drafts = seal(drafts, ids)
    rows: list[tuple[object, ...]] = []
    for id, draft in zip(ids, drafts, strict=True):
        message = draft.message
        due = now + to_ms(message.delay) if message.delay else now
        own_ttl = None if message.ttl is None else to_ms(message.ttl)
        lasts = ttl if own_ttl is None else own_ttl
        rows.append(
            (
                id,
                due,
                now,
                batch,
                None if lasts is None else due + lasts,
                own_ttl,
                draft.size,
                queue_id,
                message.max_attempts,
                message.priority,
                None,
                message.correlation_id,
                message.content_type,
                None if message.attributes is None else _json.encode(message.attributes).decode(),
                draft.payload,
            )
        )
    yield Copy("copy_messages", rows)
    return Written([_receipt(queue, queue_id, id, d) for id, d in zip(ids, drafts, strict=True)], bool(awaited))


def _insert_one(queue_id: int, draft: Draft, batch: int) -> Ask:
    message = draft.message
    return Ask(
        "insert_one",
        {
            "queue": queue_id,
            "batch": batch,
            "delay": to_ms(message.delay),
            "ttl": None if message.ttl is None else to_ms(message.ttl),
            "limit": message.max_attempts,
            "priority": message.priority,
            "correlation": message.correlation_id,
            "type": message.content_type,
            "attributes": None if message.attributes is None else _json.encode(message.attributes).decode(),
            "payload": draft.payload,
        },
    )


def _insert(queue_id: int, drafts: Sequence[Draft], ids: Sequence[int | None], batch: int) -> Ask:
    messages = [draft.message for draft in drafts]
    return Ask(
        "insert_messages",
        {
            "queue": queue_id,
            "batch": batch,
            "ids": list(ids),
            "delays": [to_ms(message.delay) for message in messages],
            "ttls": [None if message.ttl is None else to_ms(message.ttl) for message in messages],
            "sizes": [draft.size for draft in drafts],
            "blobs": [draft.blob for draft in drafts],
            "checksums": [draft.checksum for draft in drafts],
            "limits": [message.max_attempts for message in messages],
            "priorities": [message.priority for message in messages],
            "lanes": [draft.lane for draft in drafts],
            "groups": [None if message.group is None else kept(message.group) for message in messages],
            "own_ids": [None if message.id is None else kept(message.id) for message in messages],
            "correlations": [message.correlation_id for message in messages],
            "types": [message.content_type for message in messages],
            "attributes": [
                None if message.attributes is None else _json.encode(message.attributes).decode()
                for message in messages
            ],
            "payloads": [draft.payload for draft in drafts],
        },
    )


def _take_ids(queue: str, queue_id: int, drafts: Sequence[Draft], ids: Sequence[int]) -> Steps[dict[int, Receipt]]:
    """Take the user's own ids; the receipts of those that were taken before, by place."""
    own = {place: draft.message.id for place, draft in enumerate(drafts) if draft.message.id is not None}
    if not own:
        return {}
    first: dict[str, int] = {}
    for place, name in own.items():
        first.setdefault(name, place)
    wanted = list(first.values())
    taken = yield Ask(
        "take_ids",
        {
            "queue": queue_id,
            "ids": [ids[place] for place in wanted],
            "own_ids": [kept(own[place]) for place in wanted],
            "correlations": [drafts[place].message.correlation_id or kept(own[place]) for place in wanted],
        },
    )
    ours = {row[0] for row in taken}
    repeated = [place for place, name in own.items() if first[name] != place or kept(name) not in ours]
    if not repeated:
        return {}
    rows = yield Ask("find_ids", {"queue": queue_id, "own_ids": [kept(own[place]) for place in repeated]})
    found = {row[0]: row for row in rows}
    receipts: dict[int, Receipt] = {}
    for place in repeated:
        if kept(own[place]) not in found:
            raise Again(f"id {own[place]!r} was freed meanwhile")
        _, id, correlation = found[kept(own[place])]
        receipts[place] = Receipt(own[place], queue, correlation, True, f"{queue_id}-{id}")
    return receipts


def find_batch(queue: str, queue_id: int, drafts: Sequence[Draft], batch: int, since: int) -> Steps[Written | None]:
    """What an enqueue whose commit was in doubt has written; None where it has written nothing."""
    rows = yield Ask("find_batch", {"queue": queue_id, "batch": batch, "since": since})
    ids = [row[0] for row in rows]
    if not ids:
        return None
    if len(ids) == len(drafts):
        return Written([_receipt(queue, queue_id, id, d) for id, d in zip(ids, drafts, strict=True)], True)
    known = yield Ask(
        "find_ids", {"queue": queue_id, "own_ids": [kept(d.message.id) for d in drafts if d.message.id is not None]}
    )
    owners = {row[0]: row for row in known}
    mine = iter([id for id in ids if id not in {row[1] for row in known}])
    receipts: list[Receipt] = []
    seen: set[str] = set()
    for draft in drafts:
        name = draft.message.id
        if name is None:
            receipts.append(_receipt(queue, queue_id, next(mine), draft))
            continue
        _, id, correlation = owners[kept(name)]
        again = id not in ids or name in seen
        seen.add(name)
        receipts.append(Receipt(told_id(queue_id, id, kept(name)), queue, correlation, again, f"{queue_id}-{id}"))
    return Written(receipts, True)
