"""Failures on their way: to a dead-letter queue, or to the parked ones. Decided first, moved second.

The fenced swap that ended the lease recorded the move. Whoever sees it undone makes the copy, create-only and
under a name that derives from the segment and the move's number, then swaps in that it is done. A copy made
before the decision could dead-letter a message that somebody else is about to finish. A derived name stays
taken for an hour after its segment has ended, so that a slow mover cannot make the copy a second time.
"""

from __future__ import annotations

import contextlib

from brigade.blobs import Create, Swap
from brigade.errors import CorruptObject, StoreUnavailable
from brigade.model import FailureInfo
from brigade.stores.bucket.accounts import after_loss, commit, open_account, read_segment
from brigade.stores.bucket.admin import default_policy_body
from brigade.stores.bucket.book import Book
from brigade.stores.bucket.enqueue import give_up_late
from brigade.stores.bucket.keys import QueueKeys, SegmentName
from brigade.stores.bucket.lanes import drop_orphan
from brigade.stores.bucket.steps import Env, Lost, Proto, copy, get, passing_over, read, side_by_side, write
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import PARKED, SEGMENT, STATE, Entry, Ledger, Move, Parked, Segment, StateDoc

__all__ = ["complete_moves", "copy_state"]


def complete_moves(env: Env, view: QueueView) -> Proto[None]:
    """Carry out every undone move that this process has seen. What can't be done now, a sweeper does later."""
    for name in list(view.unmoved):
        with contextlib.suppress(StoreUnavailable):
            yield from passing_over(env.unreadable, _complete(env, view, name))
            view.unmoved.pop(name, None)


def _complete(env: Env, view: QueueView, name: SegmentName) -> Proto[None]:
    """As with a delivery, the segment is read after the decision was stored: where it is gone, so is the message."""
    account = yield from open_account(env, view, name)
    while account is not None:
        book = Book(account.ledger)
        undone = book.unmoved()
        if not undone:
            if not book.finalize():
                return
        else:
            started = env.clock.monotonic()
            entries = yield from read_segment(env, view, name)
            if entries is None:
                yield from drop_orphan(env, view, name)
                return
            view.keep_entries(name, account.ledger.born, entries)
            yield from side_by_side(
                [_copy_out(env, view, name, number, account.ledger, entries, started) for number in undone]
            )
            book.moved(undone)
            book.finalize()
        if not book.changed:
            return
        answer = yield from commit(env, view, account, book)
        if not isinstance(answer, Lost):
            return
        account = yield from after_loss(env, view, name, answer)


def _copy_out(
    env: Env,
    view: QueueView,
    name: SegmentName,
    number: int,
    ledger: Ledger,
    entries: list[Entry | None],
    started: float,
) -> Proto[None]:
    move = ledger.moves[number]
    copies = [_failed_entry(view.keys.queue, name, place, move, ledger, entries) for place in move.members]
    refs = [f"{name}-{place}" for place in move.members]
    if move.target is None:
        parked = Parked(env.ids.nonce(), refs, list(copies))
        apart = [ref for ref, entry in zip(refs, copies, strict=True) if entry.payload is None]
        yield from side_by_side([copy(view.keys.blob(ref), view.keys.blob(f"failed/{ref}")) for ref in apart])
        key = view.keys.parked(name, number)
        give_up_late(env, started)
        yield from write(env, Create(key, PARKED.encode(parked)))
        return
    target = QueueKeys(move.target)
    yield from _ensure_queue(env, target)
    by_priority: dict[int, list[int]] = {}
    for place, entry in enumerate(copies):
        by_priority.setdefault(entry.priority, []).append(place)
    for priority, places in by_priority.items():
        made = SegmentName.derive(
            "dead",
            view.keys.queue,
            str(name),
            str(number),
            at=move.at,
            priority=priority,
            lane="",
            size=len(places),
        )
        yield from side_by_side(
            [
                _copy_extras(env, view.keys, target, refs[place], f"{made}-{index}", copies[place])
                for index, place in enumerate(places)
            ]
        )
        give_up_late(env, started)
        body = SEGMENT.encode(
            Segment(env.ids.nonce(), [copies[place] for place in places], source=view.keys.segment(name))
        )
        yield from write(env, Create(target.segment(made), body))


def _failed_entry(
    queue: str, name: SegmentName, place: int, move: Move, ledger: Ledger, entries: list[Entry | None]
) -> Entry:
    entry = entries[place]
    assert entry is not None
    reason, error = ledger.reasons.get(place, ("failed", None))
    ref = f"{name}-{place}"
    info = FailureInfo(
        queue=queue,
        id=entry.own_id or ref,
        reason=reason,
        error=error,
        attempts=memoryview(ledger.attempts).cast("H")[place],
        failed_at_ms=move.at,
        enqueued_at_ms=entry.enqueued,
        priority=entry.priority,
        ttl_ms=entry.ttl,
        max_attempts=entry.max_attempts,
        own_id=entry.own_id,
    )
    return Entry(
        entry.payload,
        entry.size,
        move.at,
        entry.content_type,
        entry.correlation or entry.own_id or ref,
        entry.attributes,
        entry.group,
        failure=info,
        priority=entry.priority,
        checksum=entry.checksum,
    )


def _copy_extras(env: Env, source: QueueKeys, target: QueueKeys, ref: str, new_ref: str, entry: Entry) -> Proto[None]:
    """A dead letter takes its large payload and its workflow state along."""
    if entry.payload is None:
        yield from copy(source.blob(ref), target.blob(new_ref))
    yield from copy_state(env, source, target, ref, new_ref, entry.correlation)


def copy_state(
    env: Env, source: QueueKeys, target: QueueKeys, ref: str, new_ref: str, correlation: str | None
) -> Proto[None]:
    """Workflow state goes along. Damaged state stays behind, set aside: it must not hold its message up.

    What one who stopped half-way has left there is written anew, unchanged, so that no sweeper takes it for a leftover.
    """
    try:
        found = yield from read(env, STATE, source.state(ref))
        if found is None:
            return
        key = target.state(new_ref)
        fresh = StateDoc(env.ids.nonce(), found[0].value, correlation)
        answer = yield from write(env, Create(key, STATE.encode(fresh)))
        if isinstance(answer, Lost) and answer.current is not None:
            there = STATE.decode(answer.current.body, key=key)
            again = StateDoc(env.ids.nonce(), there.value, there.correlation)
            yield from write(env, Swap(key, STATE.encode(again), answer.current.etag))
    except CorruptObject:
        return


def _ensure_queue(env: Env, target: QueueKeys) -> Proto[None]:
    """A dead-letter queue that nobody has made yet comes to be with the default policy."""
    found = yield from get(target.policy)
    if found is None:
        yield from write(env, Create(target.policy, default_policy_body(env, target)))
