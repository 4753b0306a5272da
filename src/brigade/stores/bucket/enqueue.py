"""Enqueue: segments, the lanes they join, and the markers of messages with an id of the user's own."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from brigade.blobs import Create, Refused, Swap
from brigade.errors import CorruptObject, StoreUnavailable
from brigade.model import Receipt
from brigade.stores.bucket.accounts import read_lane
from brigade.stores.bucket.history import ended_since
from brigade.stores.bucket.keys import SegmentName, lane_name, parse_message_ref
from brigade.stores.bucket.specs import is_special, specs_of
from brigade.stores.bucket.steps import (
    Env,
    Lost,
    Proto,
    Sleep,
    after_refusal,
    copy,
    delete,
    get,
    read,
    reread,
    side_by_side,
    write,
)
from brigade.stores.bucket.view import KnownLane, QueueView
from brigade.stores.bucket.wire import LANE, MARKER, SEGMENT, Entry, Lane, LaneEntry, Marker, Segment, void

__all__ = [
    "Draft",
    "append_all",
    "batches",
    "enqueue",
    "enqueue_one",
    "ensure_appended",
    "give_up_late",
    "is_plain",
    "plan_one",
    "publish",
    "see_through",
    "was_created",
]

GIVE_UP_AFTER = 600.0
PATIENCE = 2.0


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A checked message on its way in. `planned` is set where its payload already lies in a blob."""

    entry: Entry
    planned: SegmentName | None = None


def enqueue(env: Env, view: QueueView, drafts: Sequence[Draft]) -> Proto[list[Receipt]]:
    """Make messages durable, in as few segments as their priorities, lanes and kinds allow."""
    first: dict[str, int] = {}
    repeated: dict[int, int] = {}
    for place, draft in enumerate(drafts):
        if draft.entry.own_id is not None and first.setdefault(draft.entry.own_id, place) != place:
            repeated[place] = first[draft.entry.own_id]
    if not repeated:
        return (yield from _enqueue(env, view, drafts))
    kept = [place for place in range(len(drafts)) if place not in repeated]
    answers = yield from _enqueue(env, view, [drafts[place] for place in kept])
    receipts = dict(zip(kept, answers, strict=True))
    return [
        receipts[place] if place in receipts else replace(receipts[repeated[place]], duplicate=True)
        for place in range(len(drafts))
    ]


def _enqueue(env: Env, view: QueueView, drafts: Sequence[Draft]) -> Proto[list[Receipt]]:
    if len(drafts) == 1 and drafts[0].planned is None and is_plain(view, drafts[0].entry):
        return [(yield from enqueue_one(env, view, drafts[0].entry))]
    made = batches(env, view, drafts)
    if len(made) == 1 and not made[0][0].special:
        return (yield from _write_batch(env, view, made[0][0], drafts))
    turns: dict[str, list[tuple[SegmentName, list[int]]]] = {}
    for number, batch in enumerate(made):
        turns.setdefault(batch[0].lane or str(number), []).append(batch)
    answers = yield from side_by_side([_in_turn(env, view, drafts, turn) for turn in turns.values()])
    receipts = {place: receipt for answer in answers for place, receipt in answer.items()}
    return [receipts[place] for place in range(len(drafts))]


def is_plain(view: QueueView, entry: Entry) -> bool:
    """Whether a message alone makes a segment about which there is nothing to say."""
    return not (view.policy.ordering_guarantee or entry.group is not None or is_special(entry))


class Planned(msgspec.Struct, frozen=True):
    """A plain message on its way into a segment of its own."""

    name: SegmentName
    ref: str
    segment: Segment
    creation: Create
    started: float


def plan_one(env: Env, view: QueueView, entry: Entry) -> Planned:
    """Where a plain message is to go. Once that is there it `was_created`; other answers are for `see_through`."""
    started, ids = env.clock.monotonic(), env.ids
    name, ref, key = view.keys.for_plain(ids, entry.enqueued, entry.priority, lifo=view.policy.ordering == "lifo")
    segment = Segment(ids.nonce(), [entry])
    return Planned(name, ref, segment, Create(key, SEGMENT.encode(segment)), started)


def was_created(view: QueueView, planned: Planned, entry: Entry) -> Receipt:
    view.add_candidate(planned.name)
    return _receipt(view.keys.queue, planned.ref, entry)


