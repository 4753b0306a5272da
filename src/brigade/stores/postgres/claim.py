"""Claim: ready messages, leases that ran out, and heads of lanes. What has failed meanwhile is decided on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from brigade.clock import FOREVER
from brigade.errors import QueueNotFound
from brigade.stores import Failed
from brigade.stores.postgres.queues import letters_params
from brigade.stores.postgres.steps import Ask, Row, Rows, Steps
from brigade.stores.postgres.wire import told_id

__all__ = ["Outlook", "Taking", "Won", "claim_lanes", "claim_ready", "decide", "look", "shares", "take_over"]

MOST_DECIDED = 1000
LOWEST = [0] * 10


@dataclass(frozen=True, slots=True)
class Taking:
    """Who claims, where, and for how long."""

    queue: str
    queue_id: int
    lifo: bool
    token: str
    owner: str
    lease: int

    def params(self, **more: Any) -> dict[str, Any]:
        return {"queue": self.queue_id, "token": self.token, "owner": self.owner, "lease": self.lease, **more}


@dataclass(slots=True)
class Won:
    """What a claim took: rows of messages, which of them a lease had run out on, and what failed on the way.

    `next_at` is when there may be more, by the clock of this process.
    """

    rows: list[Row] = field(default_factory=list[Row])
    recovered: set[int] = field(default_factory=set[int])
    failures: list[Failed] = field(default_factory=list[Failed])
    awaited: set[int] = field(default_factory=set[int])
    next_at: float | None = None

    def add(self, other: Won) -> None:
        self.rows += other.rows
        self.recovered |= other.recovered
        self.failures += other.failures
        self.awaited |= other.awaited


@dataclass(frozen=True, slots=True)
class Outlook:
    """How a queue stood: what is overdue, and the next moment at which something may be claimed or decided."""

    now: int
    paused: bool
    has_lanes: bool
    expiry: int
    lapse: int
    due: int
    lane: int

    @property
    def overdue(self) -> bool:
        return min(self.expiry, self.lapse) <= self.now

    @property
    def soonest(self) -> int:
        return min(self.expiry, self.lapse, self.due, self.lane)


def look(queue: str, queue_id: int, since: int = FOREVER) -> Steps[Outlook]:
    """What is overdue and what comes next: of messages in no lane, the first to be due after `since`, or after now.

    Where ready messages were asked for before, `since` is a moment before that: what came due in between is reported.
    """
    rows = yield Ask("outlook", {"queue": queue_id, "since": since})
    if not rows:
        raise QueueNotFound(f"queue {queue!r} does not exist; hub.queue({queue!r}) creates it")
    now, paused, has_lanes, *times = rows[0]
    return Outlook(now, paused, has_lanes, *(FOREVER if time is None else time for time in times))


def claim_ready(taking: Taking, limit: int, low: Sequence[int] = LOWEST) -> Steps[Rows]:
    """Ready messages in no lane."""
    return (yield Ask("claim_ready", taking.params(limit=limit, low=list(low)), taking.lifo))


def shares(taking: Taking, limit: int) -> Steps[tuple[int, int]]:
    """How many of the next `limit` messages are heads of lanes, and how many are in no lane."""
    rows = yield Ask("shares", {"queue": taking.queue_id, "limit": limit}, taking.lifo)
    return rows[0][0], rows[0][1]


def take_over(taking: Taking, limit: int) -> Steps[Won]:
    """Messages whose lease ran out; those that are spent, and those that lapsed, fail. Needs a transaction."""
    won = yield from decide(taking.queue, taking.queue_id)
    if limit:
        won.rows += yield Ask("claim_expired", taking.params(limit=limit))
        won.recovered = {row[0] for row in won.rows}
    return won


def decide(queue: str, queue_id: int) -> Steps[Won]:
    """Fail what has failed in no lane with nobody there to say so."""
    won = Won()
    while True:
        doomed = yield Ask("find_doomed", {"queue": queue_id, "limit": MOST_DECIDED})
        if not doomed:
            return won
        before = len(won.failures)
        yield from _fail(queue, queue_id, [(row[0], row[1]) for row in doomed], won)
        if len(won.failures) == before or len(doomed) < MOST_DECIDED:
            return won


def claim_lanes(taking: Taking, lanes: int, *, lease: bool = True) -> Steps[Won]:
    """Lease the heads of up to so many lanes; heads that are spent or lapsed fail. Needs a transaction."""
    won, queue_id = Won(), taking.queue_id
    wanted = {"queue": queue_id, "limit": lanes, "paused": not lease}
    picked = [row[0] for row in (yield Ask("pick_lanes", wanted, taking.lifo))]
    if not picked:
        return won
    open_lanes: list[str] = list(picked)
    ids: list[int] = []
    while open_lanes:
        heads = yield Ask("heads", {"queue": queue_id, "lanes": open_lanes}, taking.lifo)
        doomed: list[tuple[int, str]] = []
        open_lanes = []
        for lane, id, verdict in heads:
            if verdict in ("claim", "recover"):
                ids.append(id)
                if verdict == "recover":
                    won.recovered.add(id)
            elif verdict != "wait":
                doomed.append((id, verdict))
                open_lanes.append(lane)
        if doomed:
            yield from _fail(taking.queue, queue_id, doomed, won)
    if ids and lease:
        won.rows += yield Ask("claim_these", taking.params(ids=ids))
    seated = yield Ask("seat_lanes", {"queue": queue_id, "lanes": picked}, taking.lifo)
    if seated and seated[0][0]:
        won.awaited.add(queue_id)
    return won


def _fail(queue: str, queue_id: int, doomed: Sequence[tuple[int, str]], won: Won) -> Steps[None]:
    yield Ask("make_letters", letters_params(queue_id))
    rows = yield Ask(
        "fail",
        {
            "queue": queue_id,
            "ids": [id for id, _ in doomed],
            "tokens": [None] * len(doomed),
            "reasons": [reason for _, reason in doomed],
            "errors": [None] * len(doomed),
            "slot": None,
        },
    )
    for id, own_id, correlation, attempts, reason, _, letters, awaited, _ in rows:
        name = told_id(queue_id, id, own_id)
        status = "failed" if letters is None else "dead-lettered"
        won.failures.append(Failed(queue, name, status, reason, attempts, correlation or name))
        if awaited and letters is not None:
            won.awaited.add(letters)
