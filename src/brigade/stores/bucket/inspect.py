"""Looking without touching: statistics, peek, get by id and the parked failures. No lease is taken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from brigade.clock import FOREVER
from brigade.errors import CorruptObject, MessageNotFound
from brigade.machine import State
from brigade.model import FailedMessage, MessageInfo, Stats
from brigade.stores.bucket.accounts import note, open_account, read_lane, read_segment
from brigade.stores.bucket.book import DEAD, LEASED, READY, SUCCEEDED, Book, state_of
from brigade.stores.bucket.history import OUTCOMES, SKEW, Record, ended_since, opened, read_file
from brigade.stores.bucket.keys import HistoryName, SegmentName, parse_message_ref
from brigade.stores.bucket.lanes import head_of
from brigade.stores.bucket.listing import refresh
from brigade.stores.bucket.past import log_of
from brigade.stores.bucket.specs import specs_of
from brigade.stores.bucket.steps import Env, Proto, list_all, list_page, read, side_by_side
from brigade.stores.bucket.view import QueueView, Tally
from brigade.stores.bucket.wire import MARKER, PARKED, VOID_SIZE, Entry, Ledger, Parked

__all__ = ["failed", "find", "info_of", "locate", "peek", "read_parked", "record_info", "stats"]

MOST_HISTORY_FILES = 500
MOST_RECENT_FILES = 16
TALLY_FOR = 3_600_000
LATE = 5_000
"""Milliseconds that clocks of writers may be apart where statistics look for what was written just now."""


def stats(env: Env, view: QueueView) -> Proto[Stats]:
    """Counts by state: names give most of them; ledgers in use are read, cached by etag.

    Listed in the order in which a segment comes to its end, from the last thing to go to the first that is written,
    so that whatever ends meanwhile is seen at least once; what is seen twice is taken off again. What this process
    finishes is not finished meanwhile, so only what others do has to be looked up.
    """
    keys, now = view.keys, env.now()
    counts: Counter[str] = Counter()
    oldest = FOREVER
    known = view.known()
    etags = {item.key: item.etag for item in (yield from list_all(keys.ledgers))}
    listed = yield from list_all(keys.segments)
    paused = any(item.key == keys.paused_flag for item in listed)
    names = [name for item in listed if item.size > VOID_SIZE and (name := keys.parse(item.key)) is not None]
    used = [name for name in names if keys.ledger(name) in etags]
    books: dict[SegmentName, Book] = {}
    final: dict[str, int] = {}
    accounts = yield from side_by_side(
        [open_account(env, view, name, cached=_current(view, name, etags[keys.ledger(name)])) for name in used]
    )
    for name, account in zip(used, accounts, strict=True):
        if account is not None:
            books[name] = Book(account.ledger)
            _note_final(view, name, account.ledger, final)
    mixed = [name for name in names if (name.special or name.derived) and name not in books]
    contents = yield from side_by_side([read_segment(env, view, name) for name in mixed])
    for name, entries in zip(mixed, contents, strict=True):
        books[name] = Book.fresh(name.size, specs_of(entries)) if entries is not None else Book.fresh(0)
    for name in names:
        book = books.get(name)
        if book is None:
            counts["ready" if name.due <= now else "delayed"] += name.size
        elif not _count(book, now, counts):
            continue
        oldest = min(oldest, name.due)
    lanes = yield from list_all(keys.lanes)
    for item in lanes:
        found = yield from read_lane(env, view, item.key[len(keys.lanes) :])
        for entry in found[0].entries if found else ():
            name = SegmentName.parse(entry.segment)
            if name is not None:
                book = Book(entry.ledger) if entry.ledger else Book.fresh(name.size, entry.specs)
                if entry.ledger is not None:
                    note(view, name, entry.ledger, ours=False)
                _note_final(view, name, entry.ledger, final)
                if _count(book, now, counts):
                    oldest = min(oldest, name.due)
    view.keep_only(
        known,
        segments={name for item in listed if (name := keys.parse(item.key)) is not None},
        ledgers=etags.keys(),
        lanes={item.key[len(keys.lanes) :] for item in lanes},
    )
    counts["failed"] += yield from _parked_count(env, view)
    yield from _history_counts(env, view, counts, final)
    return Stats(
        total=sum(counts.values()),
        ready=counts["ready"],
        delayed=counts["delayed"],
        in_flight=counts["in_flight"],
        succeeded=counts["succeeded"],
        failed=counts["failed"],
        dead_lettered=counts["dead_lettered"],
        oldest_age=max(0, now - oldest) / 1000 if oldest < FOREVER else 0.0,
        paused=paused,
    )


def _current(view: QueueView, name: SegmentName, etag: str) -> bool:
    known = view.ledgers.get(name)
    return known is not None and known.etag == etag


def _count(book: Book, now: int, counts: Counter[str]) -> bool:
    """Add one account; returns whether it has messages that wait. Parked failures are counted where they lie."""
    states = book.states
    delayed = sum(book.due_at(place) > now for place, state in enumerate(states) if state == READY)
    ready = states.count(READY) - delayed
    counts["ready"] += ready
    counts["delayed"] += delayed
    counts["in_flight"] += states.count(LEASED)
    counts["succeeded"] += states.count(SUCCEEDED)
    counts["dead_lettered"] += states.count(DEAD)
    counts["failed"] += sum(len(move.members) for move in book.moves if move.target is None and not move.done)
    return ready + delayed > 0


def _note_final(view: QueueView, name: SegmentName, ledger: Ledger | None, final: dict[str, int]) -> None:
    """Keep an account that others are taking to history, with the time of its end."""
    if ledger is not None and ledger.final and name not in view.finished:
        final[str(name)] = max((end.at for end in log_of(ledger).ends), default=name.due)


def _parked_count(env: Env, view: QueueView) -> Proto[int]:
    items = yield from list_all(view.keys.failed)
    changed = [item for item in items if view.parked.get(item.key, ("", 0))[0] != item.etag]
    contents = yield from side_by_side([read_parked(env, item.key) for item in changed])
    for item, parked in zip(changed, contents, strict=True):
        view.parked[item.key] = (item.etag, sum(entry is not None for entry in parked.entries) if parked else 0)
    view.parked = {item.key: view.parked[item.key] for item in items}
    return sum(count for _, count in view.parked.values())


def _history_counts(env: Env, view: QueueView, counts: Counter[str], final: Mapping[str, int]) -> Proto[None]:
    """Add what history files' names tell, a page at a time: there may be many. What is older than any late writer is
    listed once an hour, not each time."""
    tally, now = view.tally, env.now()
    recent: list[str] = []
    soonest = min(final.values(), default=FOREVER) - LATE
    if now >= tally.renew_at:
        tally = view.tally = Tally(renew_at=now + TALLY_FOR)
    after, more = tally.after, True
    while more:
        page = yield from list_page(view.keys.history, after)
        for item in page.items:
            name = HistoryName.parse(item.key)
            if name is None:
                continue
            if name.at < now - SKEW:
                tally.after = item.key
                tally.succeeded += name.succeeded
                tally.dead += name.dead
            else:
                counts["succeeded"] += name.succeeded
                counts["dead_lettered"] += name.dead
                if name.at >= soonest:
                    recent.append(item.key)
        more = page.more and bool(page.items)
        after = page.items[-1].key if page.items else after
    counts["succeeded"] += tally.succeeded
    counts["dead_lettered"] += tally.dead
    for records in (yield from side_by_side([read_file(env, key) for key in recent[-MOST_RECENT_FILES:]])):
        for record in records:
            if record.ref.rpartition("-")[0] in final:
                counts["succeeded"] -= record.outcome == OUTCOMES[SUCCEEDED]
                counts["dead_lettered"] -= record.outcome == OUTCOMES[DEAD]


def locate(env: Env, view: QueueView, message_id: str) -> Proto[tuple[SegmentName, int]]:
    """Where a message lies: told by a generated id itself, or by the marker of the user's own id."""
    marked = yield from read(env, MARKER, view.keys.marker(message_id))
    if marked is not None and marked[0].own_id == message_id:
        planned = parse_message_ref(marked[0].ref)
        if planned is not None:
            return planned
    native = parse_message_ref(message_id)
    if native is None:
        raise MessageNotFound(f"queue {view.keys.queue!r} has no message {message_id!r}")
    return native


