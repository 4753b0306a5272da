"""Who does what: producers, workers, and those who look after a queue. Each is a generator of protocol steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brigade.blobs import Blob, Create
from brigade.clock import to_ms
from brigade.errors import StaleLease, StoreUnavailable
from brigade.stores.bucket.claim import claim
from brigade.stores.bucket.enqueue import Draft, enqueue
from brigade.stores.bucket.keys import SegmentName, lane_name
from brigade.stores.bucket.load import Loaded, load
from brigade.stores.bucket.settle import Change, settle
from brigade.stores.bucket.specs import is_special
from brigade.stores.bucket.state import load_state, save_state
from brigade.stores.bucket.steps import Proto, Sleep, get, write
from brigade.stores.bucket.turn import Seats
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import Entry
from brigade.testing.sim import records as r
from brigade.testing.sim.process import Process
from brigade.testing.sim.scenario import JOBS

__all__ = ["Held", "deliver", "enqueue_told", "producer", "settle_told", "together", "worker"]

PLANS = ("ack", "release", "extend", "forget", "late", "nack", "reject")
WEIGHTS = (60, 6, 10, 5, 6)


@dataclass(frozen=True, slots=True)
class Held:
    """A message that a worker holds."""

    name: SegmentName
    place: int
    token: str
    version: int
    attempt: int
    entry: Entry

    @property
    def ref(self) -> str:
        return f"{self.name}-{self.place}"


def producer(process: Process) -> Proto[None]:
    """Enqueue some batches. Where the outcome is unknown, a message with an id of its own is sent again."""
    rng, world = process.rng, process.world
    for _ in range(world.scenario.calls):
        yield Sleep(rng.uniform(0, 3))
        drafts = [_draft(process) for _ in range(rng.choice((1, 1, 2, 5, 12)))]
        own = [draft for draft in drafts if draft.entry.own_id is not None]
        if rng.random() < world.scenario.large:
            place = rng.randrange(len(drafts))
            drafts[place] = yield from _apart(process, drafts[place])
        for tries in range(3):
            sent = yield from enqueue_told(process, drafts if tries == 0 else own)
            if sent or not own:
                break
            yield Sleep(rng.uniform(0, 1))


def _draft(process: Process) -> Draft:
    rng, scenario = process.rng, process.world.scenario
    uid = process.world.uid()
    now = process.env.now()
    payload = process.world.payloads[uid] = f"{uid}:{'x' * rng.randrange(40)}".encode()
    entry = Entry(payload, len(payload), now, "text/plain", uid, priority=rng.choice((0, 5, 5, 9)))
    if rng.random() < scenario.own_ids:
        entry.own_id = f"own-{rng.randrange(12)}"
    if scenario.groups and rng.random() < 0.8:
        entry.group = rng.choice(scenario.groups)
    if rng.random() < scenario.delays:
        entry.due = now + rng.randrange(1, 8000)
    if rng.random() < scenario.ttls:
        entry.ttl = rng.randrange(500, 8000)
    if rng.random() < scenario.limits:
        entry.max_attempts = rng.randint(1, 4)
    return Draft(entry)


def _apart(process: Process, draft: Draft) -> Proto[Draft]:
    """Store the payload in a blob of its own first, as a stream would be."""
    view, entry = process.view(JOBS), draft.entry
    lane = lane_name(entry.group) if view.policy.ordering_guarantee or entry.group is not None else ""
    name = SegmentName.make(
        process.env.ids,
        now=process.env.now(),
        due=entry.due,
        priority=0 if lane else entry.priority,
        lane=lane,
        size=1,
        lifo=view.policy.ordering == "lifo",
        special=not lane and is_special(entry),
    )
    body = entry.payload or b""
    try:
        yield from write(process.env, Create(view.keys.blob(f"{name}-0"), body))
    except StoreUnavailable:
        return draft
    apart = Entry(
        None,
        entry.size,
        entry.enqueued,
        entry.content_type,
        entry.correlation,
        None,
        entry.group,
        entry.due,
        entry.ttl,
        entry.max_attempts,
        entry.own_id,
        priority=entry.priority,
    )
    return Draft(apart, name)


def enqueue_told(process: Process, drafts: Sequence[Draft]) -> Proto[bool]:
    """Enqueue and note what was meant and what was answered."""
    world = process.world
    call = world.call()
    for draft in drafts:
        entry = draft.entry
        uid = entry.correlation or ""
        world.tell(
            r.Intent(
                at=world.now(),
                queue=JOBS,
                uid=uid,
                call=call,
                payload=world.payloads[uid],
                own_id=entry.own_id,
                group=entry.group,
                priority=entry.priority,
            )
        )
    try:
        placed = yield from enqueue(process.env, process.view(JOBS), drafts)
    except StoreUnavailable:
        for draft in drafts:
            world.tell(r.Unsure(at=world.now(), queue=JOBS, uid=draft.entry.correlation or ""))
        return False
    for draft, result in zip(drafts, placed, strict=True):
        world.tell(
            r.Returned(
                at=world.now(),
                queue=JOBS,
                uid=draft.entry.correlation or "",
                ref=result.ref,
                duplicate=result.duplicate,
            )
        )
    return True


def worker(process: Process, queue: str = JOBS) -> Proto[None]:
    """Claim, load and settle, until the run is over."""
    rng, world, view = process.rng, process.world, process.view(queue)
    idle = 0
    while not world.stopping:
        since = len(world.history)
        limit = rng.choice((1, 1, 2, 5, 10, 50))
        takers = rng.choice((1, 1, 1, 2, 5))
        try:
            grants = yield from claim(
                process.env,
                view,
                limit=limit,
                owner=process.name,
                visibility=view.policy.visibility_timeout,
                listing_ttl=1.0,
                patient=view.patience > 0,
                seats=Seats([process.name] * takers, [place % takers for place in range(limit)]),
            )
            loaded = yield from load(process.env, view, grants)
            held = yield from deliver(process, queue, loaded, since)
        except StoreUnavailable:
            yield Sleep(rng.uniform(0, 1))
            continue
        idle = 0 if held else idle + 1
        if not held:
            yield Sleep(rng.uniform(0.05, 0.2) * 2 ** min(idle, 10 if world.scenario.faults.coma else 5))
            continue
        yield from _work(process, view, held)


def deliver(process: Process, queue: str, loaded: Sequence[Loaded], since: int) -> Proto[list[Held]]:
    """Read what is stored apart, and note that the messages are in a worker's hands."""
    world, view = process.world, process.view(queue)
    held: list[Held] = []
    for item in loaded:
        grant = item.grant
        for place, attempt, limit, entry in zip(
            grant.members, grant.attempts, grant.max_attempts, item.entries, strict=True
        ):
            payload = entry.payload
            if payload is None:
                blob: Blob | None = yield from get(view.keys.blob(f"{item.name}-{place}"))
                if blob is None:
                    continue
                payload = blob.body
            held.append(Held(item.name, place, grant.token, grant.version, attempt, entry))
            world.tell(
                r.Delivered(
                    at=world.now(),
                    queue=queue,
                    ref=f"{item.name}-{place}",
                    uid=entry.correlation or "",
                    token=grant.token,
                    version=grant.version,
                    attempt=attempt,
                    max_attempts=limit,
                    payload=payload,
                    own_id=entry.own_id,
                    group=entry.group,
                    priority=entry.priority,
                    since=since,
                )
            )
    return held


