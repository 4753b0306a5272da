"""Settle: end or change leases, many in one swap. The token is the fence, not the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brigade.errors import StaleLease
from brigade.machine import State
from brigade.stores.bucket.accounts import Account, after_loss, commit, open_account
from brigade.stores.bucket.book import Book, state_of
from brigade.stores.bucket.history import ended_since
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.moves import complete_moves
from brigade.stores.bucket.steps import Env, Proto
from brigade.stores.bucket.view import QueueView

__all__ = ["Change", "Settled", "settle"]

_ENDS = {"ack": "acked", "nack": "nacked", "release": "released"}


@dataclass(frozen=True, slots=True)
class Change:
    """One settlement of one message. `at` is the new expiry or due time."""

    kind: str
    place: int
    token: str
    version: int
    at: int = 0
    error: str | None = None
    reject: bool = False
    result: bytes | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a settlement: the version and expiry after it, and how the message stands."""

    status: State
    version: int
    expires: int
    owner: str
    attempts: int
    max_attempts: int


def settle(env: Env, view: QueueView, name: SegmentName, changes: Sequence[Change]) -> Proto[list[Settled | StaleLease]]:
    """Apply the changes to one segment's account in one swap; one answer each, in order."""
    account = yield from open_account(env, view, name)
    tried = fresh = False
    while True:
        if account is None:
            return (yield from _after_the_end(env, view, name, changes, tried))
        book = Book(account.ledger)
        answers = _apply(env, view, name, book, changes, tried)
        stale = any(isinstance(answer, StaleLease) for answer in answers)
        if stale and not fresh:
            account = yield from open_account(env, view, name, cached=False)
            fresh = True
            continue
        if not book.changed:
            return answers
        book.finalize()
        outcome = yield from commit(env, view, account, book)
        if isinstance(outcome, Account):
            if view.unmoved:
                yield from complete_moves(env, view)
            return answers
        tried = fresh = True
        account = yield from after_loss(env, view, name, outcome)


def _apply(
    env: Env, view: QueueView, name: SegmentName, book: Book, changes: Sequence[Change], tried: bool
) -> list[Settled | StaleLease]:
    now, rules = env.now(), view.rules(name)
    answers: list[Settled | StaleLease] = []
    acked: list[int] = []
    extended: dict[int, list[int]] = {}
    touched: set[int] = set()
    for change in changes:
        place = change.place
        if place >= len(book.states) or place in touched or not book.holds(place, change.token):
            how = _ENDS.get(change.kind)
            if tried and how and place < len(book.states) and book.ended_by(place, change.token, how):
                answers.append(_done(state_of(book.states[place]), change, book.attempts[place]))
            else:
                answers.append(_stale(name, place))
            continue
        row = book.grants[book.leases[place]]
        attempts, limit = book.attempts[place], book.max_attempts(place, rules)
        status, expires = State.IN_FLIGHT, 0
        match change.kind:
            case "ack":
                acked.append(place)
                touched.add(place)
                status = State.SUCCEEDED
                if change.result is not None:
                    book.results[place] = change.result
            case "nack":
                touched.add(place)
                status = book.nack(
                    place, now=now, due=change.at, error=change.error, reject=change.reject, rules=rules
                )
            case "release":
                touched.add(place)
                book.give_back(place, now=now, due=change.at, error=change.error)
                status = State.READY
            case _:
                extended.setdefault(change.at, []).append(place)
                expires = change.at
        answers.append(Settled(status, row.version, expires, row.owner, attempts, limit))
    for expires, places in extended.items():
        book.extend([place for place in places if place not in touched], expires)
    if acked:
        book.ack(acked, now)
    return answers


def _stale(name: SegmentName, place: int) -> StaleLease:
    return StaleLease(
        f"the lease on message {name}-{place} is not current: it was settled, or ran out and went to another worker; "
        "drop this piece of work"
    )


def _after_the_end(
    env: Env, view: QueueView, name: SegmentName, changes: Sequence[Change], tried: bool
) -> Proto[list[Settled | StaleLease]]:
    """The account is gone: the segment has ended. If a write of ours was in doubt, history tells whose it was."""
    answers: list[Settled | StaleLease] = [_stale(name, change.place) for change in changes]
    if not tried:
        return answers
    refs = {f"{name}-{change.place}" for change in changes}
    ended = yield from ended_since(env, view.keys, refs, name.due)
    for index, change in enumerate(changes):
        record = ended.get(f"{name}-{change.place}")
        if record is None or change.kind not in _ENDS:
            continue
        how = (change.version, _ENDS[change.kind])
        if any((attempt.version, attempt.how) == how for attempt in record.attempts):
            state = State.SUCCEEDED if record.outcome == "processed" else State.FAILED
            answers[index] = _done(state, change, record.counted)
    return answers


def _done(state: State, change: Change, attempts: int) -> Settled:
    return Settled(state, change.version, 0, "", attempts, 0)