def find(env: Env, view: QueueView, message_id: str) -> Proto[MessageInfo]:
    """A message by its id, in whatever state; one that has ended is looked up in history."""
    native = parse_message_ref(message_id)
    if native is None:
        native = yield from locate(env, view, message_id)
    name, place = native
    account = yield from open_account(env, view, name, cached=False)
    entries = yield from read_segment(env, view, name)
    entry = entries[place] if entries is not None else None
    if entry is not None:
        book = Book(account.ledger) if account else Book.fresh(name.size, specs_of(entries or ()))
        return info_of(view, name, place, entry, book)
    ended = yield from ended_since(env, view.keys, {f"{name}-{place}"}, name.due, most_files=MOST_HISTORY_FILES)
    record = ended.get(f"{name}-{place}")
    if record is not None:
        return record_info(opened(env.fields, record))
    marked = yield from read(env, MARKER, view.keys.marker(message_id))
    if marked is not None and marked[0].ref not in (message_id, f"{name}-{place}"):
        return (yield from find(env, view, marked[0].ref))
    raise MessageNotFound(f"queue {view.keys.queue!r} has no message {message_id!r}, or it ended too long ago")


def info_of(view: QueueView, name: SegmentName, place: int, entry: Entry, book: Book) -> MessageInfo:
    """A message as its account tells it."""
    state = book.states[place]
    rules = view.rules(name)
    lease = book.grants[book.leases[place]] if state == LEASED else None
    reason, error = book.reasons.get(place, (None, None))
    if error is None and reason is None and len(book.states) == 1:
        error = next((end.error for end in reversed(log_of(book).ends) if end.error is not None), None)
    result = book.results.get(place)
    ref = f"{name}-{place}"
    return MessageInfo(
        id=entry.own_id or ref,
        queue=view.keys.queue,
        state=state_of(state),
        priority=entry.priority,
        attempts=book.attempts[place],
        max_attempts=book.max_attempts(place, rules),
        enqueued_at_ms=entry.enqueued,
        due_at_ms=max(book.due_at(place), entry.enqueued),
        correlation_id=entry.correlation or entry.own_id or ref,
        attributes=entry.attributes or {},
        group=entry.group,
        content_type=entry.content_type,
        size=entry.size,
        ref=ref,
        body=entry.payload,
        outcome=OUTCOMES.get(state),
        owner=lease.owner if lease else None,
        lease_version=lease.version if lease else 0,
        lease_expires_at_ms=lease.expires if lease else None,
        error=error or reason,
        result=None if result is None else msgspec.json.decode(result),
        failure=entry.failure,
        checksum=entry.checksum,
    )


