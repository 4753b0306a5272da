"""What operators decide over single messages. Every decision is a swap of the account, so that one who claims or
settles at the same time and the operator have one winner.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from brigade.blobs import Swap
from brigade.errors import MessageNotFound
from brigade.stores.bucket.accounts import Account, after_loss, commit, create_account, open_account, read_segment
from brigade.stores.bucket.book import LEASED, Book
from brigade.stores.bucket.inspect import locate, read_parked
from brigade.stores.bucket.keys import SegmentName, parse_message_ref
from brigade.stores.bucket.specs import specs_of
from brigade.stores.bucket.steps import Env, Lost, Proto, delete, list_all, read, reread, side_by_side, write
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import PARKED, Parked
from brigade.stores.operating import Action

__all__ = ["TAKEN_BACK", "override"]

TAKEN_BACK = "taken back by an operator"


def override(env: Env, view: QueueView, ids: Sequence[str], action: Action) -> Proto[tuple[int, list[SegmentName]]]:
    """Carry a decision out; how many messages it changed, and the segments that may have something to claim now."""
    by_name: dict[SegmentName, set[int]] = {}
    for one in ids:
        found = parse_message_ref(one)
        if found is None:
            try:
                found = yield from locate(env, view, one)
            except MessageNotFound:
                continue
        by_name.setdefault(found[0], set()).add(found[1])
    counts = yield from side_by_side([_segment(env, view, name, by_name[name], action) for name in by_name])
    total = sum(counts)
    if action == "discard" and total < len(ids):
        total += yield from _discard_parked(env, view, frozenset(ids))
    view.stale()
    return total, [name for name, count in zip(by_name, counts, strict=True) if count and action != "discard"]


def _segment(env: Env, view: QueueView, name: SegmentName, places: AbstractSet[int], action: Action) -> Proto[int]:
    account = yield from open_account(env, view, name, cached=False)
    if account is None:
        if name.lane or action != "discard":
            return 0
        entries = yield from read_segment(env, view, name)
        if entries is None:
            return 0
        book = Book.fresh(name.size, specs_of(entries))
        count = _decide(env, book, places, action)
        book.finalize()
        answer = yield from create_account(env, view, name, book)
        if not isinstance(answer, Lost):
            return count
        account = yield from after_loss(env, view, name, answer)
    while account is not None:
        book = Book(account.ledger)
        count = _decide(env, book, places, action)
        if not book.changed:
            return 0
        book.finalize()
        done: Account | Lost = yield from commit(env, view, account, book)
        if not isinstance(done, Lost):
            return count
        account = yield from after_loss(env, view, name, done)
    return 0


def _decide(env: Env, book: Book, places: AbstractSet[int], action: Action) -> int:
    now, count = env.now(), 0
    for place in sorted(places):
        if action == "discard":
            count += book.drop(place)
        elif action == "hasten":
            count += book.hasten(place, now)
        elif book.states[place] == LEASED:
            book.give_back(place, now=now, due=now, error=TAKEN_BACK)
            count += 1
    return count


def _discard_parked(env: Env, view: QueueView, ids: AbstractSet[str]) -> Proto[int]:
    items = yield from list_all(view.keys.failed)
    counts = yield from side_by_side([_discard_from(env, view, item.key, ids) for item in items])
    return sum(counts)


def _discard_from(env: Env, view: QueueView, key: str, ids: AbstractSet[str]) -> Proto[int]:
    seen = yield from read_parked(env, key)
    found = (yield from read(env, PARKED, key)) if seen is not None and _chosen(seen, ids) else None
    while found is not None:
        parked, etag = found
        chosen = _chosen(parked, ids)
        if not chosen:
            return 0
        kept = [None if place in chosen else entry for place, entry in enumerate(parked.entries)]
        answer = yield from write(
            env, Swap(key, PARKED.encode(Parked(env.ids.nonce(), parked.refs, kept, parked.moving)), etag)
        )
        if not isinstance(answer, Lost):
            apart = [
                view.keys.blob(f"failed/{parked.refs[place]}")
                for place in chosen
                if (entry := parked.entries[place]) is not None and entry.payload is None
            ]
            if apart:
                yield from delete(apart)
            return len(chosen)
        found = yield from reread(env, PARKED, key, answer.current)
    return 0


def _chosen(parked: Parked, ids: AbstractSet[str]) -> set[int]:
    return {
        place
        for place, entry in enumerate(parked.entries)
        if entry is not None
        and entry.failure is not None
        and place not in parked.moving
        and (entry.failure.id in ids or parked.refs[place] in ids)
    }
