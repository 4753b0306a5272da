"""Strict order: only the head of a lane can be leased, and it blocks the rest until it has ended."""

from __future__ import annotations

from collections.abc import Sequence

from brigade.blobs import UNKNOWN, UNSUPPORTED, DeleteIf, Swap
from brigade.clock import FOREVER
from brigade.errors import StoreUnavailable
from brigade.model import Grant
from brigade.stores.bucket.accounts import note, note_failures, read_lane, remember_lane, with_ledger
from brigade.stores.bucket.book import LEASED, READY, Book, Won, places_in
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.steps import MOST_TRIES, Env, Lost, Proto, Sleep, delete, passing_over, side_by_side, write
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import LANE, Lane, LaneEntry, Ledger

__all__ = [
    "Urgency",
    "claim_head",
    "decide_head",
    "drop_from_lane",
    "drop_orphan",
    "head_of",
    "make_grant",
    "open_lanes",
]

WIDTH = 16
Urgency = tuple[int, int]


def open_lanes(env: Env, view: QueueView) -> Proto[list[tuple[Urgency, str]]]:
    """Lanes that may have something to give, the most urgent and the oldest first."""
    now = env.now()
    names = [lane for lane, known in view.lanes.items() if known.next_at <= now]
    unread = [lane for lane in names if view.lanes[lane].lane is None]
    yield from side_by_side([passing_over([], read_lane(env, view, lane)) for lane in unread], WIDTH)
    return sorted((_urgency(view.lanes[lane].lane), lane) for lane in names if lane in view.lanes)


def _urgency(lane: Lane | None) -> Urgency:
    """Priority and order of a lane's head, to compare with segments that are in no lane."""
    for entry in () if lane is None else reversed(lane.entries) if lane.lifo else lane.entries:
        name = SegmentName.parse(entry.segment)
        if name is not None and not (entry.ledger and entry.ledger.final):
            return entry.priority, name.order
    return 10, 0


def head_of(lane: Lane) -> tuple[LaneEntry, Ledger, int] | None:
    """The one message that may be leased next: the first, in the lane's order, that has not ended."""
    for entry in reversed(lane.entries) if lane.lifo else lane.entries:
        name = SegmentName.parse(entry.segment)
        if name is None:
            continue
        ledger = entry.ledger or Book.fresh(name.size, entry.specs).close("")
        place = _first_open(ledger.states, lane.lifo)
        if place is not None:
            return entry, ledger, place
    return None


def _first_open(states: bytes, lifo: bool) -> int | None:
    """The first message, or the last, that has not ended."""
    found = [states.rfind(code) if lifo else states.find(code) for code in (READY, LEASED)]
    return (max if lifo else min)((place for place in found if place >= 0), default=None)


def _leased_until(lane: Lane) -> int:
    """When the last live lease in the lane runs out; 0 where nothing is leased."""
    until = 0
    for entry in lane.entries:
        if entry.ledger is None or LEASED not in entry.ledger.states:
            continue
        rows = memoryview(entry.ledger.leases).cast("H")
        for place in places_in(entry.ledger.states, LEASED):
            until = max(until, entry.ledger.grants[rows[place]].expires)
    return until


def decide_head(env: Env, view: QueueView, lane_name: str) -> Proto[None]:
    """End heads that are spent or have lapsed, without leasing any."""
    yield from claim_head(env, view, lane_name, "", 0, limit=0)


def claim_head(
    env: Env, view: QueueView, lane_name: str, owner: str, lease: int, limit: int = 1
) -> Proto[Grant | None]:
    """Lease the one message that may be leased; None where the lane is empty, blocked or not due."""
    key = view.keys.lane(lane_name)
    known = view.lanes.get(lane_name)
    current = (known.lane, known.etag) if known and known.lane is not None and known.etag else None
    if current is None:
        current = yield from read_lane(env, view, lane_name)
    token = env.ids.token()
    while current is not None:
        lane, etag = current
        mine = _granted(lane, token)
        if mine is not None:
            return make_grant(view, *mine)
        books, won, next_at = _decide(env, view, lane, owner=owner, token=token, lease=lease, limit=limit)
        if not books:
            view.lanes[lane_name].next_at = next_at
            return None
        changed = {segment: book.close(env.ids.nonce()) for segment, book in books.items()}
        lane = with_ledger(lane, changed, env.ids.nonce())
        answer = yield from write(env, Swap(key, LANE.encode(lane), etag))
        if isinstance(answer, Lost):
            current = yield from read_lane(env, view, lane_name, answer.current)
            if current is None:
                view.lanes.pop(lane_name, None)
            continue
        remember_lane(view, lane_name, lane, answer)
        for segment, ledger in changed.items():
            name = SegmentName.parse(segment)
            if name is not None:
                note(view, name, ledger, ours=True)
                note_failures(view, name, books[segment])
        if won is None:
            return None
        view.lanes[lane_name].next_at = won[1].row.expires
        return make_grant(view, *won, changed[str(won[0])].born)
    return None