def record_info(record: Record) -> MessageInfo:
    """A message as history tells it."""
    return MessageInfo(
        id=record.id,
        queue=record.queue,
        state=State.SUCCEEDED if record.outcome == "processed" else State.FAILED,
        priority=record.priority,
        attempts=record.counted,
        max_attempts=record.max_attempts,
        enqueued_at_ms=record.enqueued_at,
        due_at_ms=record.due_at,
        correlation_id=record.correlation_id,
        attributes=record.attributes or {},
        group=record.group,
        content_type=record.content_type,
        size=record.size,
        ref=record.ref,
        outcome=record.outcome,
        finished_at_ms=record.finished_at,
        error=record.error or record.reason,
        result=msgspec.json.decode(record.result),
        failure=record.origin,
    )


def peek(env: Env, view: QueueView, limit: int) -> Proto[list[MessageInfo]]:
    """The messages that a claim would get now, in order."""
    yield from refresh(env, view)
    found: list[MessageInfo] = []
    now = env.now()
    for lane in list(view.lanes):
        current = yield from read_lane(env, view, lane)
        head = head_of(current[0]) if current else None
        if head is not None and len(found) < limit:
            name = SegmentName.parse(head[0].segment)
            entries = (yield from read_segment(env, view, name)) if name else None
            if name is not None and entries is not None:
                found += _waiting(view, name, entries, Book(head[1]), now, only=head[2])
    for name in list(view.candidates):
        if len(found) >= limit:
            break
        entries = yield from read_segment(env, view, name)
        if entries is None:
            continue
        account = None
        if name in view.ledgers:
            account = yield from open_account(env, view, name)
        book = Book(account.ledger) if account else Book.fresh(name.size, specs_of(entries))
        found += _waiting(view, name, entries, book, now)
    return found[:limit]


def _waiting(
    view: QueueView,
    name: SegmentName,
    entries: Sequence[Entry | None],
    book: Book,
    now: int,
    only: int | None = None,
) -> list[MessageInfo]:
    places = range(len(entries)) if only is None else (only,)
    chosen = [
        info_of(view, name, place, entry, book)
        for place in places
        if (entry := entries[place]) is not None and _claimable(book, place, now)
    ]
    return chosen[::-1] if name.lifo else chosen


def _claimable(book: Book, place: int, now: int) -> bool:
    if book.states[place] == LEASED:
        return book.grants[book.leases[place]].expires <= now
    return book.states[place] == READY and book.due_at(place) <= now


def failed(env: Env, view: QueueView, limit: int) -> Proto[list[FailedMessage]]:
    """Parked failures, oldest first."""
    found: list[FailedMessage] = []
    items = yield from list_all(view.keys.failed)
    for parked in (yield from side_by_side([read_parked(env, item.key) for item in items])):
        if parked is not None:
            found += _parked_messages(view.keys.queue, parked)
    found.sort(key=lambda message: (message.failure.failed_at_ms, message.id))
    return found[:limit]


def read_parked(env: Env, key: str) -> Proto[Parked | None]:
    """Parked failures; None where they are gone or damaged."""
    try:
        found = yield from read(env, PARKED, key)
    except CorruptObject:
        return None
    return None if found is None else found[0]


def _parked_messages(queue: str, parked: Parked) -> list[FailedMessage]:
    return [
        FailedMessage(
            id=entry.failure.id,
            queue=queue,
            body=entry.payload,
            content_type=entry.content_type,
            size=entry.size,
            priority=entry.priority,
            correlation_id=entry.correlation or entry.failure.id,
            attributes=entry.attributes or {},
            group=entry.group,
            failure=entry.failure,
        )
        for entry in parked.entries
        if entry is not None and entry.failure is not None
    ]
