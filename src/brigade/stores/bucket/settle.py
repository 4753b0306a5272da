"""Settle: end or change leases, many in one swap. The token is the fence, not the clock."""

from __future__ import annotations

from collections.abc import Sequence
from sys import byteorder

import msgspec

from brigade.blobs import Refused, Swap
from brigade.clock import FOREVER
from brigade.errors import StaleLease
from brigade.machine import State
from brigade.stores.bucket.accounts import Account, after_loss, commit, note, open_account
from brigade.stores.bucket.book import LEASED, READY, Book, Rules, state_of
from brigade.stores.bucket.history import Record, ended_since
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.moves import complete_moves
from brigade.stores.bucket.past import log_of
from brigade.stores.bucket.plain import acked
from brigade.stores.bucket.steps import Env, Lost, Proto, after_refusal
from brigade.stores.bucket.view import KnownLedger, QueueView
from brigade.stores.bucket.wire import LEDGER

__all__ = ["Answers", "Change", "Settled", "ack_one", "settle"]

_ENDS = {"ack": "acked", "nack": "nacked", "release": "released"}


class Change(msgspec.Struct, frozen=True):
    """One settlement of messages held under one token. `at` is the new expiry or due time."""

    kind: str
    places: list[int]
    token: str
    version: int
    at: int = 0
    error: str | None = None
    reject: bool = False
    result: bytes | None = None


class Settled(msgspec.Struct, frozen=True, gc=False):
    """What became of a settlement: the version and expiry after it, and how the message stands."""

    status: State
    version: int
    expires: int
    owner: str
    attempts: int
    max_attempts: int


Answers = list[Settled | StaleLease]
"""One for each place of a change."""


def settle(
    env: Env, view: QueueView, name: SegmentName, changes: Sequence[Change], *, tried: bool = False
) -> Proto[list[Answers]]:
    """Apply the changes to one segment's account in one swap; one list of answers for each change, in order.

    `tried` says that they may have been applied before: a lease that ended just so was ended by us.
    """
    if len(changes) == 1 and not tried:
        one = yield from ack_one(env, view, name, changes[0])
        if one is not None:
            return [one]
    fresh = view.crowded and not _alone(view, name, changes)
    account = yield from open_account(env, view, name, cached=not fresh)
    while True:
        if account is None:
            return (yield from _after_the_end(env, view, name, changes, tried))
        book = Book(account.ledger)
        answers = _apply(env, view, name, book, changes, tried)
        stale = any(isinstance(answer, StaleLease) for several in answers for answer in several)
        if stale and not fresh:
            account = yield from open_account(env, view, name, cached=False)
            fresh = True
            continue
        if stale and tried:
            yield from _ask_history(env, view, name, book, changes, answers)
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


def ack_one(env: Env, view: QueueView, name: SegmentName, change: Change) -> Proto[Answers | None]:
    """Ack the only message of a segment, where that is all there is to do. None: nothing was done."""
    known = view.ledgers.get(name)
    if known is None or known.ledger is None or known.etag is None or change.kind != "ack" or change.places != [0]:
        return None
    if change.result is not None or name.size != 1:
        return None
    done = acked(known.ledger, change.token, env.ids.nonce(), env.now())
    if done is None:
        return None
    final, row = done
    swap = Swap(view.keys.ledger(name), LEDGER.encode(final), known.etag)
    answer: str | Refused | Lost = yield swap
    if isinstance(answer, Refused):
        answer = yield from after_refusal(env, swap, answer)
    if isinstance(answer, Lost):
        view.ledgers.pop(name, None)
        return (yield from settle(env, view, name, [change], tried=True))[0]
    view.ledgers[name] = KnownLedger(answer, final, FOREVER)
    note(view, name, final, ours=True)
    attempts = int.from_bytes(final.attempts, byteorder)
    return [Settled(State.SUCCEEDED, row.version, 0, row.owner, attempts, view.policy.failure.max_attempts)]


def _alone(view: QueueView, name: SegmentName, changes: Sequence[Change]) -> bool:
    """Whether all that is left in a segment is held by those who settle now: nobody else has a reason to write."""
    known = view.ledgers.get(name)
    if known is None or known.ledger is None or READY in known.ledger.states:
        return False
    book, tokens = Book(known.ledger), {change.token for change in changes}
    return all(
        book.grants[book.leases[place]].token in tokens for place, state in enumerate(book.states) if state == LEASED
    )


