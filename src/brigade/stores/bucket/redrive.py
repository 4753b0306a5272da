"""Redrive: parked failures and dead letters go back to the queue they failed in.

Decided first, moved second, as with every move. A parked object records where each entry is going before the
target segment is created; a dead letter is held under a lease while its copy is made. Targets have derived
names, so a redrive that is repeated, or that two people start at once, makes each message once.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from brigade.blobs import Blob, Create, Swap
from brigade.errors import CorruptObject
from brigade.stores.bucket.enqueue import ensure_appended
from brigade.stores.bucket.keys import QueueKeys, SegmentName, lane_name, parse_message_ref
from brigade.stores.bucket.moves import copy_state
from brigade.stores.bucket.steps import (
    Env,
    Lost,
    Proto,
    copy,
    delete,
    get,
    list_all,
    read,
    reread,
    side_by_side,
    write,
)
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import MARKER, PARKED, SEGMENT, Entry, Marker, Parked, Segment

__all__ = ["finish_redrive", "redrive_letters", "redrive_parked", "redriven_entry"]


def redrive_parked(env: Env, view: QueueView, ids: AbstractSet[str] | None, limit: int) -> Proto[int]:
    """Bring parked failures back; all of them, or those with the given ids. Returns how many."""
    total = 0
    for item in (yield from list_all(view.keys.failed)):
        if total >= limit:
            break
        total += yield from _redrive_object(env, view, item.key, ids, limit - total)
    view.stale()
    return total


def finish_redrive(env: Env, view: QueueView, key: str) -> Proto[None]:
    """Complete a redrive that stopped half-way."""
    yield from _redrive_object(env, view, key, frozenset(), 0)


def _redrive_object(env: Env, view: QueueView, key: str, ids: AbstractSet[str] | None, limit: int) -> Proto[int]:
    try:
        current = yield from read(env, PARKED, key)
    except CorruptObject:
        return 0
    total = 0
    while current is not None:
        parked, etag = current
        chosen = _chosen(parked, ids, limit - total)
        if not chosen and not parked.moving:
            return total
        moving = dict(parked.moving)
        if chosen:
            moving.update(_targets(env, view, key, parked, chosen))
            decided = Parked(env.ids.nonce(), parked.refs, parked.entries, moving)
            answer = yield from write(env, Swap(key, PARKED.encode(decided), etag))
            if isinstance(answer, Lost):
                current = yield from reread(env, PARKED, key, answer.current)
                continue
            parked, etag = decided, answer
            total += len(chosen)
        yield from _make_targets(env, view, key, parked)
        done = [None if place in moving else entry for place, entry in enumerate(parked.entries)]
        emptied = Parked(env.ids.nonce(), parked.refs, done)
        answer = yield from write(env, Swap(key, PARKED.encode(emptied), etag))
        if not isinstance(answer, Lost):
            apart = [
                view.keys.blob(f"failed/{parked.refs[place]}")
                for place in moving
                if (entry := parked.entries[place]) is not None and entry.payload is None
            ]
            yield from delete(apart)
            return total
        current = yield from reread(env, PARKED, key, answer.current)
    return total


def _chosen(parked: Parked, ids: AbstractSet[str] | None, limit: int) -> list[int]:
    chosen: list[int] = []
    for place, entry in enumerate(parked.entries):
        if entry is None or entry.failure is None or place in parked.moving or len(chosen) == limit:
            continue
        if ids is None or entry.failure.id in ids or parked.refs[place] in ids:
            chosen.append(place)
    return chosen


def _targets(env: Env, view: QueueView, key: str, parked: Parked, chosen: Sequence[int]) -> dict[int, str]:
    """The new place of each chosen entry: one segment for each priority or lane."""
    groups: dict[tuple[int, str, bool], list[int]] = {}
    for place in chosen:
        entry = parked.entries[place]
        assert entry is not None
        again = redriven_entry(entry, env.now())
        strict = view.policy.ordering_guarantee or entry.group is not None
        lane = lane_name(entry.group) if strict else ""
        special = not lane and bool(again.ttl is not None or again.max_attempts or again.own_id)
        groups.setdefault((0 if lane else entry.priority, lane, special), []).append(place)
    targets: dict[int, str] = {}
    for (priority, lane, special), places in groups.items():
        name = SegmentName.derive(
            "redrive",
            key,
            env.ids.nonce(),
            at=env.now(),
            priority=priority,
            lane=lane,
            size=len(places),
            special=special,
        )
        targets.update({place: f"{name}-{index}" for index, place in enumerate(places)})
    return targets


def _make_targets(env: Env, view: QueueView, key: str, parked: Parked) -> Proto[None]:
    """Create the segments that the parked object says its entries are going to."""
    by_target: dict[SegmentName, dict[int, int]] = {}
    for place, ref in parked.moving.items():
        found = parse_message_ref(ref)
        if found is not None:
            by_target.setdefault(found[0], {})[found[1]] = place
    for name, places in by_target.items():
        entries: list[Entry | None] = []
        for index in range(name.size):
            source = parked.entries[places[index]]
            assert source is not None
            ref = parked.refs[places[index]]
            if source.payload is None:
                yield from copy(view.keys.blob(f"failed/{ref}"), view.keys.blob(f"{name}-{index}"))
            yield from copy_state(env, view.keys, view.keys, ref, f"{name}-{index}", source.correlation)
            entry = redriven_entry(source, name.due)
            yield from _point_marker(env, view.keys, entry, f"{name}-{index}")
            entries.append(entry)
        yield from put_derived(env, view, name, entries, source=key)


def put_derived(
    env: Env, view: QueueView, name: SegmentName, entries: list[Entry | None], *, source: str
) -> Proto[None]:
    """Create a segment under a derived name, once: where it is, or was, there already, nothing is left to do."""
    key = view.keys.segment(name)
    answer = yield from write(env, Create(key, SEGMENT.encode(Segment(env.ids.nonce(), entries, source=source))))
    if isinstance(answer, Lost):
        found = yield from reread(env, SEGMENT, key, answer.current)
        if found is None or found[0].void:
            return
    if name.lane:
        yield from ensure_appended(env, view, name, entries, env.clock.monotonic())
    else:
        view.add_candidate(name)


def redriven_entry(entry: Entry, now: int) -> Entry:
    """A failed message as it goes back: with its own limits, a fresh attempt count, and no failure."""
    info = entry.failure
    return Entry(
        entry.payload,
        entry.size,
        now,
        entry.content_type,
        entry.correlation,
        entry.attributes,
        entry.group,
        ttl=info.ttl_ms if info else None,
        max_attempts=info.max_attempts if info else None,
        own_id=info.own_id if info else None,
        priority=entry.priority,
        checksum=entry.checksum,
    )


def _point_marker(env: Env, keys: QueueKeys, entry: Entry, ref: str) -> Proto[None]:
    """The user's own id leads to the message's new place.

    The redrive is decided, and anybody will complete it: the marker is done, so that no enqueue of the same id
    takes the place for one that was never filled.
    """
    if entry.own_id is None:
        return
    key = keys.marker(entry.own_id)
    fresh = Marker(env.ids.nonce(), entry.own_id, ref, env.now(), entry.correlation or entry.own_id, True)
    current: Blob | None = yield from get(key)
    while True:
        op = Create(key, MARKER.encode(fresh)) if current is None else Swap(key, MARKER.encode(fresh), current.etag)
        answer = yield from write(env, op)
        if not isinstance(answer, Lost):
            return
        current = answer.current


def redrive_letters(env: Env, letters: QueueKeys, target: QueueView, found: Sequence[tuple[str, Entry]]) -> Proto[None]:
    """Copy leased dead letters back to the queue they came from; the caller acks them afterwards."""
    yield from side_by_side([_redrive_letter(env, letters, target, ref, entry) for ref, entry in found])


def _redrive_letter(env: Env, letters: QueueKeys, target: QueueView, ref: str, entry: Entry) -> Proto[None]:
    strict = target.policy.ordering_guarantee or entry.group is not None
    lane = lane_name(entry.group) if strict else ""
    again = redriven_entry(entry, entry.enqueued)
    special = not lane and bool(again.ttl is not None or again.max_attempts or again.own_id)
    name = SegmentName.derive(
        "letter",
        letters.queue,
        ref,
        at=entry.enqueued,
        priority=0 if lane else entry.priority,
        lane=lane,
        size=1,
        special=special,
    )
    if again.ttl is not None:
        again.due = env.now()
    if entry.payload is None:
        yield from copy(letters.blob(ref), target.keys.blob(f"{name}-0"))
    yield from copy_state(env, letters, target.keys, ref, f"{name}-0", entry.correlation)
    yield from _point_marker(env, target.keys, again, f"{name}-0")
    letter = parse_message_ref(ref)
    source = letters.segment(letter[0]) if letter else ""
    yield from put_derived(env, target, name, [again], source=source)