def see_through(env: Env, view: QueueView, planned: Planned, entry: Entry, answer: Refused | None) -> Proto[Receipt]:
    """Create the segment, or go on from the answer that its creation had."""
    name, creation = planned.name, planned.creation
    told: str | Refused = (yield creation) if answer is None else answer
    if isinstance(told, str):
        return was_created(view, planned, entry)
    known = yield from after_refusal(env, creation, told, retry_absent=False)
    if not (yield from _published(env, view, name, planned.segment, creation, known, planned.started)):
        (receipt,) = yield from _write_batch(env, view, _renamed(env, view, name), [Draft(entry)])
        return receipt
    return _receipt(view.keys.queue, planned.ref, entry)


def enqueue_one(env: Env, view: QueueView, entry: Entry) -> Proto[Receipt]:
    """Make a plain message durable, in a segment of its own."""
    return (yield from see_through(env, view, plan_one(env, view, entry), entry, None))


def _in_turn(
    env: Env, view: QueueView, drafts: Sequence[Draft], batches: Sequence[tuple[SegmentName, list[int]]]
) -> Proto[dict[int, Receipt]]:
    """Write batches one after the other: a lane keeps the order in which its messages were given."""
    receipts: dict[int, Receipt] = {}
    for name, places in batches:
        answers = yield from _write_batch(env, view, name, [drafts[place] for place in places])
        receipts.update(zip(places, answers, strict=True))
    return receipts


def batches(
    env: Env, view: QueueView, drafts: Sequence[Draft], *, staged: bool = False
) -> list[tuple[SegmentName, list[int]]]:
    """Which drafts share a segment: same priority, same lane, all plain or all special, within the size limits.

    Staged messages with ids of the user's own are kept apart from others: they are published another way.
    """
    policy = view.policy
    groups: dict[tuple[int, str, bool, SegmentName | None, int], list[int]] = {}
    runs: dict[str, tuple[int, SegmentName | None, bool]] = {}
    strict = policy.ordering_guarantee
    for place, draft in enumerate(drafts):
        entry = draft.entry
        if strict or entry.group is not None:
            lane = lane_name(entry.group)
            apart = staged and entry.own_id is not None
            run, planned, before = runs.get(lane, (0, draft.planned, apart))
            run += planned != draft.planned or before != apart
            runs[lane] = (run, draft.planned, apart)
            kind = (0, lane, False, draft.planned, run)
        else:
            kind = (entry.priority, "", is_special(entry), draft.planned, int(staged and entry.own_id is not None))
        members = groups.get(kind)
        if members is None:
            groups[kind] = [place]
        else:
            members.append(place)
    made: list[tuple[SegmentName, list[int]]] = []
    for (priority, lane, special, planned, _), places in groups.items():
        if planned is not None:
            made.append((planned, places))
            continue
        if special:
            places.sort(key=lambda place: drafts[place].entry.due)
        for chunk in _chunks(places, drafts, policy.segment_messages, policy.segment_bytes):
            name = SegmentName.make(
                env.ids,
                now=env.now(),
                due=min(drafts[place].entry.due for place in chunk),
                priority=priority,
                lane=lane,
                size=len(chunk),
                lifo=policy.ordering == "lifo",
                special=special,
                staged=staged,
            )
            made.append((name, chunk))
    return made


def _chunks(places: list[int], drafts: Sequence[Draft], most: int, most_bytes: int) -> list[list[int]]:
    if len(places) <= most and sum(len(drafts[place].entry.payload or b"") for place in places) <= most_bytes // 2:
        return [places]
    chunks: list[list[int]] = [[]]
    size = 0
    for place in places:
        added = len(drafts[place].entry.payload or b"") + 64
        if chunks[-1] and (len(chunks[-1]) == most or size + added > most_bytes):
            chunks.append([])
            size = 0
        chunks[-1].append(place)
        size += added
    return chunks


