"""Settle: end or change leases, a batch in a few statements. The token is the fence, not the clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec.structs import replace

from brigade.clock import to_ms
from brigade.errors import StaleLease
from brigade.machine import State
from brigade.model import Ack, Extend, Message, Nack, Settlement
from brigade.policy import QueuePolicy
from brigade.stores import Settled
from brigade.stores.postgres.adapt import Numbers, Tokens
from brigade.stores.postgres.queues import letters_params
from brigade.stores.postgres.steps import Ask, Row, Steps
from brigade.stores.postgres.wire import kept

__all__ = ["NOT_SETTLED", "Answer", "Change", "Outcome", "needs_transaction", "settle", "to_change"]

Answer = Settled | StaleLease
_TOKEN = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")
NOT_SETTLED = StaleLease("the settlement was not carried out")
_ENDS = {"ack": "acked", "nack": "nacked", "reject": "nacked", "release": "released"}


class Change(msgspec.Struct, frozen=True, gc=False):
    """One settlement of one message. `length` is the new lease or the delay, in milliseconds."""

    kind: str
    id: int
    token: str
    message: Message
    length: int = 0
    error: str | None = None
    result: str | None = None
    lane: str | None = None


@dataclass(slots=True)
class Outcome:
    """One answer for each change, and the queues where something may be claimed that somebody waits for."""

    answers: list[Answer]
    awaited: set[int] = field(default_factory=set[int])


def to_change(
    queue_id: int, policy: QueuePolicy, settlement: Settlement, uniform: Callable[[float, float], float]
) -> Change | StaleLease:
    """A settlement with the numbers that the statements take; stale where its token cannot be one of this queue's."""
    message = settlement.message
    token, _, number = message.lease.token.partition(".")
    if message.ref != f"{queue_id}-{number}" or not _TOKEN.fullmatch(token) or not _NUMBER.fullmatch(number):
        return StaleLease(
            f"token {message.lease.token!r} does not belong to message {message.id!r}; "
            "settle with the message as claimed"
        )
    id, lane = int(number), None
    if policy.ordering_guarantee or message.group is not None:
        lane = kept(message.group or "")
    if isinstance(settlement, Ack):
        result = None if settlement.result is None else msgspec.json.encode(settlement.result).decode()
        return Change("ack", id, token, message, result=result, lane=lane)
    if isinstance(settlement, Extend):
        length = policy.visibility_timeout if settlement.seconds is None else settlement.seconds
        return Change("extend", id, token, message, to_ms(length), lane=lane)
    if isinstance(settlement, Nack):
        wait = settlement.delay
        if wait is None and settlement.penalize:
            wait = policy.backoff.delay(max(message.attempt - 1, 0), uniform)
        kind = "reject" if settlement.reject else "nack" if settlement.penalize else "release"
        error = None if settlement.error is None else settlement.error.replace("\0", "\\x00")
        return Change(kind, id, token, message, to_ms(wait or 0.0), error, lane=lane)
    return Change("release", id, token, message, to_ms(settlement.delay), lane=lane)


def needs_transaction(changes: Sequence[Change]) -> bool:
    """Whether settling these takes more than one statement."""
    first = changes[0].kind
    if first not in ("ack", "release", "extend") or any(c.kind != first or c.lane is not None for c in changes):
        return True
    return len({change.id for change in changes}) != len(changes)


