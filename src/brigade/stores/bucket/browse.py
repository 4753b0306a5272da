"""What operators look at: messages page by page, the attempts at one, and who holds what. No lease is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from brigade.errors import CannotDecrypt, MessageNotFound
from brigade.model import MessageInfo
from brigade.stores.bucket.accounts import Account, open_account, read_lane, read_segment
from brigade.stores.bucket.book import LEASED, PURGED, READY, Book, from_runs
from brigade.stores.bucket.history import ended_since, opened
from brigade.stores.bucket.inspect import MOST_HISTORY_FILES, info_of, locate, record_info
from brigade.stores.bucket.keys import SegmentName, parse_message_ref
from brigade.stores.bucket.past import log_of
from brigade.stores.bucket.records import attempts_of
from brigade.stores.bucket.specs import specs_of
from brigade.stores.bucket.steps import Env, Proto, list_all, list_page, read, side_by_side
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import MARKER, VOID_SIZE, Entry
from brigade.survey import Attempt, GroupInfo, Held, Page, Story

__all__ = ["browse", "groups", "leases", "story"]

Match = Callable[[MessageInfo], bool]
WIDTH = 32
"""Segments that are read at once."""

MOST_SEGMENTS = 320
"""Segments that are read for one page, however few messages they have."""

LIVE = (READY, LEASED)


def browse(
    env: Env, view: QueueView, match: Match, *, limit: int, most: int, after: str | None, held: bool
) -> Proto[Page]:
    """Go through the segments by name, lanes last, from where the last page ended."""
    found: list[MessageInfo] = []
    looked = opened = 0
    start, skip = _cursor(after)
    used = {item.key for item in (yield from list_all(view.keys.ledgers))}
    for prefix in (view.keys.segments, view.keys.lane_segments):
        if start and not start.startswith(prefix) and start > prefix:
            continue
        names = yield from _names(view, prefix, start, skip, most - looked)
        if held:
            names = [name for name in names if name.lane or view.keys.ledger(name) in used]
        for at in range(0, len(names), WIDTH):
            chunk = names[at : at + WIDTH]
            read_back = yield from side_by_side([_open(env, view, name, used) for name in chunk])
            for name, (entries, book) in zip(chunk, read_back, strict=True):
                first = skip if view.keys.segment(name) == start else 0
                for place, info in _infos(view, name, entries, book, first):
                    looked += 1
                    if match(info):
                        found.append(info)
                    if len(found) == limit:
                        return Page(found, f"{view.keys.segment(name)}|{place + 1}", looked)
            opened += len(chunk)
            if looked >= most or opened >= MOST_SEGMENTS:
                return Page(found, f"{view.keys.segment(chunk[-1])}|{chunk[-1].size}", looked)
        start, skip = "", 0
    return Page(found, None, looked)


def _cursor(after: str | None) -> tuple[str, int]:
    key, _, place = (after or "").rpartition("|")
    return key, int(place) if place.isdecimal() else 0


def _names(view: QueueView, prefix: str, start: str, skip: int, most: int) -> Proto[list[SegmentName]]:
    """Segments from the cursor on, enough of them for that many messages."""
    names: list[SegmentName] = []
    total = 0
    first = view.keys.parse(start) if start else None
    if first is not None and skip < first.size:
        names.append(first)
        total += first.size
    after = start
    while total < most and len(names) < MOST_SEGMENTS:
        page = yield from list_page(prefix, after, MOST_SEGMENTS)
        for item in page.items:
            name = view.keys.parse(item.key) if item.size > VOID_SIZE else None
            if name is not None and total < most + WIDTH:
                names.append(name)
                total += name.size
        if not page.more or not page.items:
            break
        after = page.items[-1].key
    return names


def _open(
    env: Env, view: QueueView, name: SegmentName, used: set[str]
) -> Proto[tuple[Sequence[Entry | None], Book | None]]:
    """A segment's messages and their account; none where no key at hand opens it."""
    try:
        entries = yield from read_segment(env, view, name)
    except CannotDecrypt:
        entries = None
    if entries is None:
        return (), None
    account: Account | None = None
    if name.lane or view.keys.ledger(name) in used:
        account = yield from open_account(env, view, name, cached=False)
        if account is None and name.lane:
            return (), None
    return entries, Book(account.ledger) if account else Book.fresh(name.size, specs_of(entries))