def _work(process: Process, view: QueueView, held: Sequence[Held]) -> Proto[None]:
    """Decide what becomes of each message, and settle in one batch a segment or one by one."""
    rng, scenario = process.rng, process.world.scenario
    yield Sleep(rng.uniform(0, 0.3) * scenario.lease)
    if rng.random() < 0.1:
        yield from _keep_state(process, view, held[0])
    weights = (*WEIGHTS, scenario.failing * 87, scenario.failing * 20)
    plans = rng.choices(PLANS, weights, k=len(held))
    if "late" in plans:
        yield Sleep(rng.uniform(0.8, 3) * scenario.lease)
    by_segment: dict[SegmentName, list[Change]] = {}
    for message, plan in zip(held, plans, strict=True):
        for change in _changes(process, view, message, plan):
            by_segment.setdefault(message.name, []).append(change)
    manner = rng.random()
    for name, changes in by_segment.items():
        batches = [[change] for change in changes] if manner < 0.3 else [changes]
        for batch in batches if manner < 0.6 else [together(changes)]:
            yield from settle_told(process, view, name, batch)


def _changes(process: Process, view: QueueView, message: Held, plan: str) -> list[Change]:
    rng, now = process.rng, process.env.now()
    places, token, version = [message.place], message.token, message.version
    match plan:
        case "forget":
            return []
        case "nack" | "reject":
            wait = view.policy.backoff.delay(message.attempt - 1, process.env.ids.uniform)
            return [Change("nack", places, token, version, now + to_ms(wait), "no luck", plan == "reject")]
        case "release":
            return [Change("release", places, token, version, now + rng.choice((0, 0, 1500)))]
        case "extend":
            longer = now + to_ms(rng.uniform(0.5, 2) * view.policy.visibility_timeout)
            extend = Change("extend", places, token, version, longer)
            if rng.random() < 0.3:
                return [extend]
            return [extend, Change("ack", places, token, version)]
        case _:
            result = b'"done"' if rng.random() < 0.2 else None
            return [Change("ack", places, token, version, result=result)]


def together(changes: Sequence[Change]) -> list[Change]:
    """Plain acks under one token joined into one change, as a client that acks a batch does."""
    joined: dict[str, list[int]] = {}
    rest: list[Change] = []
    for change in changes:
        if change.kind == "ack" and change.result is None:
            joined.setdefault(change.token, []).extend(change.places)
        else:
            rest.append(change)
    versions = {change.token: change.version for change in changes}
    return [*(Change("ack", places, token, versions[token]) for token, places in joined.items()), *rest]


def settle_told(
    process: Process, view: QueueView, name: SegmentName, changes: Sequence[Change], *, tries: int = 2
) -> Proto[None]:
    """Settle and note the answers; where there was none, some try again."""
    world = process.world
    for attempt in range(tries):
        try:
            answers = yield from settle(process.env, view, name, changes)
        except StoreUnavailable:
            answers = None
        for index, change in enumerate(changes):
            several = answers[index] if answers is not None else [None] * len(change.places)
            for place, answer in zip(change.places, several, strict=True):
                stale = "stale" if isinstance(answer, StaleLease) else "ok"
                world.tell(
                    r.Told(
                        at=world.now(),
                        queue=view.keys.queue,
                        ref=f"{name}-{place}",
                        token=change.token,
                        kind=change.kind,
                        answer="unknown" if answer is None else stale,
                    )
                )
        if answers is not None or process.rng.random() < 0.5 or attempt + 1 == tries:
            return
        yield Sleep(process.rng.uniform(0, 0.5))


def _keep_state(process: Process, view: QueueView, message: Held) -> Proto[None]:
    """Save workflow state beside the message."""
    try:
        found = yield from load_state(process.env, view, message.ref)
        etag = found[1] if found else None
        yield from save_state(process.env, view, message.ref, b"1", etag, message.entry.correlation or "")
    except (StoreUnavailable, StaleLease):
        pass
