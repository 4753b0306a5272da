"""Reading and writing the account of a segment, wherever it is kept: in a ledger of its own or inside a lane."""

from __future__ import annotations

import msgspec

from brigade.blobs import Blob, Create, Item, Swap
from brigade.clock import FOREVER
from brigade.codec import Format
from brigade.errors import CorruptObject
from brigade.stores.bucket.book import Book
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.specs import specs_of
from brigade.stores.bucket.steps import (
    Env,
    Lost,
    Proto,
    delete,
    get,
    list_all,
    read,
    reread,
    side_by_side,
    write,
)
from brigade.stores.bucket.view import Decided, KnownLane, KnownLedger, QueueView
from brigade.stores.bucket.wire import BULK, LANE, LEDGER, SEGMENT, Entry, Lane, LaneEntry, Ledger, Segment

__all__ = [
    "STAGED_FOR",
    "Account",
    "after_loss",
    "commit",
    "create_account",
    "note",
    "note_failures",
    "open_account",
    "read_contents",
    "read_lane",
    "read_ledger",
    "read_segment",
    "remember",
    "remember_lane",
    "with_ledger",
]


STAGED_FOR = 7 * 24 * 3_600_000
"""What was staged longer ago is in a queue, or is swept."""


class Account(msgspec.Struct, frozen=True):
    """A segment's ledger as stored under `etag`; `lane` is what it is part of, if it is."""

    name: SegmentName
    ledger: Ledger
    etag: str
    lane: Lane | None = None


def open_account(env: Env, view: QueueView, name: SegmentName, *, cached: bool = True) -> Proto[Account | None]:
    """The account of a segment that has been claimed from; None where there is none."""
    if name.lane:
        known = view.lanes.get(name.lane) if cached else None
        held = (known.lane, known.etag) if known and known.lane is not None and known.etag else None
        found = held or (yield from read_lane(env, view, name.lane))
        return None if found is None else _in_lane(name, *found)
    known_ledger = view.ledgers.get(name) if cached else None
    if known_ledger and known_ledger.ledger is not None and known_ledger.etag:
        return Account(name, known_ledger.ledger, known_ledger.etag)
    read_back = yield from read_ledger(env, view, name)
    return None if read_back is None else Account(name, *read_back)


def commit(env: Env, view: QueueView, account: Account, book: Book) -> Proto[Account | Lost]:
    """Swap in the changed account. `Lost` where somebody else wrote first: open it anew and decide again."""
    name, key = account.name, view.keys.ledger(account.name)
    ledger = book.close(env.ids.nonce())
    if account.lane is None:
        answer = yield from write(env, Swap(key, LEDGER.encode(ledger), account.etag))
        if isinstance(answer, Lost):
            view.ledgers.pop(name, None)
            return answer
        remember(env, view, name, ledger, answer, book)
        return Account(name, ledger, answer)
    lane = with_ledger(account.lane, {str(name): ledger}, ledger.nonce)
    answer = yield from write(env, Swap(key, LANE.encode(lane), account.etag))
    if isinstance(answer, Lost):
        view.lanes.pop(name.lane, None)
        return answer
    remember_lane(view, name.lane, lane, answer)
    note(view, name, ledger, ours=True)
    return Account(name, ledger, answer, lane)


def create_account(
    env: Env, view: QueueView, name: SegmentName, book: Book, *, retry_absent: bool = True
) -> Proto[Account | Lost]:
    """Store the first account of a segment of its own."""
    ledger = book.close(env.ids.nonce())
    creation = Create(view.keys.ledger(name), LEDGER.encode(ledger))
    answer = yield from write(env, creation, retry_absent=retry_absent)
    if isinstance(answer, Lost):
        return answer
    remember(env, view, name, ledger, answer, book)
    return Account(name, ledger, answer)


def after_loss(env: Env, view: QueueView, name: SegmentName, lost: Lost) -> Proto[Account | None]:
    """The account as it stands after a lost write."""
    key = view.keys.ledger(name)
    if name.lane:
        found = yield from read_lane(env, view, name.lane, lost.current)
        return None if found is None else _in_lane(name, *found)
    try:
        ledger = yield from reread(env, LEDGER, key, lost.current)
    except CorruptObject:
        ledger = yield from read_ledger(env, view, name)
    if ledger is None:
        return None
    remember(env, view, name, *ledger)
    return Account(name, *ledger)


def with_ledger(lane: Lane, changed: dict[str, Ledger], nonce: str) -> Lane:
    """The lane with some of its ledgers replaced."""
    entries = [
        LaneEntry(entry.segment, entry.priority, entry.specs, changed.get(entry.segment, entry.ledger))
        for entry in lane.entries
    ]
    return Lane(nonce, lane.group, lane.lifo, entries)


def _in_lane(name: SegmentName, lane: Lane, etag: str) -> Account | None:
    segment = str(name)
    for entry in lane.entries:
        if entry.segment == segment:
            ledger = entry.ledger or Book.fresh(name.size, entry.specs).close("")
            return Account(name, ledger, etag, lane)
    return None


def remember(env: Env, view: QueueView, name: SegmentName, ledger: Ledger, etag: str, ours: Book | None = None) -> None:
    """Keep what was just read, or written by us from that book."""
    next_at = FOREVER
    if not ledger.final:
        next_at = (ours or Book(ledger)).next_change(env.now(), view.rules(name))
    view.ledgers[name] = KnownLedger(etag, ledger, next_at)
    note(view, name, ledger, ours=ours is not None)


