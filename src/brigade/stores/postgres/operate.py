"""What operators look at and decide: messages page by page, attempts, leases, history, and single messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import msgspec

from brigade.model import MessageInfo
from brigade.stores.operating import Action
from brigade.stores.postgres.inspect import find
from brigade.stores.postgres.sealing import open_info
from brigade.stores.postgres.steps import Ask, Row, Steps
from brigade.stores.postgres.wire import kept, live_info, parse_ref, plain, ref_of, told_id
from brigade.survey import Attempt, Day, Ended, GroupInfo, Held, Page, Story, Tail

if TYPE_CHECKING:
    from brigade.crypto.fields import Fields

__all__ = ["TAKEN_BACK", "browse", "groups", "leases", "outcomes", "override", "story", "tail"]

TAKEN_BACK = "taken back by an operator"
CHUNK = 500
EPOCH = date(1970, 1, 1).toordinal()
_HOW = {"processed": "acked", "failed": "nacked", "dead-lettered": "nacked"}
_MOVES = {"discard": "discard_messages", "hasten": "hasten_messages", "take_back": "take_back_messages"}


class _Place(msgspec.Struct):
    """Where a page ended: in which part, and after which message."""

    part: int = 0
    at: int = -1
    id: int = -1
    priority: int = -1
    lane: str = ""


_PARTS = ("browse_ready", "browse_leased", "browse_lanes")


def browse(
    queue: str,
    queue_id: int,
    match: Callable[[MessageInfo], bool],
    *,
    limit: int,
    most: int,
    after: str | None,
    only_held: bool,
    fields: Fields | None = None,
) -> Steps[Page]:
    """Messages that wait, then those in flight, then lanes; some hundreds a statement."""
    place = _Place(part=1 if only_held else 0)
    if after:
        try:
            place = msgspec.json.decode(after, type=_Place)
        except msgspec.DecodeError:
            place = _Place()
    found: list[MessageInfo] = []
    looked = 0
    while place.part < len(_PARTS):
        params: dict[str, Any] = {"queue": queue_id, "limit": CHUNK, **msgspec.structs.asdict(place)}
        rows = yield Ask(_PARTS[place.part], params)
        for row in rows:
            info = open_info(fields, live_info(queue, queue_id, row), moved=True)
            at = row[16] if place.part == 1 else row[6]
            place = _Place(place.part, at, row[0], row[2], row[10] or "")
            looked += 1
            if match(info):
                found.append(info)
            if len(found) == limit:
                return Page(found, msgspec.json.encode(place).decode(), looked)
        if looked >= most:
            return Page(found, msgspec.json.encode(place).decode(), looked)
        if len(rows) < CHUNK:
            place = _Place(part=place.part + 1)
    return Page(found, None, looked)


def story(queue: str, queue_id: int, message_id: str, *, fields: Fields | None = None) -> Steps[Story]:
    """A message in whatever state, and its leases."""
    info = yield from find(queue, queue_id, message_id, fields=fields)
    number = parse_ref(info.ref, queue_id)
    if info.finished_at_ms is None:
        rows = yield Ask("log_live", {"queue": queue_id, "id": number})
        if not rows:
            return Story(info, [])
        log, version, owner, claimed_at = rows[0]
        made = _logged(log)
        if claimed_at is not None:
            made.append(Attempt(version, plain(owner), claimed_at))
        return Story(info, made)
    rows = yield Ask("log_ended", {"queue": queue_id, "id": number})
    return Story(info, _all_attempts(*rows[0]) if rows else [])


def _logged(log: str | None) -> list[Attempt]:
    return [
        Attempt(one["version"], plain(one["owner"]), one["claimed_at"], one["ended_at"], one["how"], one.get("error"))
        for one in (msgspec.json.decode(log) if log else ())
    ]


def _all_attempts(
    log: str | None,
    version: int,
    owner: str | None,
    claimed_at: int | None,
    finished_at: int,
    outcome: str,
    reason: str | None,
    error: str | None,
) -> list[Attempt]:
    made = _logged(log)
    if claimed_at is not None and owner is not None and not any(one.version == version for one in made):
        how = "expired" if reason == "lease expired" else _HOW[outcome]
        made.append(Attempt(version, plain(owner), claimed_at, finished_at, how, error))
    return made


def _ended(queue_id: int, row: Row) -> Ended:
    id, own_id, outcome, enqueued, due, finished, log, version, owner, claimed, reason, error = row
    attempts = _all_attempts(log, version, owner, claimed, finished, outcome, reason, error)
    return Ended(
        told_id(queue_id, id, own_id),
        ref_of(queue_id, id),
        outcome,
        enqueued,
        due if not log else enqueued,
        finished,
        attempts,
        error or reason,
    )


def leases(queue_id: int, limit: int) -> Steps[list[Held]]:
    """Who holds what."""
    rows = yield Ask("list_leases", {"queue": queue_id, "limit": limit})
    return [
        Held(ref_of(queue_id, id), plain(owner), version, claimed_at, expires_at, attempts)
        for id, owner, version, claimed_at, expires_at, attempts in rows
    ]


def groups(queue_id: int, limit: int) -> Steps[list[GroupInfo]]:
    """Lanes that have messages, the longest first."""
    rows = yield Ask("list_groups", {"queue": queue_id, "limit": limit})
    return [
        GroupInfo(None if name is None else plain(name), waiting, None if owner is None else plain(owner))
        for name, waiting, owner in rows
    ]


def override(queue_id: int, ids: Sequence[str], action: Action, *, lifo: bool) -> Steps[int]:
    """Carry a decision out on messages; lanes are locked and seated around it. Needs a transaction."""
    numbers = [number for one in ids if (number := parse_ref(one, queue_id)) is not None]
    own = yield Ask("find_ids", {"queue": queue_id, "own_ids": [kept(one) for one in ids]})
    numbers += [row[1] for row in own if row[1] is not None]
    if not numbers:
        return 0
    chosen: dict[str, Any] = {"queue": queue_id, "ids": sorted(set(numbers))}
    lanes = sorted(row[0] for row in (yield Ask("lanes_of_messages", chosen)))
    if lanes:
        yield Ask("lock_lanes", {"queue": queue_id, "lanes": lanes})
    count, blobs = (yield Ask(_MOVES[action], {**chosen, "error": TAKEN_BACK}))[0]
    if action == "discard":
        parked, apart = (yield Ask("discard_parked", chosen))[0]
        count += parked
        blobs = [*(blobs or ()), *(apart or ())]
    if blobs:
        yield Ask("drop_blobs", {"blobs": blobs})
    if lanes:
        yield Ask("seat_lanes", {"queue": queue_id, "lanes": lanes}, lifo)
    return count


def tail(queue_id: int, after: str | None, *, since_ms: int, limit: int) -> Steps[Tail]:
    """What ended after a time and an id, oldest first."""
    at, _, id = (after or "").partition("-")
    known = at.isdecimal() and id.isdecimal()
    params = {"queue": queue_id, "at": int(at) if known else since_ms, "id": int(id) if known else 0, "limit": limit}
    rows = yield Ask("tail_history", params)
    last = f"{rows[-1][5]}-{rows[-1][0]}" if rows else f"{params['at']}-{params['id']}"
    return Tail([_ended(queue_id, row) for row in rows], last)


def outcomes(queue_id: int, days: Sequence[str], sample: int) -> Steps[list[Day]]:
    """Counts of each day, and the newest of it."""
    made: list[Day] = []
    for day in days:
        params = {"queue": queue_id, "day": date.fromisoformat(day).toordinal() - EPOCH}
        processed, failed, dead = (yield Ask("count_day", params))[0]
        some = processed or failed or dead
        rows = (yield Ask("newest_of_day", {**params, "limit": sample})) if some else ()
        made.append(Day(day, processed, failed, dead, [_ended(queue_id, row) for row in rows]))
    return made