def _write_batch(env: Env, view: QueueView, name: SegmentName, drafts: Sequence[Draft]) -> Proto[list[Receipt]]:
    started, nonce = env.clock.monotonic(), env.ids.nonce()
    while True:
        segment_id = str(name)
        refs = [f"{segment_id}-{place}" for place in range(len(drafts))]
        found: list[Receipt | None] = [None] * len(drafts)
        entries: list[Entry | None] = [draft.entry for draft in drafts]
        own: list[int] = []
        if name.special or name.lane:
            own = [place for place, draft in enumerate(drafts) if draft.entry.own_id is not None]
        if own:
            marks = yield from side_by_side([_reserve(env, view, drafts[place].entry, refs[place]) for place in own])
            for place, mark in zip(own, marks, strict=True):
                found[place] = mark
                if mark is not None:
                    entries[place] = None
            surplus = [place for place in own if entries[place] is None and drafts[place].entry.payload is None]
            yield from delete([view.keys.blob(refs[place]) for place in surplus])
        if any(entry is not None for entry in entries):
            published = yield from publish(env, view, name, Segment(nonce, entries), started)
            if not published:
                name = _renamed(env, view, name)
                apart = [place for place, entry in enumerate(entries) if entry is not None and entry.payload is None]
                yield from side_by_side(
                    [copy(view.keys.blob(refs[place]), view.keys.blob(f"{name}-{place}")) for place in apart]
                )
                continue
        queue = view.keys.queue
        if not own:
            return [
                Receipt(ref, queue, draft.entry.correlation or ref, False, ref)
                for ref, draft in zip(refs, drafts, strict=True)
            ]
        return [
            known or _receipt(queue, ref, draft.entry) for known, ref, draft in zip(found, refs, drafts, strict=True)
        ]


def _receipt(queue: str, ref: str, entry: Entry) -> Receipt:
    return Receipt(entry.own_id or ref, queue, entry.correlation or entry.own_id or ref, False, ref)


def _renamed(env: Env, view: QueueView, name: SegmentName) -> SegmentName:
    return SegmentName.make(
        env.ids,
        now=env.now(),
        due=name.due,
        priority=name.priority,
        lane=name.lane,
        size=name.size,
        lifo=view.policy.ordering == "lifo",
        special=name.special,
    )


def publish(env: Env, view: QueueView, name: SegmentName, segment: Segment, started: float) -> Proto[bool]:
    """Create the segment and, in a lane, append it. False where the name is fenced off: take another one.

    A segment that is not there after a doubtful write may still be on its way, and must not arrive after a second
    try has been worked off: so the name is taken with a void, which one of the two wins. Or it was written, worked
    off and deleted already: history tells, because it is written before a segment is deleted.
    """
    creation = Create(view.keys.segment(name), SEGMENT.encode(segment))
    give_up_late(env, started)
    answer = yield from write(env, creation, retry_absent=False)
    return (yield from _published(env, view, name, segment, creation, answer, started))


def _published(
    env: Env, view: QueueView, name: SegmentName, segment: Segment, creation: Create, answer: str | Lost, started: float
) -> Proto[bool]:
    """See a segment through whose creation had that answer."""
    entries = segment.entries
    if isinstance(answer, Lost):
        if answer.current is not None:
            return False
        fence = yield from write(env, Create(creation.key, void(env.ids.nonce())))
        if not isinstance(fence, Lost) or fence.current is None or fence.current.body != creation.body:
            first = next(place for place, entry in enumerate(entries) if entry is not None)
            return bool((yield from ended_since(env, view.keys, {f"{name}-{first}"}, name.due)))
    if name.lane:
        yield from ensure_appended(env, view, name, entries, started)
    else:
        view.add_candidate(name)
    return True


def give_up_late(env: Env, started: float) -> None:
    """Whoever writes in two steps stops after ten minutes: what is an hour old is then nobody's any more."""
    if env.clock.monotonic() - started > GIVE_UP_AFTER:
        raise StoreUnavailable(
            "a write in two steps took over ten minutes and was given up; check the store, try again"
        )


def ensure_appended(
    env: Env, view: QueueView, name: SegmentName, entries: Sequence[Entry | None], started: float
) -> Proto[None]:
    """Append the segment to its lane unless it is there. Twice is harmless: a segment that has ended is gone."""
    priority = min((entry.priority for entry in entries if entry is not None), default=5)
    group = next((entry.group for entry in entries if entry is not None), None)
    added = LaneEntry(str(name), priority, specs_of(entries))
    yield from append_all(env, view, name, group, [added], started)