def note(view: QueueView, name: SegmentName, ledger: Ledger, *, ours: bool) -> None:
    """See what has to be done next: moves by whoever sees them, history by whoever made the ledger final."""
    if any(not move.done for move in ledger.moves):
        view.unmoved[name] = None
    if ledger.final:
        view.drop_candidate(name)
        if ours:
            view.finished[name] = ledger


def note_failures(view: QueueView, name: SegmentName, book: Book) -> None:
    """Keep what a claim or a sweep decided on its own: nobody else is there to tell of it."""
    for move in book.moves[book.stored_moves :]:
        for place in move.members:
            reason, error = book.reasons[place]
            view.failures.append(Decided(f"{name}-{place}", reason, error, book.attempts[place], move.target))


def remember_lane(view: QueueView, lane: str, value: Lane, etag: str) -> None:
    view.lanes[lane] = KnownLane(etag, value, 0)


def read_ledger(env: Env, view: QueueView, name: SegmentName) -> Proto[tuple[Ledger, str] | None]:
    """A ledger and its etag. A damaged one is replaced by a new account: its messages may be delivered again."""
    try:
        current = yield from read(env, LEDGER, view.keys.ledger(name))
    except CorruptObject:
        current = yield from _repair_ledger(env, view, name)
    if current is not None:
        remember(env, view, name, *current)
    return current


def _repair_ledger(env: Env, view: QueueView, name: SegmentName) -> Proto[tuple[Ledger, str] | None]:
    """Replace a damaged ledger, whose bytes are set aside. Versions go on above any that it can have held."""
    key = view.keys.ledger(name)
    blob = yield from get(key)
    if blob is None:
        return None
    entries = yield from read_segment(env, view, name)
    if entries is None:
        yield from delete([key])
        return None
    ledger = Book.fresh(name.size, specs_of(entries), version=env.now()).close(env.ids.nonce())
    answer = yield from write(env, Swap(key, LEDGER.encode(ledger), blob.etag))
    if isinstance(answer, Lost):
        return (yield from reread(env, LEDGER, key, answer.current))
    return ledger, answer


def read_lane(
    env: Env, view: QueueView, lane: str, seen: Blob | None = None, *, newest: SegmentName | None = None
) -> Proto[tuple[Lane, str] | None]:
    """A lane and its etag. A damaged one is made anew from its segments, in the order of their names.

    `seen` is what a lost write found in its way: it need not be read again. `newest` is a segment that is known
    to come last.
    """
    key = view.keys.lane(lane)
    try:
        found = yield from (read(env, LANE, key) if seen is None else reread(env, LANE, key, seen))
    except CorruptObject:
        found = yield from _repair_lane(env, view, lane, newest)
    if found is not None:
        remember_lane(view, lane, *found)
    return found


def _repair_lane(env: Env, view: QueueView, lane: str, newest: SegmentName | None) -> Proto[tuple[Lane, str] | None]:
    key = view.keys.lane(lane)
    blob = yield from get(key)
    if blob is None:
        return None
    items = yield from list_all(f"{view.keys.lane_segments}{lane}/")
    items += yield from _published(env, view, lane)
    names = [name for item in items if (name := view.keys.parse(item.key)) is not None]
    names.sort(key=lambda name: (name == newest, name))
    contents = yield from side_by_side([read_segment(env, view, name) for name in names])
    group: str | None = None
    rebuilt: list[LaneEntry] = []
    for name, entries in zip(names, contents, strict=True):
        if entries is None:
            continue
        group = next((entry.group for entry in entries if entry is not None), group)
        specs = specs_of(entries)
        ledger = Book.fresh(name.size, specs, version=env.now()).close("")
        rebuilt.append(LaneEntry(str(name), 5, specs, ledger))
    value = Lane(env.ids.nonce(), group, view.policy.ordering == "lifo", rebuilt)
    answer = yield from write(env, Swap(key, LANE.encode(value), blob.etag))
    if isinstance(answer, Lost):
        return (yield from reread(env, LANE, key, answer.current))
    return value, answer


def _published(env: Env, view: QueueView, lane: str) -> Proto[list[Item]]:
    """The staged segments of a lane whose job was published: its record outlasts what was staged and wasn't."""
    found: list[Item] = []
    for item in (yield from list_all(f"{view.keys.bulk}g{lane}-")):
        try:
            segment = yield from read(env, SEGMENT, item.key)
            job = segment[0].source if segment is not None else None
            record = None if job is None else (yield from read(env, BULK, job))
        except CorruptObject:
            continue
        if record is not None or item.modified + STAGED_FOR <= env.now():
            found.append(item)
    return found


def read_segment(env: Env, view: QueueView, name: SegmentName) -> Proto[list[Entry | None] | None]:
    """A segment's entries, or None where it is gone, void, or damaged and therefore set aside."""
    segment = yield from read_contents(env, view, name, SEGMENT)
    return None if segment is None else segment.entries


def read_contents(env: Env, view: QueueView, name: SegmentName, form: Format[Segment]) -> Proto[Segment | None]:
    """As `read_segment`, in the form that is wanted."""
    key = view.keys.contents(name)
    try:
        found = yield from read(env, form, key)
    except CorruptObject:
        yield from delete([key])
        if not name.lane:
            yield from delete([view.keys.ledger(name)])
        found = None
    if found is None:
        view.forget(name)
        if name.staged and not name.lane:
            yield from delete([view.keys.segment(name)])
        return None
    if found[0].void:
        view.forget(name)
        view.ended.add(name)
        return None
    return found[0]
