"""The sweeper: finishes what crashes left. Any process may run it, now and then, and several at once.

It decides what nobody claims any more (spent and lapsed messages), completes moves, finishes final ledgers, and
removes orphans. A leftover of a two-step write is touched only when it is an hour old by the store's clock;
whoever writes in two steps gives up after ten minutes.

Its age is that of the bytes that were listed: what has been written since is not old, however it looks when it is read.
What keeps a derived name taken is needed for an hour after its source has gone, because until then somebody may have
read the source. When that was is not known, so the hour begins when a sweeper finds it gone: it writes the void anew,
without a source, and the one that finds that an hour old removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from brigade.blobs import Create, DeleteIf, Item, Swap
from brigade.clock import to_ms
from brigade.errors import CannotDecrypt, CorruptObject
from brigade.stores.bucket.accounts import (
    Account,
    after_loss,
    commit,
    create_account,
    note_failures,
    open_account,
    read_lane,
    read_segment,
)
from brigade.stores.bucket.book import Book
from brigade.stores.bucket.bulk import sweep_jobs, sweep_staged
from brigade.stores.bucket.finish import finish
from brigade.stores.bucket.keys import HistoryName, SegmentName, parse_message_ref
from brigade.stores.bucket.lanes import decide_head, drop_from_lane
from brigade.stores.bucket.moves import complete_moves
from brigade.stores.bucket.notes import sweep_notes
from brigade.stores.bucket.redrive import finish_redrive
from brigade.stores.bucket.specs import specs_of
from brigade.stores.bucket.steps import Env, Lost, Proto, delete, get, list_all, list_page, passing_over, read, write
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import MARKER, PARKED, SEGMENT, VOID_SIZE, Ledger, Parked, void

__all__ = ["Swept", "sweep"]

FINAL_GRACE = 60_000
LEFTOVER_AGE = 3_600_000


@dataclass(slots=True)
class Swept:
    """What one sweep did."""

    finished: int = 0
    decided: int = 0
    orphans: int = 0
    expired: int = 0
    live: set[str] = field(default_factory=set[str])


def sweep(env: Env, view: QueueView) -> Proto[Swept]:
    """One pass over a queue."""
    done = Swept()
    keys = view.keys
    folders = yield from _occupied(view)
    ledgers = yield from _listed(keys.ledgers, folders)
    segments = yield from _listed(keys.segments, folders)
    lane_segments = yield from _listed(keys.lane_segments, folders)
    staged = yield from _listed(keys.bulk, folders)
    done.live = {str(name) for item in (*segments, *lane_segments) if (name := keys.parse(item.key)) is not None}
    done.live |= {str(name) for item in staged if (name := keys.parse(item.key)) is not None and name.lane}
    yield from _sweep_ledgers(env, view, ledgers, segments, done)
    if not folders.isdisjoint((keys.lanes, keys.lane_segments)):
        yield from _sweep_lanes(env, view, lane_segments, done)
    if view.unmoved:
        yield from complete_moves(env, view)
    beside = not folders.isdisjoint((keys.blobs, keys.states))
    parked: set[str] | None = set()
    if beside or keys.failed in folders:
        parked = yield from passing_over(env.unreadable, _sweep_parked(env, view, done))
    yield from _sweep_voids(env, view, [*segments, *lane_segments], done)
    if beside and parked is not None:
        yield from _sweep_beside(env, view, parked, done)
    if keys.markers in folders:
        yield from _sweep_markers(env, view, done)
    if keys.history in folders:
        yield from _sweep_history(env, view, done)
    if keys.jobs in folders:
        done.expired += yield from sweep_jobs(env, view)
    done.orphans += yield from sweep_staged(env, view, staged)
    if keys.notes in folders:
        done.expired += yield from sweep_notes(env, view)
    return done


def _occupied(view: QueueView) -> Proto[frozenset[str]]:
    """The folders to look into: those that hold anything, where one request tells; else all of them.

    What comes into an empty folder from now on is nobody's leftover yet, so most sweeps of a quiet queue cost two
    requests instead of a dozen.
    """
    page = yield from list_page(view.keys.root)
    if page.more:
        return frozenset(view.keys.folders)
    return frozenset(folder for folder in view.keys.folders if any(item.key.startswith(folder) for item in page.items))


def _listed(folder: str, folders: AbstractSet[str]) -> Proto[list[Item]]:
    return (yield from list_all(folder)) if folder in folders else []


def _old(env: Env, item: Item, age: int = LEFTOVER_AGE) -> bool:
    return item.modified + age <= env.now()


def _sweep_ledgers(
    env: Env, view: QueueView, ledgers: Sequence[Item], segments: Sequence[Item], done: Swept
) -> Proto[None]:
    known = {item.key for item in ledgers}
    finals: dict[SegmentName, Ledger] = {}
    for item in ledgers:
        name = view.keys.parse(item.key)
        if name is None:
            continue
        if str(name) not in done.live and (yield from get(view.keys.segment(name))) is None:
            yield from delete([item.key])
            done.orphans += 1
            continue
        account = yield from passing_over(env.unreadable, open_account(env, view, name, cached=False))
        if account is None:
            continue
        if account.ledger.final:
            if _old(env, item, FINAL_GRACE):
                finals[name] = account.ledger
        else:
            yield from passing_over(env.unreadable, _decide(env, view, account, done))
    if finals:
        yield from finish(env, view, finals)
        done.finished += len(finals)
        for name in finals:
            view.finished.pop(name, None)
    if view.policy.ttl is None and not any(name.special for item in segments if (name := view.keys.parse(item.key))):
        return
    for item in segments:
        name = view.keys.parse(item.key)
        if name is not None and view.keys.ledger(name) not in known and name.due <= env.now():
            yield from passing_over(env.unreadable, _decide_fresh(env, view, name, done))


def _decide(env: Env, view: QueueView, account: Account | None, done: Swept) -> Proto[None]:
    """End messages whose time or attempts are used up, and let a settled ledger be final."""
    while account is not None:
        book = Book(account.ledger)
        book.claim(limit=0, now=env.now(), expires=0, token="", owner="", rules=view.rules(account.name))
        book.finalize()
        if not book.changed:
            return
        answer = yield from commit(env, view, account, book)
        if not isinstance(answer, Lost):
            note_failures(view, account.name, book)
            done.decided += 1
            return
        account = yield from after_loss(env, view, account.name, answer)


def _decide_fresh(env: Env, view: QueueView, name: SegmentName, done: Swept) -> Proto[None]:
    """End lapsed messages of a segment that nobody has claimed from."""
    rules = view.rules(name)
    specs = None
    if name.special:
        entries = yield from read_segment(env, view, name)
        if entries is None:
            return
        specs = specs_of(entries)
    elif rules.lapse is None or rules.lapse > env.now():
        return
    book = Book.fresh(name.size, specs)
    book.claim(limit=0, now=env.now(), expires=0, token="", owner="", rules=rules)
    if not book.changed:
        return
    book.finalize()
    answer = yield from create_account(env, view, name, book)
    if isinstance(answer, Lost):
        yield from _decide(env, view, (yield from after_loss(env, view, name, answer)), done)
        return
    note_failures(view, name, book)
    done.decided += 1


def _sweep_lanes(env: Env, view: QueueView, lane_segments: Sequence[Item], done: Swept) -> Proto[None]:
    listed: set[str] = set()
    unread: list[CannotDecrypt] = []
    lanes = yield from list_all(view.keys.lanes)
    if lanes:
        yield Create(view.keys.lanes_flag, env.ids.nonce().encode())
    for item in lanes:
        lane = item.key[len(view.keys.lanes) :]
        yield from passing_over(env.unreadable, decide_head(env, view, lane))
        found = yield from passing_over(unread, read_lane(env, view, lane))
        if found is None:
            continue
        listed |= {entry.segment for entry in found[0].entries}
        if not found[0].entries and _old(env, item):
            yield DeleteIf(item.key, found[1])
        finals: dict[SegmentName, Ledger] = {}
        for entry in found[0].entries:
            name = SegmentName.parse(entry.segment)
            if name is None:
                continue
            if entry.segment not in done.live and (yield from get(view.keys.segment(name))) is None:
                yield from drop_from_lane(env, view, [name])
                done.orphans += 1
            elif entry.ledger is not None and entry.ledger.final:
                if _old(env, item, FINAL_GRACE):
                    finals[name] = entry.ledger
            elif entry.ledger is not None and any(not move.done for move in entry.ledger.moves):
                view.unmoved[name] = None
        if finals:
            yield from finish(env, view, finals)
            done.finished += len(finals)
    if unread:  # what lies in those lanes is not known, so nothing is an orphan
        env.unreadable += unread
        return
    orphans = yield from _lane_orphans(env, view, lane_segments, listed)
    yield from delete(orphans)
    done.orphans += len(orphans)
    done.live -= {str(view.keys.parse(key)) for key in orphans}


def _lane_orphans(
    env: Env, view: QueueView, lane_segments: Sequence[Item], listed: AbstractSet[str]
) -> Proto[list[str]]:
    """Segments that are in no lane and that nobody will append to one. One with a derived name is voided instead."""
    orphans: list[str] = []
    for item in lane_segments:
        name = view.keys.parse(item.key)
        if name is None or str(name) in listed or not _old(env, item):
            continue
        if not name.derived:
            orphans.append(item.key)
        elif (etag := (yield from _abandoned(env, view, item, name))) is not None:
            yield from write(env, Swap(item.key, void(env.ids.nonce()), etag))
    return orphans


def _abandoned(env: Env, view: QueueView, item: Item, name: SegmentName) -> Proto[str | None]:
    """The etag of a derived segment that nobody will append to its lane: as long as its source lasts, somebody may.

    Whoever used the source up has appended the segment before, so the lane is looked at once more after that.
    """
    try:
        found = yield from read(env, SEGMENT, item.key)
    except CorruptObject:
        return None
    if found is None or found[0].void or not (yield from _as_listed(item, found[1])):
        return None
    source = found[0].source
    if source is not None and not (yield from _exhausted(env, source, str(name))):
        return None
    lane = yield from read_lane(env, view, name.lane)
    return None if lane and any(entry.segment == str(name) for entry in lane[0].entries) else found[1]


def _sweep_voids(env: Env, view: QueueView, segments: Sequence[Item], done: Swept) -> Proto[None]:
    """Voids that have kept late writers out for an hour, and whose source can make them no more."""
    for item in segments:
        name = view.keys.parse(item.key)
        if name is not None and _old(env, item) and (item.size <= VOID_SIZE or name.derived):
            yield from passing_over(env.unreadable, _sweep_void(env, view, item, name, done))


def _sweep_void(env: Env, view: QueueView, item: Item, name: SegmentName, done: Swept) -> Proto[None]:
    try:
        found = yield from read(env, SEGMENT, item.key)
    except CorruptObject:
        return
    if found is None or not found[0].void or not (yield from _as_listed(item, found[1])):
        return
    source = found[0].source
    if source is None:
        yield from delete([item.key])
        if not name.lane:
            yield from delete([view.keys.ledger(name)])
        view.ended.discard(name)
        done.live.discard(str(name))
        done.orphans += 1
    elif (yield from _exhausted(env, source, str(name))):
        yield from write(env, Swap(item.key, void(env.ids.nonce()), found[1]))


def _as_listed(item: Item, etag: str) -> Proto[bool]:
    """Whether an object that was read as `etag` is what was listed.

    Google's listings tell an etag only after the object was read, so where they differ, another look tells.
    """
    return item.etag == etag or (yield from _still_there(item, etag))


def _still_there(item: Item, etag: str | None = None) -> Proto[bool]:
    """Whether a listing shows an old object as it was: whatever is written over it is younger."""
    items = (yield from list_page(item.key, limit=1)).items
    if not items or etag not in (None, items[0].etag):
        return False
    return (items[0].key, items[0].size, items[0].modified) == (item.key, item.size, item.modified)


def _exhausted(env: Env, source: str, target: str) -> Proto[bool]:
    """Whether the object that a derived segment was made from is over, so that nobody makes the segment again."""
    try:
        if "/failed/" in source:
            parked = yield from read(env, PARKED, source)
            return parked is None or not any(ref.startswith(f"{target}-") for ref in parked[0].moving.values())
        segment = yield from read(env, SEGMENT, source)
    except CorruptObject:
        return True
    return segment is None or segment[0].void


def _sweep_parked(env: Env, view: QueueView, done: Swept) -> Proto[set[str]]:
    """Complete redrives that stopped half-way and drop emptied objects; returns the messages still parked."""
    refs: set[str] = set()
    for item in (yield from list_all(view.keys.failed)):
        try:
            found = yield from read(env, PARKED, item.key)
        except CorruptObject:
            continue
        if found is None:
            continue
        parked, etag = found
        if parked.moving and _old(env, item, FINAL_GRACE):
            yield from finish_redrive(env, view, item.key)
        elif not any(parked.entries) and _old(env, item) and (yield from _as_listed(item, etag)):
            if not parked.refs:
                yield from delete([item.key])
                done.orphans += 1
            elif (yield from _emptied(env, view, parked)):
                yield from write(env, Swap(item.key, PARKED.encode(Parked(env.ids.nonce(), [], [])), etag))
        refs |= {ref for ref, entry in zip(parked.refs, parked.entries, strict=True) if entry is not None}
    return refs


def _emptied(env: Env, view: QueueView, parked: Parked) -> Proto[bool]:
    """Whether the segment that an emptied parked object was filled from is over: else it might be filled again."""
    origin = parse_message_ref(parked.refs[0])
    return origin is None or (yield from _exhausted(env, view.keys.segment(origin[0]), ""))


def _sweep_beside(env: Env, view: QueueView, parked: set[str], done: Swept) -> Proto[None]:
    """Payloads, results and workflow states whose message is gone.

    A payload or a state whose message is not there may be on its way, left by one who stopped half-way an hour ago:
    whoever goes on with that writes it anew, and then it is not old.
    """
    results: list[str] = []
    gone: list[Item] = []
    retention = max(to_ms(view.policy.retention), LEFTOVER_AGE)
    for item in (yield from list_all(view.keys.blobs)):
        kind, _, ref = item.key[len(view.keys.blobs) :].rpartition("/")
        if kind == "result":
            if _old(env, item, retention):
                results.append(item.key)
        elif _old(env, item) and not (ref in parked if kind == "failed" else (yield from _alive(view, ref, done))):
            gone.append(item)
    for item in (yield from list_all(view.keys.states)):
        ref = item.key[len(view.keys.states) :]
        if _old(env, item) and ref not in parked and not (yield from _alive(view, ref, done)):
            gone.append(item)
    yield from delete(results)
    for item in gone:
        yield from _delete_unchanged(item)
    done.orphans += len(results) + len(gone)


def _delete_unchanged(item: Item) -> Proto[None]:
    """Remove what is still as it was listed; where storage can't see to that, as far as one more look tells."""
    answer = yield DeleteIf(item.key, item.etag)
    if not isinstance(answer, str) and (yield from _still_there(item)):
        yield from delete([item.key])