def settle(
    queue_id: int, changes: Sequence[Change], now: int, *, lifo: bool, tried: bool, slot: int | None = None
) -> Steps[Outcome]:
    """Make every change that its token allows. `tried` says that a commit of the same changes was in doubt."""
    outcome = Outcome([NOT_SETTLED] * len(changes))
    lanes = sorted({change.lane for change in changes if change.lane is not None})
    if lanes:
        yield Ask("lock_lanes", {"queue": queue_id, "lanes": lanes})
    left = list(range(len(changes)))
    touched: set[str] = set()
    while left:
        turn, left = _turn(changes, left)
        touched |= yield from _settle_turn(queue_id, changes, turn, outcome, now, slot)
    if lanes or touched:
        if stray := sorted(touched - set(lanes)):
            yield Ask("lock_lanes", {"queue": queue_id, "lanes": stray})
        seated = yield Ask("seat_lanes", {"queue": queue_id, "lanes": sorted({*lanes, *touched})}, lifo)
        if seated and seated[0][0]:
            outcome.awaited.add(queue_id)
    if tried:
        yield from _after_doubt(queue_id, changes, outcome)
    for place, answer in enumerate(outcome.answers):
        if answer is NOT_SETTLED:
            outcome.answers[place] = _stale(changes[place])
    return outcome


def _turn(changes: Sequence[Change], places: Sequence[int]) -> tuple[dict[int, list[int]], list[int]]:
    """The changes to make together: of each message those under one token; what is under another one comes later."""
    turn: dict[int, list[int]] = {}
    later: list[int] = []
    for place in places:
        change = changes[place]
        members = turn.setdefault(change.id, [])
        if members and changes[members[0]].token != change.token:
            later.append(place)
        else:
            members.append(place)
    return turn, later


def _settle_turn(
    queue_id: int,
    changes: Sequence[Change],
    turn: dict[int, list[int]],
    outcome: Outcome,
    now: int,
    slot: int | None,
) -> Steps[set[str]]:
    """What ends a lease first is made; extensions count only where nothing ends it. Returns lanes it touched."""
    by_kind: dict[str, list[int]] = {}
    for members in turn.values():
        end = members[0]
        if len(members) > 1:
            end = next((place for place in members if changes[place].kind != "extend"), members[-1])
        by_kind.setdefault(changes[end].kind, []).append(end)
    lanes: set[str] = set()
    done: dict[int, Settled] = {}
    if acks := by_kind.get("ack"):
        lanes |= yield from _ack(queue_id, [changes[place] for place in acks], done, slot)
    back = by_kind.get("release", []) + by_kind.get("nack", [])
    if back:
        lanes |= yield from _give_back(queue_id, [changes[place] for place in back], done, outcome)
    failing = by_kind.get("reject", []) + [p for p in by_kind.get("nack", []) if changes[p].id not in done]
    if failing:
        lanes |= yield from _fail(queue_id, [changes[place] for place in failing], done, outcome, slot)
    if extended := by_kind.get("extend"):
        yield from _extend(queue_id, [changes[place] for place in extended], done)
    for id, members in turn.items():
        if id in done:
            _answer(changes, members, done[id], outcome, now)
    return lanes


def _answer(changes: Sequence[Change], members: Sequence[int], settled: Settled, outcome: Outcome, now: int) -> None:
    for place in members:
        change = changes[place]
        if change.kind != "extend":
            outcome.answers[place] = settled
            return
        expires = settled.lease.expires_at_ms if settled.lease else now + change.length
        lease = replace(change.message.lease, expires_at_ms=expires)
        outcome.answers[place] = Settled(
            State.IN_FLIGHT, lease, change.message.attempt, change.message.max_attempts, expires
        )


def _keys(queue_id: int, changes: Sequence[Change]) -> dict[str, Any]:
    return {
        "queue": queue_id,
        "ids": Numbers([change.id for change in changes]),
        "tokens": Tokens([change.token for change in changes]),
    }


def _ack(queue_id: int, changes: Sequence[Change], done: dict[int, Settled], slot: int | None) -> Steps[set[str]]:
    params = {**_keys(queue_id, changes), "slot": slot}
    results = [change.result for change in changes]
    if any(result is not None for result in results):
        rows = yield Ask("ack_with_results", {**params, "results": results})
    else:
        rows = yield Ask("ack", params)
    gone = {row[0] for row in rows}
    for change in changes:
        if change.id in gone:
            done[change.id] = Settled(State.SUCCEEDED, None, change.message.attempt, change.message.max_attempts)
    blobs = [row[1] for row in rows if row[1] is not None]
    if blobs:
        yield Ask("drop_blobs", {"blobs": blobs})
    return {row[2] for row in rows if row[2] is not None}


