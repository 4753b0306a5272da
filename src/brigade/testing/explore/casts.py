"""Who takes part in an exploration, and how much may go wrong."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from brigade.blobs import Create, Swap
from brigade.clock import to_ms
from brigade.errors import StoreUnavailable
from brigade.policy import Backoff, Failure, QueuePolicy
from brigade.stores.bucket.claim import claim
from brigade.stores.bucket.enqueue import Draft
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.load import load
from brigade.stores.bucket.moves import complete_moves
from brigade.stores.bucket.redrive import redrive_parked
from brigade.stores.bucket.settle import Change
from brigade.stores.bucket.steps import Proto, Sleep, list_all
from brigade.stores.bucket.sweep import sweep
from brigade.stores.bucket.wire import SEGMENT, Entry
from brigade.testing.sim.actors import deliver, enqueue_told, settle_told
from brigade.testing.sim.faults import CALM
from brigade.testing.sim.process import Process
from brigade.testing.sim.scenario import DEAD_LETTERS, JOBS, Scenario

__all__ = ["CASTS", "Cast"]

LEASE = 10.0
EXPIRED = to_ms(LEASE) + 1000
AGES = 2 * 3_600_000
PLAIN = QueuePolicy(visibility_timeout=LEASE, backoff=Backoff(base=0.0))
PARKING = replace(PLAIN, failure=Failure(max_retries=0))
BURYING = replace(PLAIN, failure=Failure("dead-letter", max_retries=0, dead_letter_queue=DEAD_LETTERS))
STRICT = replace(PLAIN, ordering_guarantee=True)
Actor = Callable[[Process], Proto[None]]


@dataclass(frozen=True, slots=True)
class Cast:
    """Actors that run side by side after `before` has run alone.

    `ticks` are the jumps that the clock may make, in order, each at any moment. `faults` of the operations may have
    an unknown outcome, `late` of them arrive after that, each anywhere. `crashes` is for the unreduced search: so many
    of the actors stop for good. In the reduced one any of them may, because every state is judged as if they had.
    """

    name: str
    about: str
    actors: tuple[tuple[str, Actor], ...]
    before: tuple[Actor, ...] = ()
    policy: QueuePolicy = PLAIN
    letters: bool = False
    ticks: tuple[int, ...] = ()
    faults: int = 1
    late: int = 0
    crashes: int = 1

    @property
    def scenario(self) -> Scenario:
        letters = QueuePolicy(visibility_timeout=LEASE) if self.letters else None
        return Scenario(0, self.name, self.policy, CALM, 0, 0.0, (), (), 0, letters)


def producer(process: Process, name: str, count: int = 1, own_id: str | None = None, names: int = 1) -> Proto[None]:
    """Enqueue in one call. Where the outcome is unknown, a message with an id of its own is sent again.

    Two producers of one id can keep each other from it for as long as they like, by taking the other's name in turn.
    So each is followed until it has taken `names` of its own, and stops for good before the next one.
    """
    drafts: list[Draft] = []
    for place in range(count):
        uid = f"{name}{place}"
        payload = process.world.payloads[uid] = uid.encode()
        drafts.append(Draft(Entry(payload, len(payload), process.env.now(), "text/plain", uid, own_id=own_id)))
    if own_id is None:
        yield from enqueue_told(process, drafts)
    else:
        yield from _until_named(_sent_twice(process, drafts), names)


def _sent_twice(process: Process, drafts: list[Draft]) -> Proto[None]:
    for _ in range(2):
        if (yield from enqueue_told(process, drafts)):
            return


def _until_named(proto: Proto[None], names: int) -> Proto[None]:
    """The steps of a producer until it would write a segment under one name more."""
    taken: set[str] = set()

    def one_more(step: object) -> bool:
        if isinstance(step, Create) and "/seg/" in step.key and not SEGMENT.decode(step.body, key=step.key).void:
            taken.add(step.key)
        return len(taken) > names

    yield from _until(proto, one_more)


def _until(proto: Proto[None], stop: Callable[[object], bool]) -> Proto[None]:
    """The steps of a protocol function until one is not to be made: whoever made them is dead."""
    answer: Any = None
    error: Exception | None = None
    while True:
        try:
            step = proto.send(answer) if error is None else proto.throw(error)
        except StopIteration:
            return
        if stop(step):
            return
        answer, error = None, None
        try:
            answer = yield step
        except StoreUnavailable as caught:
            error = caught


def worker(process: Process, kind: str, limit: int = 2, queue: str = JOBS) -> Proto[None]:
    """Claim once, settle what was won in one call, and write the history of what has ended."""
    view, since = process.view(queue), len(process.world.history)
    try:
        grants = yield from claim(process.env, view, limit=limit, owner=process.name, visibility=LEASE, listing_ttl=1.0)
        held = yield from deliver(process, queue, (yield from load(process.env, view, grants)), since)
    except StoreUnavailable:
        return
    by_segment: dict[SegmentName, list[Change]] = {}
    for message in held:
        places, due = [message.place], process.env.now()
        if kind == "extend":
            due += to_ms(LEASE)
        error = "no luck" if kind == "nack" else None
        change = Change(kind, places, message.token, message.version, due, error)
        by_segment.setdefault(message.name, []).append(change)
    for name, changes in by_segment.items():
        yield from settle_told(process, view, name, changes, tries=1)
    yield from process.finish(queue)


def sweeper(process: Process) -> Proto[None]:
    """Sweep every queue once."""
    with suppress(StoreUnavailable):
        for queue in process.world.scenario.queues:
            yield from sweep(process.env, process.view(queue))
            yield from process.finish(queue)
        yield from complete_moves(process.env, process.view(JOBS))


def half_moved(process: Process) -> Proto[None]:
    """Fail a message for good and park it, and die before that is written down; two hours pass."""
    parked: list[str] = []

    def written_down(step: object) -> bool:
        if isinstance(step, Create) and "/failed/" in step.key:
            parked.append(step.key)
        return bool(parked) and isinstance(step, Swap)

    yield from _until(worker(process, "nack"), written_down)
    yield Sleep(AGES / 1000)


def mover(process: Process) -> Proto[None]:
    """Carry out what was decided and is not known to be done, and write the history of what that ends."""
    view = process.view(JOBS)
    with suppress(StoreUnavailable):
        for item in (yield from list_all(view.keys.ledgers)):
            name = view.keys.parse(item.key)
            if name is not None:
                view.unmoved[name] = None
        yield from complete_moves(process.env, view)
    yield from process.finish(JOBS)


def redriver(process: Process) -> Proto[None]:
    """Bring parked failures back."""
    with suppress(StoreUnavailable):
        yield from redrive_parked(process.env, process.view(JOBS), None, 10)


def _one(name: str, count: int = 1) -> Actor:
    return partial(producer, name=name, count=count)


def _same(name: str, names: int) -> Actor:
    return partial(producer, name=name, own_id="same", names=names)


def _works(kind: str, limit: int = 2, queue: str = JOBS) -> Actor:
    return partial(worker, kind=kind, limit=limit, queue=queue)


CASTS: dict[str, Cast] = {
    cast.name: cast
    for cast in (
        Cast(
            "enqueue-claim",
            "a producer and a worker that acks",
            (("p", _one("p")), ("w", _works("ack"))),
            ticks=(EXPIRED,),
            faults=2,
        ),
        Cast(
            "two-claim",
            "two workers on a segment of two messages",
            (("a", _works("ack")), ("b", _works("ack"))),
            before=(_one("m", 2),),
            ticks=(EXPIRED,),
        ),
        Cast(
            "share",
            "two workers that take a message each of one segment",
            (("a", _works("ack", 1)), ("b", _works("release", 1))),
            before=(_one("m", 2),),
            ticks=(EXPIRED,),
        ),
        Cast(
            "three-share",
            "three workers that take a message each of one segment of two",
            (("a", _works("ack", 1)), ("b", _works("ack", 1)), ("c", _works("ack", 1))),
            before=(_one("m", 2),),
        ),
        Cast(
            "takeover",
            "a worker whose lease runs out, one that extends, and one that acks",
            (("a", _works("ack", 1)), ("b", _works("extend", 1)), ("c", _works("ack", 1))),
            before=(_one("m"),),
            ticks=(EXPIRED,),
            crashes=0,
        ),
        Cast(
            "finish-sweep",
            "a worker that acks and finishes, and a sweeper an hour later",
            (("w", _works("ack")), ("s", sweeper)),
            before=(_one("m", 2),),
            ticks=(EXPIRED, AGES),
        ),
        Cast(
            "own-ids",
            "two producers of one id, and a worker",
            (("p", _same("p", 1)), ("q", _same("q", 1)), ("w", _works("ack"))),
        ),
        Cast(
            "own-ids-duel",
            "two producers of one id that take each other's name in turn",
            (("p", _same("p", 2)), ("q", _same("q", 2))),
        ),
        Cast(
            "retry",
            "a worker that fails a message for good, and one that redrives it",
            (("w", _works("nack")), ("r", redriver)),
            before=(_one("m", 2),),
            policy=PARKING,
            ticks=(EXPIRED,),
        ),
        Cast(
            "redrive-sweep",
            "a worker that fails a message for good, one that redrives it, and a sweeper an hour later",
            (("w", _works("nack")), ("r", redriver), ("s", sweeper)),
            before=(_one("m", 2),),
            policy=PARKING,
            ticks=(AGES,),
            faults=0,
        ),
        Cast(
            "parked-long-ago",
            "two that carry on with a failure parked two hours ago by one who died, a redriver and a sweeper",
            (("a", mover), ("b", mover), ("r", redriver), ("s", sweeper)),
            before=(_one("m"), half_moved),
            policy=PARKING,
            faults=0,
        ),
        Cast(
            "dead-letter",
            "a worker that buries a message, and one that works off the letters",
            (("w", _works("nack")), ("l", _works("ack", 2, DEAD_LETTERS)), ("s", sweeper)),
            before=(_one("m"),),
            policy=BURYING,
            letters=True,
            ticks=(AGES,),
            faults=0,
        ),
        Cast(
            "lane",
            "a producer and two workers on a strict queue",
            (("p", _one("p")), ("a", _works("ack", 1)), ("b", _works("ack", 1))),
            before=(_one("m"),),
            policy=STRICT,
            faults=0,
        ),
        Cast(
            "late",
            "a producer and a worker whose writes may arrive long after they were given up",
            (("p", _one("p")), ("w", _works("ack"))),
            ticks=(EXPIRED,),
            late=1,
        ),
    )
}
