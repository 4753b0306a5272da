"""Finish: history is written, then segments and blobs are deleted, then ledgers. Anybody may repeat any step.

The order is what keeps the promises. While its ledger stands, an ended segment cannot be delivered again;
the ledger goes only after the segment has gone, and the segment only after history has been written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brigade.blobs import UNSUPPORTED, DeleteIf, Swap
from brigade.errors import CannotDecrypt, CorruptObject
from brigade.stores.bucket.accounts import read_segment
from brigade.stores.bucket.book import PURGED
from brigade.stores.bucket.history import Record, records_of, write_history
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.lanes import drop_from_lane
from brigade.stores.bucket.steps import Env, Lost, Proto, delete, read, reread, side_by_side, write
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import MARKER, SEGMENT, Entry, Ledger, Marker, void

__all__ = ["finish", "retire"]

HISTORY_FILE_RECORDS = 20_000
UNREADABLE: list[Entry | None] = []
FREE = ""
"""What the marker of a purged id points to where storage has no conditional delete: nothing, so it may be taken."""


def finish(env: Env, view: QueueView, finals: Mapping[SegmentName, Ledger]) -> Proto[list[Record]]:
    """See final ledgers through to the end; returns their history."""
    contents = {name: _known(view, name, finals[name].born) for name in finals}
    unknown = [name for name, entries in contents.items() if entries is None]
    if unknown:
        found = yield from side_by_side([_contents(env, view, name) for name in unknown])
        contents.update(zip(unknown, found, strict=True))
    names = [name for name, entries in contents.items() if entries is not UNREADABLE]
    ended = {name: entries for name in names if (entries := contents[name]) is not None}
    records: list[Record] = []
    fallback = view.policy.failure.max_attempts
    for name, entries in ended.items():
        records += records_of(view.keys.queue, name, finals[name], entries, fallback)
    for start in range(0, len(records), HISTORY_FILE_RECORDS):
        yield from write_history(env, view.keys, records[start : start + HISTORY_FILE_RECORDS])
    marked = [
        _settle_marker(env, view, f"{name}-{place}", entry, finals[name].states[place] == PURGED)
        for name, entries in ended.items()
        if name.special or name.lane
        for place, entry in enumerate(entries)
        if entry is not None and entry.own_id is not None
    ]
    if marked:
        yield from side_by_side(marked)
    yield from retire(env, view, names, ended)
    return records


def retire(
    env: Env,
    view: QueueView,
    names: Sequence[SegmentName],
    contents: Mapping[SegmentName, Sequence[Entry | None]],
) -> Proto[None]:
    """Delete segments with their blobs, then ledgers, many at a time. Derived names are voided and stay for a while."""
    gone: list[str] = []
    for name in names:
        if not name.derived:
            gone.append(view.keys.segment(name))
        if name.staged and not name.lane:
            gone.append(view.keys.staged(name))
        for place, entry in enumerate(contents.get(name, ())):
            if entry is not None and entry.payload is None:
                gone.append(view.keys.blob(f"{name}-{place}"))
    yield from side_by_side([_void(env, view, name) for name in names if name.derived])
    yield from delete(gone)
    yield from delete([view.keys.ledger(name) for name in names if not name.lane])
    lanes: dict[str, list[SegmentName]] = {}
    for name in names:
        if name.lane:
            lanes.setdefault(name.lane, []).append(name)
    yield from side_by_side([drop_from_lane(env, view, members) for members in lanes.values()])
    for name in names:
        view.forget(name)
        if name.derived:
            view.ended.add(name)


def _known(view: QueueView, name: SegmentName, account: str) -> list[Entry | None] | None:
    """The messages of a segment that was read under this account."""
    known = view.entries.get(name)
    return known.entries if known is not None and known.account == account != "" else None


def _contents(env: Env, view: QueueView, name: SegmentName) -> Proto[list[Entry | None] | None]:
    """The messages of a segment; UNREADABLE where no key at hand opens it: then it stays, with its ledger."""
    try:
        return (yield from read_segment(env, view, name))
    except CannotDecrypt as error:
        env.unreadable.append(error)
        return UNREADABLE


def _void(env: Env, view: QueueView, name: SegmentName) -> Proto[None]:
    """Leave a void in a derived segment's place, so that a step repeated late cannot bring it back."""
    key = view.keys.segment(name)
    try:
        current = yield from read(env, SEGMENT, key)
    except CorruptObject:
        return
    if current is None:
        return
    segment, etag = current
    if not segment.void:
        yield from write(env, Swap(key, void(env.ids.nonce(), segment.source), etag))


def _settle_marker(env: Env, view: QueueView, ref: str, entry: Entry, purged: bool) -> Proto[None]:
    """Record that the message with the user's own id has ended, before its segment goes; a purged id is free again."""
    key = view.keys.marker(entry.own_id or "")
    try:
        current = yield from read(env, MARKER, key)
    except CorruptObject:
        current = None
    while current is not None:
        marker, etag = current
        if marker.ref != ref or (marker.done and not purged):
            return
        if purged:
            if (yield DeleteIf(key, etag)) is not UNSUPPORTED:
                return
            done = Marker(env.ids.nonce(), marker.own_id, FREE, marker.at, marker.correlation)
        else:
            done = Marker(env.ids.nonce(), marker.own_id, ref, marker.at, marker.correlation, True)
        answer = yield from write(env, Swap(key, MARKER.encode(done), etag))
        if not isinstance(answer, Lost):
            return
        current = yield from reread(env, MARKER, key, answer.current)