def _apply(
    env: Env, view: QueueView, name: SegmentName, book: Book, changes: Sequence[Change], tried: bool
) -> list[Answers]:
    """Make every change that its token allows. Extensions and acks are made last, all together."""
    now, rules = env.now(), view.rules(name)
    acked: dict[int, None] = {}
    extended: dict[int, list[int]] = {}
    answers: list[Answers] = []
    for change in changes:
        alike = _whole_grant(book, change, rules) if not acked else None
        if alike is not None:
            acked.update(dict.fromkeys(change.places))
            answers.append([alike] * len(change.places))
            continue
        several: Answers = []
        same: Settled | None = None
        for place in change.places:
            if place >= len(book.states) or place in acked or not book.holds(place, change.token):
                several.append(_refused(book, name, change, place, tried))
                continue
            row = book.grants[book.leases[place]]
            attempts, limit = book.attempts[place], book.max_attempts(place, rules)
            status, expires = State.IN_FLIGHT, 0
            if change.kind == "ack":
                acked[place] = None
                status = State.SUCCEEDED
                if change.result is not None:
                    book.results[place] = change.result
            elif change.kind == "nack":
                status = book.nack(place, now=now, due=change.at, error=change.error, reject=change.reject, rules=rules)
            elif change.kind == "release":
                status = book.give_back(place, now=now, due=change.at, error=change.error)
            else:
                extended.setdefault(change.at, []).append(place)
                expires = change.at
            if same is None or same.attempts != attempts or same.max_attempts != limit or same.status is not status:
                same = Settled(status, row.version, expires, row.owner, attempts, limit)
            several.append(same)
        answers.append(several)
    for expires, places in extended.items():
        book.extend([place for place in places if place not in acked and book.states[place] == LEASED], expires)
    if acked:
        book.ack(list(acked), now)
    return answers


def _whole_grant(book: Book, change: Change, rules: Rules) -> Settled | None:
    """The one answer to a plain ack of many messages of one grant, seen without looking at each; else None."""
    places = change.places
    if change.kind != "ack" or change.result is not None or book.specs is not None or len(places) < 8:
        return None
    rows = set(map(book.leases.__getitem__, places)) if max(places) < len(book.states) else set[int]()
    attempts = set(map(book.attempts.__getitem__, places)) if rows else set[int]()
    if len(rows) != 1 or len(attempts) != 1 or len(set(places)) != len(places):
        return None
    row = book.grants[rows.pop()]
    if row.token != change.token or set(map(book.states.__getitem__, places)) != {LEASED}:
        return None
    return Settled(State.SUCCEEDED, row.version, 0, row.owner, attempts.pop(), rules.max_attempts)


def _refused(book: Book, name: SegmentName, change: Change, place: int, tried: bool) -> Settled | StaleLease:
    """The token is not current: stale, unless a write of ours that was in doubt had ended the lease just so."""
    how = _ENDS.get(change.kind)
    if tried and how and place < len(book.states) and book.ended_by(place, change.token, how):
        return _done(state_of(book.states[place]), change, book.attempts[place])
    return _stale(name, place)


def _stale(name: SegmentName, place: int) -> StaleLease:
    return StaleLease(
        f"the lease on message {name}-{place} is not current: it was settled, or ran out and went to another worker; "
        "drop this piece of work"
    )


def _after_the_end(
    env: Env, view: QueueView, name: SegmentName, changes: Sequence[Change], tried: bool
) -> Proto[list[Answers]]:
    """The account is gone: the segment has ended. If a write of ours was in doubt, history tells whose it was."""
    if not tried:
        return [[_stale(name, place) for place in change.places] for change in changes]
    refs = {f"{name}-{place}" for change in changes for place in change.places}
    ended = yield from ended_since(env, view.keys, refs, name.due)
    return [
        [_from_history(name, change, place, ended.get(f"{name}-{place}")) for place in change.places]
        for change in changes
    ]


def _ask_history(
    env: Env, view: QueueView, name: SegmentName, book: Book, changes: Sequence[Change], answers: list[Answers]
) -> Proto[None]:
    """An account that doesn't know a token may be one that a late claimer made when the segment was over already.

    Then a write of ours that was in doubt is in history, or it was never applied.
    """
    known = {grant.token for grant in log_of(book).grants}
    unknown = [place for place, change in enumerate(changes) if change.token not in known]
    if unknown:
        told = yield from _after_the_end(env, view, name, [changes[place] for place in unknown], True)
        for place, several in zip(unknown, told, strict=True):
            answers[place] = several


def _from_history(name: SegmentName, change: Change, place: int, record: Record | None) -> Settled | StaleLease:
    how = (change.version, _ENDS.get(change.kind))
    if record is None or not any((attempt.version, attempt.how) == how for attempt in record.attempts):
        return _stale(name, place)
    return _done(State.SUCCEEDED if record.outcome == "processed" else State.FAILED, change, record.counted)


def _done(state: State, change: Change, attempts: int) -> Settled:
    return Settled(state, change.version, 0, "", attempts, 0)
