"""Bulk jobs: many processes stage segments that nobody sees, then one write decides that all of them are there.

A staged segment is whole and durable under `bulk/`, but nothing points to it. The job's record is the decision:
once it is written, its segments are there, and whoever finds it makes them seen, by a stub among the segments
that claimers list, or by an entry in a lane. Each step may be repeated by anybody, also late: a stub whose
messages are gone is dropped, as is such an entry in a lane.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence

from brigade.blobs import Create, DeleteIf, Item, Swap
from brigade.errors import CorruptObject, StoreUnavailable
from brigade.stores import Payloads
from brigade.stores.bucket.accounts import STAGED_FOR, read_lane
from brigade.stores.bucket.enqueue import Draft, append_all, batches, enqueue
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
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import BULK, SEGMENT, Bulk, BulkPart, Entry, LaneEntry, Packed, Segment

__all__ = ["discard", "publish_job", "stage", "stage_packed", "sweep_jobs", "sweep_staged"]

DAY = 24 * 3_600_000
GIVE_UP_AFTER = 6 * DAY
"""A job that takes longer from its first staged segment to its end is refused, by the store's clock."""

ABANDONED_AFTER = 60_000
WIDTH = 16
IDS_WIDTH = 4


def stage(env: Env, view: QueueView, job: str, drafts: Sequence[Draft]) -> Proto[list[BulkPart]]:
    """Make messages durable without showing them. The parts are in the order in which lanes are to have them."""
    made = batches(env, view, drafts, staged=True)
    return (
        yield from side_by_side(
            [_stage_one(env, view, job, name, [drafts[place].entry for place in places]) for name, places in made]
        )
    )


def stage_packed(env: Env, view: QueueView, job: str, messages: Payloads) -> Proto[list[BulkPart]]:
    """`stage` for messages of a queue without lanes, as they come: nothing is done for each of them."""
    parts: list[Proto[BulkPart]] = []
    policy, bounds, now = view.policy, messages.bounds, env.now()
    start = 0
    while start < len(messages):
        end = bisect_right(bounds, bounds[start] + policy.segment_bytes, start + 1) - 1
        end = max(start + 1, min(end, start + policy.segment_messages))
        sizes = struct.pack(f"<{end - start}I", *messages.sizes[start:end])
        packed = Packed(bytes(messages.data[bounds[start] : bounds[end]]), sizes, now, messages.content_type)
        name = _plain_name(env, view, packed.priority, end - start)
        parts.append(_stage_one(env, view, job, name, [], packed))
        start = end
    return (yield from side_by_side(parts))


def _plain_name(env: Env, view: QueueView, priority: int, size: int) -> SegmentName:
    return SegmentName.make(
        env.ids,
        now=env.now(),
        due=0,
        priority=priority,
        lane="",
        size=size,
        lifo=view.policy.ordering == "lifo",
        special=False,
        staged=True,
    )


def _stage_one(
    env: Env, view: QueueView, job: str, name: SegmentName, entries: list[Entry], packed: Packed | None = None
) -> Proto[BulkPart]:
    segment = Segment(env.ids.nonce(), list(entries), source=view.keys.job(job), packed=packed)
    key = view.keys.staged(name)
    answer = yield from write(env, Create(key, SEGMENT.encode(segment)))
    if isinstance(answer, Lost):
        raise StoreUnavailable(f"the name {key!r} was taken by something else; try again")
    own = bool(name.special or name.lane) and any(entry.own_id is not None for entry in entries)
    if not name.lane:
        return BulkPart(str(name), own)
    priority = min(entry.priority for entry in entries)
    return BulkPart(str(name), own, entries[0].group, priority, specs_of(entries))


def discard(env: Env, view: QueueView, job: str, parts: Sequence[BulkPart]) -> Proto[None]:
    """Remove what a job staged and didn't publish. What it did publish after all is left alone."""
    record = yield from read(env, BULK, view.keys.job(job))
    if record is not None and record[0].parts:
        return
    names = [name for part in parts if (name := SegmentName.parse(part.name)) is not None]
    yield from delete((yield from _unseen(env, view, names)))


def _unseen(env: Env, view: QueueView, names: Sequence[SegmentName]) -> Proto[list[str]]:
    """The staged segments, of these, that are in no lane and have no stub. No job is about to show them."""
    lanes: dict[str, set[str]] = {}
    unseen: list[str] = []
    for name in names:
        if not name.lane:
            if (yield from get(view.keys.segment(name))) is None:
                unseen.append(view.keys.staged(name))
            continue
        if name.lane not in lanes:
            lane = yield from read_lane(env, view, name.lane)
            lanes[name.lane] = {entry.segment for entry in lane[0].entries} if lane is not None else set()
        if str(name) not in lanes[name.lane]:
            unseen.append(view.keys.staged(name))
    return unseen


