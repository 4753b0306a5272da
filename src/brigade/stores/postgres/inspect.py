"""Looking without touching: statistics, get by id, peek, parked failures and workflow state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brigade.errors import MessageNotFound, StaleLease
from brigade.model import FailedMessage, MessageInfo, Stats
from brigade.stores.postgres.queues import missing
from brigade.stores.postgres.sealing import open_failed, open_info
from brigade.stores.postgres.steps import Ask, Rows, Steps
from brigade.stores.postgres.wire import ended_info, failed_message, kept, live_info, parse_ref

if TYPE_CHECKING:
    from brigade.crypto.fields import Fields

__all__ = ["failed", "find", "load_state", "peek", "save_state", "stats"]


def stats(queue: str, queue_id: int) -> Steps[Stats]:
    """Counts by state. What has finished is kept count of, so history is not counted through."""
    rows = yield Ask("count_live", {"queue": queue_id})
    if not rows:
        raise missing(queue)
    now, paused, ready, delayed, in_flight, oldest, failed, succeeded, dead = rows[0]
    return Stats(
        total=ready + delayed + in_flight + succeeded + failed + dead,
        ready=ready,
        delayed=delayed,
        in_flight=in_flight,
        succeeded=succeeded,
        failed=failed,
        dead_lettered=dead,
        oldest_age=0.0 if oldest is None else max(0, now - oldest) / 1000,
        paused=paused,
    )


def peek(
    queue: str, queue_id: int, limit: int, *, lifo: bool, fields: Fields | None = None
) -> Steps[list[MessageInfo]]:
    """What a claim would get now, in order."""
    rows = yield Ask("peek", {"queue": queue_id, "limit": limit}, lifo)
    return [open_info(fields, live_info(queue, queue_id, row), row[-1]) for row in rows]


def find(queue: str, queue_id: int, message_id: str, *, fields: Fields | None = None) -> Steps[MessageInfo]:
    """A message by its id, live or in history."""
    number = parse_ref(message_id, queue_id)
    tried: set[int] = set()
    for own in (False, True):
        if own:
            rows = yield Ask("find_ids", {"queue": queue_id, "own_ids": [kept(message_id)]})
            number = rows[0][1] if rows else None
        if number is None or number in tried:
            continue
        tried.add(number)
        for name, shown in (("get_live", live_info), ("get_ended", ended_info)):
            rows = yield Ask(name, {"queue": queue_id, "id": number})
            if rows:
                return open_info(fields, shown(queue, queue_id, rows[0]), rows[0][-1])
    raise MessageNotFound(f"queue {queue!r} has no message {message_id!r}, or it ended too long ago")


def failed(queue: str, queue_id: int, limit: int, *, fields: Fields | None = None) -> Steps[list[FailedMessage]]:
    """Parked failures, oldest first."""
    rows = yield Ask("list_parked", {"queue": queue_id, "limit": limit})
    return [open_failed(fields, failed_message(queue, row)) for row in rows]


def load_state(queue_id: int, ref: str) -> Steps[tuple[bytes, str] | None]:
    """The workflow state beside a message, and its etag."""
    number = parse_ref(ref, queue_id)
    rows: Rows = [] if number is None else (yield Ask("load_state", {"id": number}))
    return (rows[0][0], str(rows[0][1])) if rows else None


def save_state(queue_id: int, ref: str, value: bytes, etag: str | None, fresh: int) -> Steps[str]:
    """Store a value over the one that was read under `etag` (None: there was none); returns the new etag."""
    number = parse_ref(ref, queue_id)
    if number is None:
        raise MessageNotFound(f"there is no message {ref!r} in this queue")
    params = {"id": number, "value": value, "fresh": fresh}
    if etag is None:
        rows = yield Ask("first_state", {**params, "queue": queue_id})
    else:
        rows = yield Ask("next_state", {**params, "etag": int(etag)})
    if not rows:
        current = yield Ask("load_state", {"id": number})
        if not current or current[0][1] != fresh:
            raise StaleLease(
                f"the workflow state of message {ref} was changed by somebody else; load() it and decide again"
            )
    return str(fresh)