def _decide(
    env: Env, view: QueueView, lane: Lane, *, owner: str, token: str, lease: int, limit: int
) -> tuple[dict[str, Book], tuple[SegmentName, Won] | None, int]:
    """Lease the head, after ending heads that are spent or lapsed: changed accounts, what was won, next look."""
    books: dict[str, Book] = {}
    now = env.now()
    until = _leased_until(lane)
    if until > now:
        return books, None, until
    while True:
        head = head_of(with_ledger(lane, {segment: book.close("") for segment, book in books.items()}, ""))
        if head is None:
            return books, None, FOREVER
        entry, ledger, place = head
        name = SegmentName.parse(entry.segment)
        assert name is not None
        book = books.get(entry.segment) or Book(ledger)
        book.changed = False
        won = book.claim(
            limit=limit,
            now=now,
            expires=now + lease,
            token=token,
            owner=owner,
            rules=view.rules(name),
            only=(place,),
        )
        if not book.changed:
            return books, None, max(book.due_at(place), now + 1)
        book.finalize()
        books[entry.segment] = book
        if won is not None:
            return books, (name, won), won.row.expires


def _granted(lane: Lane, token: str) -> tuple[SegmentName, Won, str] | None:
    """The grant that a doubtful write of ours did make."""
    for entry in lane.entries:
        if entry.ledger is None:
            continue
        book = Book(entry.ledger)
        for place in book.held_by(token):
            name = SegmentName.parse(entry.segment)
            assert name is not None
            row = book.grants[book.leases[place]]
            return name, Won(row, [place], [book.attempts[place]], [0], []), book.born
    return None


def make_grant(view: QueueView, name: SegmentName, won: Won, account: str) -> Grant:
    """What a claim returns: plain data."""
    fallback = view.policy.failure.max_attempts
    row = won.row
    return Grant(
        view.keys.queue,
        str(name),
        row.token,
        row.version,
        row.owner,
        row.expires,
        tuple(won.members),
        tuple(won.attempts),
        tuple(limit or fallback for limit in won.max_attempts),
        tuple(won.recovered),
        row.claimed,
        account,
    )


def drop_orphan(env: Env, view: QueueView, name: SegmentName) -> Proto[None]:
    """The segment is gone: its account means nothing any more."""
    if name.lane:
        yield from drop_from_lane(env, view, [name])
    else:
        yield from delete([view.keys.ledger(name)])


def drop_from_lane(env: Env, view: QueueView, names: Sequence[SegmentName]) -> Proto[None]:
    """Take segments that have ended out of their lane; a lane that becomes empty is deleted under its etag.

    Where storage has no conditional delete an empty lane stays: an unconditional one could take away an append.
    """
    lane_name = names[0].lane
    key = view.keys.lane(lane_name)
    gone = {str(name) for name in names}
    current = yield from read_lane(env, view, lane_name)
    may_delete, tries = True, 0
    while current is not None:
        lane, etag = current
        kept = [entry for entry in lane.entries if entry.segment not in gone]
        if len(kept) == len(lane.entries) and (kept or not may_delete):
            return
        view.lanes.pop(lane_name, None)
        if not kept and may_delete:
            answer = yield DeleteIf(key, etag)
            if isinstance(answer, str):
                return
            may_delete = answer is not UNSUPPORTED
            if answer is UNKNOWN:
                tries += 1
                if tries == MOST_TRIES:
                    raise StoreUnavailable(f"the store kept failing to delete {key!r}; check it and try again")
                yield Sleep(env.ids.uniform(0, min(0.05 * 2**tries, 5)))
            if may_delete:
                current = yield from read_lane(env, view, lane_name)
            continue
        smaller = Lane(env.ids.nonce(), lane.group, lane.lifo, kept)
        answer = yield from write(env, Swap(key, LANE.encode(smaller), etag))
        if not isinstance(answer, Lost):
            remember_lane(view, lane_name, smaller, answer)
            return
        current = yield from read_lane(env, view, lane_name, answer.current)