def publish_job(
    env: Env, view: QueueView, job: str, epoch: int, parts: Sequence[BulkPart], *, since: int, count: int, keep: bool
) -> Proto[int]:
    """Decide that these parts are there, and make them seen; returns how many messages that are.

    A job is published once: a second time completes the first one, drops its own parts and returns 0. Of a
    stream's epochs each is published once, and none after a later one.
    """
    key = view.keys.job(job)
    found = yield from read(env, BULK, key)
    while True:
        if found is not None:
            record, etag = found
            if record.parts:
                yield from _complete(env, view, key, record, etag)
                found = yield from read(env, BULK, key)
                continue
            if record.epoch >= epoch:
                yield from discard(env, view, job, parts)
                return 0
        if env.now() - since > GIVE_UP_AFTER:
            raise StoreUnavailable(
                "the job's first messages were staged over six days ago, and nothing was published; run it again"
            )
        mine = Bulk(env.ids.nonce(), epoch, count, list(parts), keep)
        body = BULK.encode(mine)
        answer = yield from write(env, Create(key, body) if found is None else Swap(key, body, found[1]))
        if not isinstance(answer, Lost):
            yield from _complete(env, view, key, mine, answer)
            return count
        found = yield from reread(env, BULK, key, answer.current)
        if (
            found is not None
            and found[0].epoch == epoch
            and {part.name for part in found[0].parts} == {part.name for part in parts}
        ):
            yield from _complete(env, view, key, *found)
            return count


def _complete(env: Env, view: QueueView, key: str, record: Bulk, etag: str) -> Proto[None]:
    """Make every part seen, then say that it is done."""
    stubs: list[SegmentName] = []
    own: list[SegmentName] = []
    lanes: dict[str, list[BulkPart]] = {}
    for part in record.parts:
        name = SegmentName.parse(part.name)
        if name is None:
            continue
        if name.lane:
            lanes.setdefault(name.lane, []).append(part)
        else:
            (own if part.own else stubs).append(name)
    yield from side_by_side([_show(env, view, name) for name in stubs], WIDTH)
    yield from side_by_side([_enqueue_staged(env, view, name) for name in own], IDS_WIDTH)
    yield from side_by_side([_line_up(env, view, members) for members in lanes.values()], WIDTH)
    done = Bulk(env.ids.nonce(), record.epoch, record.count, [], record.keep)
    yield from write(env, Swap(key, BULK.encode(done), etag))
    yield from delete([view.keys.bulk + part.name for part in record.parts if part.own])
    for name in stubs:
        view.add_candidate(name)


def _show(env: Env, view: QueueView, name: SegmentName) -> Proto[None]:
    """Put a stub where claimers list. One that is there already is as good; one that comes late shows nothing."""
    stub = Segment(env.ids.nonce(), [], source=view.keys.staged(name))
    yield from write(env, Create(view.keys.segment(name), SEGMENT.encode(stub)))


def _enqueue_staged(env: Env, view: QueueView, name: SegmentName) -> Proto[None]:
    """Messages with ids of the user's own go the usual way, which keeps each id from being enqueued twice."""
    found = yield from read(env, SEGMENT, view.keys.staged(name))
    if found is not None:
        yield from enqueue(env, view, [Draft(entry) for entry in found[0].entries if entry is not None])


def _line_up(env: Env, view: QueueView, parts: Sequence[BulkPart]) -> Proto[None]:
    """Append the parts of one lane in their order, those side by side in one write."""
    run: list[BulkPart] = []
    for part in parts:
        if not part.own:
            run.append(part)
            continue
        yield from _append(env, view, run)
        run = []
        name = SegmentName.parse(part.name)
        if name is not None:
            yield from _enqueue_staged(env, view, name)
    yield from _append(env, view, run)


def _append(env: Env, view: QueueView, run: Sequence[BulkPart]) -> Proto[None]:
    last = SegmentName.parse(run[-1].name) if run else None
    if last is not None:
        added = [LaneEntry(part.name, part.priority, part.specs) for part in run]
        yield from append_all(env, view, last, run[0].group, added, env.clock.monotonic())


def sweep_jobs(env: Env, view: QueueView) -> Proto[int]:
    """Complete what a driver decided before it died, and forget jobs that are long over."""
    expired = 0
    for item in (yield from list_all(view.keys.jobs)):
        if item.modified + ABANDONED_AFTER > env.now():
            continue
        try:
            found = yield from read(env, BULK, item.key)
        except CorruptObject:
            continue
        if found is None:
            continue
        record, etag = found
        if record.parts:
            yield from _complete(env, view, item.key, record, etag)
        elif not record.keep and item.modified + STAGED_FOR <= env.now():
            expired += isinstance((yield DeleteIf(item.key, etag)), str)
    return expired


def sweep_staged(env: Env, view: QueueView, staged: Sequence[Item]) -> Proto[int]:
    """Remove staged segments that no job will publish any more: those of tasks and jobs that failed."""
    names = [
        name
        for item in staged
        if item.modified + STAGED_FOR <= env.now() and (name := view.keys.parse(item.key)) is not None
    ]
    gone = yield from _unseen(env, view, names)
    yield from delete(gone)
    return len(gone)