def append_all(
    env: Env, view: QueueView, last: SegmentName, group: str | None, added: Sequence[LaneEntry], started: float
) -> Proto[None]:
    """Append segments to one lane, in one write, those that are not in it; `last` is the last of them."""
    yield from announce_lanes(env, view)
    key = view.keys.lane(last.lane)
    known = view.lanes.get(last.lane)
    current = (known.lane, known.etag) if known and known.lane is not None and known.etag else None
    if current is None:
        current = yield from read_lane(env, view, last.lane, newest=last)
    while True:
        give_up_late(env, started)
        if current is None:
            lane = Lane(env.ids.nonce(), group, view.policy.ordering == "lifo", list(added))
            answer = yield from write(env, Create(key, LANE.encode(lane)))
        else:
            before, etag = current
            there = {entry.segment for entry in before.entries}
            missing = [entry for entry in added if entry.segment not in there]
            if not missing:
                view.lanes[last.lane] = KnownLane(etag, before, 0)
                return
            lane = Lane(env.ids.nonce(), before.group, before.lifo, [*before.entries, *missing])
            answer = yield from write(env, Swap(key, LANE.encode(lane), etag))
        if not isinstance(answer, Lost):
            view.lanes[last.lane] = KnownLane(answer, lane, 0)
            return
        current = yield from read_lane(env, view, last.lane, answer.current, newest=last)


def announce_lanes(env: Env, view: QueueView) -> Proto[None]:
    """Show in the candidate listing that the queue has lanes, once for each process."""
    if not view.announced_lanes:
        if not view.has_lanes:
            yield from write(env, Create(view.keys.lanes_flag, env.ids.nonce().encode()))
        view.announced_lanes = view.has_lanes = True


def _reserve(env: Env, view: QueueView, entry: Entry, ref: str) -> Proto[Receipt | None]:
    """Take the user's id for `ref`: None, or where the message with that id already lies."""
    own_id = entry.own_id or ""
    key = view.keys.marker(own_id)
    started = env.clock.monotonic()
    mine = Marker(env.ids.nonce(), own_id, ref, env.now(), entry.correlation or own_id)
    answer = yield from write(env, Create(key, MARKER.encode(mine)))
    while isinstance(answer, Lost):
        try:
            current = yield from reread(env, MARKER, key, answer.current)
        except CorruptObject:
            blob = yield from get(key)
            current = None if blob is None else (Marker("", own_id, "", 0, own_id), blob.etag)
        if current is None:
            answer = yield from write(env, Create(key, MARKER.encode(mine)))
            continue
        marker, etag = current
        if marker.ref == ref:
            return None
        patient = env.clock.monotonic() - started < PATIENCE
        written = marker.done or (yield from _was_written(env, view, marker, patient))
        if written is None:
            yield Sleep(env.ids.uniform(0.05, 0.2))
            answer = Lost((yield from get(key)), False)
            continue
        if written:
            return Receipt(own_id, view.keys.queue, marker.correlation, True, marker.ref)
        mine = Marker(env.ids.nonce(), own_id, ref, env.now(), mine.correlation)
        answer = yield from write(env, Swap(key, MARKER.encode(mine), etag))
    return None


def _was_written(env: Env, view: QueueView, marker: Marker, patient: bool) -> Proto[bool | None]:
    """Whether the message that an unfinished marker plans is there; if not, see to it that it never will be.

    The marker's maker may be about to write it (None, while there is patience), or slow, or dead. Taking the
    planned segment's name with a void one decides it: a create-only write has one winner. A segment in a lane
    may lack its place there, which is made good here.
    """
    planned = parse_message_ref(marker.ref)
    if planned is None:
        return False
    name, place = planned
    key = view.keys.segment(name)
    found = yield from read(env, SEGMENT, key)
    if found is None:
        if patient:
            return None
        answer = yield from write(env, Create(key, void(env.ids.nonce())))
        if not isinstance(answer, Lost):
            return False
        found = yield from reread(env, SEGMENT, key, answer.current)
        if found is None:
            return True
    segment, _ = found
    if segment.void or segment.entries[place] is None:
        return False
    if name.lane:
        again = yield from get(key)
        if again is not None:
            yield from ensure_appended(env, view, name, segment.entries, env.clock.monotonic())
    return True