def _infos(
    view: QueueView, name: SegmentName, entries: Sequence[Entry | None], book: Book | None, first: int
) -> Iterator[tuple[int, MessageInfo]]:
    for place in range(first, len(entries)):
        entry = entries[place]
        if book is not None and entry is not None and book.states[place] in LIVE:
            yield place, info_of(view, name, place, entry, book)


def story(env: Env, view: QueueView, message_id: str) -> Proto[Story]:
    """A message by its id, in whatever state, with every lease that its account or its history record tells of."""
    found = parse_message_ref(message_id)
    if found is None:
        found = yield from locate(env, view, message_id)
    name, place = found
    account = yield from open_account(env, view, name, cached=False)
    entries = yield from read_segment(env, view, name)
    entry = entries[place] if entries is not None else None
    if entry is not None:
        book = Book(account.ledger) if account else Book.fresh(name.size, specs_of(entries or ()))
        if book.states[place] == PURGED:
            raise MessageNotFound(f"message {message_id!r} of queue {view.keys.queue!r} was purged")
        return Story(info_of(view, name, place, entry, book), _attempts(book, place))
    ref = f"{name}-{place}"
    ended = yield from ended_since(env, view.keys, {ref}, name.due, most_files=MOST_HISTORY_FILES)
    if ref in ended:
        record = opened(env.fields, ended[ref])
        return Story(record_info(record), attempts_of(record))
    marked = yield from read(env, MARKER, view.keys.marker(message_id))
    if marked is not None and marked[0].ref not in (message_id, ref):
        return (yield from story(env, view, marked[0].ref))
    raise MessageNotFound(f"queue {view.keys.queue!r} has no message {message_id!r}, or it ended too long ago")


def _attempts(book: Book, place: int) -> list[Attempt]:
    log = log_of(book)
    grants = {grant.version: grant for grant in reversed(log.grants)}
    made = [
        Attempt(end.version, grant.owner, grant.claimed, end.at, end.how, end.error)
        for end in log.ends
        if place in from_runs(end.runs) and (grant := grants.get(end.version)) is not None
    ]
    if book.states[place] == LEASED:
        lease = book.grants[book.leases[place]]
        made.append(Attempt(lease.version, lease.owner, lease.claimed))
    return made


def leases(env: Env, view: QueueView, limit: int) -> Proto[list[Held]]:
    """Who holds what, from the ledgers alone; those that have not changed are not read again."""
    keys = view.keys
    named = [(keys.parse(item.key), item.etag) for item in (yield from list_all(keys.ledgers))]
    names = [(name, etag) for name, etag in named if name is not None]
    accounts = yield from side_by_side(
        [open_account(env, view, name, cached=_unchanged(view, name, etag)) for name, etag in names]
    )
    books = [(name, Book(account.ledger)) for (name, _), account in zip(names, accounts, strict=True) if account]
    for item in (yield from list_all(keys.lanes)):
        lane = yield from read_lane(env, view, item.key[len(keys.lanes) :])
        for entry in lane[0].entries if lane else ():
            name = SegmentName.parse(entry.segment)
            if name is not None and entry.ledger is not None:
                books.append((name, Book(entry.ledger)))
    held: list[Held] = []
    for name, book in books:
        for place, state in enumerate(book.states):
            if state == LEASED and len(held) < limit:
                row = book.grants[book.leases[place]]
                ref = f"{name}-{place}"
                held.append(Held(ref, row.owner, row.version, row.claimed, row.expires, book.attempts[place]))
    return held


def groups(env: Env, view: QueueView, limit: int) -> Proto[list[GroupInfo]]:
    """Lanes that have messages, the longest first."""
    keys = view.keys
    lanes = [item.key[len(keys.lanes) :] for item in (yield from list_all(keys.lanes))]
    found: list[GroupInfo] = []
    for read_back in (yield from side_by_side([read_lane(env, view, lane) for lane in lanes])):
        waiting, owner = 0, None
        for entry in read_back[0].entries if read_back else ():
            name = SegmentName.parse(entry.segment)
            book = Book(entry.ledger) if entry.ledger else Book.fresh(name.size, entry.specs) if name else None
            for place, state in enumerate(book.states if book else ()):
                waiting += state == READY
                if book is not None and state == LEASED:
                    owner = book.grants[book.leases[place]].owner
        if read_back and (waiting or owner is not None):
            found.append(GroupInfo(read_back[0].group, waiting, owner))
    found.sort(key=lambda group: (-group.waiting, group.name or ""))
    return found[:limit]


def _unchanged(view: QueueView, name: SegmentName, etag: str) -> bool:
    known = view.ledgers.get(name)
    return known is not None and known.etag == etag