def _alive(view: QueueView, ref: str, done: Swept) -> Proto[bool]:
    found = parse_message_ref(ref)
    if found is None:
        return False
    if str(found[0]) in done.live:
        return True
    return (yield from get(view.keys.segment(found[0]))) is not None


def _sweep_markers(env: Env, view: QueueView, done: Swept) -> Proto[None]:
    """Ids of messages that ended longer ago than history is kept are free again, as are those never written."""
    retention = max(to_ms(view.policy.retention), LEFTOVER_AGE)
    for item in (yield from list_all(view.keys.markers)):
        if not _old(env, item):
            continue
        try:
            found = yield from passing_over(env.unreadable, read(env, MARKER, item.key))
        except CorruptObject:
            continue
        if found is None:
            continue
        marker, etag = found
        if not (yield from _as_listed(item, etag)):
            continue
        kept = marker.done and not _old(env, item, retention)
        if not kept and not (yield from _alive(view, marker.ref, done)):
            done.expired += isinstance((yield DeleteIf(item.key, etag)), str)


def _sweep_history(env: Env, view: QueueView, done: Swept) -> Proto[None]:
    """Names sort by time: what comes after the first file that is kept is kept, too."""
    oldest = env.now() - to_ms(view.policy.retention)
    after = ""
    while True:
        page = yield from list_page(view.keys.history, after)
        old = [item.key for item in page.items if (name := HistoryName.parse(item.key)) is None or name.at < oldest]
        yield from delete(old)
        done.expired += len(old)
        if not page.more or len(old) < len(page.items):
            return
        after = page.items[-1].key