def _give_back(queue_id: int, changes: Sequence[Change], done: dict[int, Settled], outcome: Outcome) -> Steps[set[str]]:
    rows = yield Ask(
        "give_back",
        {
            **_keys(queue_id, changes),
            "delays": [change.length for change in changes],
            "counts": [change.kind == "nack" for change in changes],
            "errors": [change.error for change in changes],
        },
    )
    known = {change.id: change.message for change in changes}
    for id, due, awaited, _ in rows:
        done[id] = Settled(State.READY, None, known[id].attempt, known[id].max_attempts, due)
        if awaited:
            outcome.awaited.add(queue_id)
    return {row[3] for row in rows if row[3] is not None}


def _fail(
    queue_id: int, changes: Sequence[Change], done: dict[int, Settled], outcome: Outcome, slot: int | None
) -> Steps[set[str]]:
    yield Ask("make_letters", letters_params(queue_id))
    rows = yield Ask(
        "fail",
        {
            **_keys(queue_id, changes),
            "reasons": ["rejected" if change.kind == "reject" else "failed" for change in changes],
            "errors": [change.error for change in changes],
            "slot": slot,
        },
    )
    known = {change.id: change.message for change in changes}
    for id, _, _, attempts, _, _, letters, awaited, _ in rows:
        done[id] = Settled(State.FAILED, None, attempts, known[id].max_attempts)
        if awaited:
            outcome.awaited.add(letters)
    return {row[8] for row in rows if row[8] is not None}


def _extend(queue_id: int, changes: Sequence[Change], done: dict[int, Settled]) -> Steps[None]:
    lengths = [change.length for change in changes]
    rows = yield Ask("extend", {**_keys(queue_id, changes), "lengths": lengths})
    known = {change.id: change.message for change in changes}
    for id, expires in rows:
        message = known[id]
        lease = replace(message.lease, expires_at_ms=expires)
        done[id] = Settled(State.IN_FLIGHT, lease, message.attempt, message.max_attempts, expires)


def _stale(change: Change) -> StaleLease:
    return StaleLease(
        f"the lease on message {change.message.id!r} is not current: it was settled, or ran out and went to another "
        "worker; drop this piece of work"
    )


def _after_doubt(queue_id: int, changes: Sequence[Change], outcome: Outcome) -> Steps[None]:
    """Tell a lost answer from a lost race: a lease that ended just so, under its own version, was ended by us."""
    ids = [change.id for change, answer in zip(changes, outcome.answers, strict=True) if isinstance(answer, StaleLease)]
    if not ids:
        return
    rows = yield Ask("find_ended", {"queue": queue_id, "ids": ids})
    found = {row[0]: row for row in rows}
    taken: set[int] = set()
    for place, change in enumerate(changes):
        row = found.get(change.id)
        if row is None or change.id in taken or not isinstance(outcome.answers[place], StaleLease):
            continue
        state = _ended(change, row)
        if state is not None:
            taken.add(change.id)
            outcome.answers[place] = Settled(state, None, row[3], change.message.max_attempts)


def _ended(change: Change, row: Row) -> State | None:
    _, version, ended, _, log = row
    mine = change.message.lease.version
    if ended is not None and version == mine:
        if (change.kind == "ack") == (ended == "processed") and change.kind in _ENDS:
            return State.SUCCEEDED if change.kind == "ack" else State.FAILED
        return None
    entries: list[dict[str, Any]] = [] if log is None else msgspec.json.decode(log)
    if any(entry["version"] == mine and entry["how"] == _ENDS.get(change.kind) for entry in entries):
        return State.READY
    return None
