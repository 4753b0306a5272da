"""Those who look after a queue: finishers, sweepers, movers, redrivers, purgers, pausers and onlookers."""

from __future__ import annotations

from contextlib import suppress

from brigade.errors import MessageNotFound, StoreUnavailable
from brigade.stores.bucket import admin, inspect
from brigade.stores.bucket.accounts import open_account
from brigade.stores.bucket.claim import claim
from brigade.stores.bucket.keys import QueueKeys, SegmentName
from brigade.stores.bucket.load import load
from brigade.stores.bucket.moves import complete_moves
from brigade.stores.bucket.redrive import redrive_letters, redrive_parked
from brigade.stores.bucket.settle import Change
from brigade.stores.bucket.steps import Proto, Sleep, list_all
from brigade.stores.bucket.sweep import sweep
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import Entry
from brigade.testing.sim.actors import Held, deliver, settle_told, together
from brigade.testing.sim.process import Process
from brigade.testing.sim.scenario import DEAD_LETTERS, JOBS

__all__ = [
    "finisher",
    "inspector",
    "mover",
    "pauser",
    "purger",
    "redrive_dead",
    "redriver",
    "sweeper",
]


def _stop(process: Process) -> bool:
    return process.world.stopping


def finisher(process: Process) -> Proto[None]:
    """Write the history of what this process made final."""
    while not _stop(process):
        idle = not any(process.view(queue).finished for queue in process.world.scenario.queues)
        yield Sleep(process.rng.uniform(0.2, max(2.0, process.world.scenario.duration / 200 * idle)))
        for queue in process.world.scenario.queues:
            yield from process.finish(queue)


def sweeper(process: Process) -> Proto[None]:
    """Sweep every queue now and then."""
    while not _stop(process):
        yield Sleep(process.rng.uniform(0.3, process.world.scenario.sweep_every))
        for queue in process.world.scenario.queues:
            try:
                yield from sweep(process.env, process.view(queue))
            except StoreUnavailable:
                continue
            yield from process.finish(queue)


def mover(process: Process) -> Proto[None]:
    """Look for moves that were decided and not carried out."""
    view = process.view(JOBS)
    while not _stop(process):
        yield Sleep(process.rng.uniform(0.5, process.world.scenario.sweep_every))
        try:
            for item in (yield from list_all(view.keys.ledgers)):
                name = view.keys.parse(item.key)
                if name is not None:
                    yield from open_account(process.env, view, name, cached=False)
            yield from complete_moves(process.env, view)
        except StoreUnavailable:
            continue
        yield from process.finish(JOBS)


def redriver(process: Process) -> Proto[None]:
    """Bring failures back, a few times."""
    for _ in range(2):
        yield Sleep(process.rng.uniform(1, process.world.scenario.duration / 2))
        limit = process.rng.choice((1, 3, 1000))
        try:
            yield from redrive_parked(process.env, process.view(JOBS), None, limit)
            if process.world.scenario.letters is not None:
                yield from redrive_dead(process, limit)
        except StoreUnavailable:
            continue


def redrive_dead(process: Process, limit: int) -> Proto[int]:
    """Claim dead letters, copy them back to where they failed, and ack them."""
    letters = process.view(DEAD_LETTERS)
    total = 0
    while total < limit:
        since = len(process.world.history)
        grants = yield from claim(
            process.env,
            letters,
            limit=limit - total,
            owner="redrive",
            visibility=120,
            listing_ttl=0,
            only_derived=True,
        )
        loaded = yield from load(process.env, letters, grants)
        held = yield from deliver(process, DEAD_LETTERS, loaded, since)
        if not held:
            break
        found = [(message.ref, _letter(message)) for message in held]
        yield from redrive_letters(process.env, QueueKeys(DEAD_LETTERS), process.view(JOBS), found)
        by_segment: dict[SegmentName, list[Change]] = {}
        for message in held:
            change = Change("ack", [message.place], message.token, message.version)
            by_segment.setdefault(message.name, []).append(change)
        for name, changes in by_segment.items():
            yield from settle_told(process, letters, name, together(changes))
        total += len(held)
    yield from process.finish(DEAD_LETTERS)
    return total


def _letter(message: Held) -> Entry:
    """A dead letter as a client knows it: without the limits that its entry still has."""
    entry = message.entry
    return Entry(
        entry.payload,
        entry.size,
        entry.enqueued,
        entry.content_type,
        entry.correlation,
        entry.attributes,
        entry.group,
        failure=entry.failure,
        priority=entry.priority,
    )


def purger(process: Process) -> Proto[None]:
    """Drop everything that waits, once."""
    yield Sleep(process.rng.uniform(1, process.world.scenario.duration / 2))
    with suppress(StoreUnavailable):
        yield from admin.purge(process.env, process.view(JOBS))
    yield from process.finish(JOBS)


def pauser(process: Process) -> Proto[None]:
    """Stop the queue for a while."""
    view = process.view(JOBS)
    while not _stop(process):
        yield Sleep(process.rng.uniform(1, process.world.scenario.duration / 2))
        try:
            yield from admin.pause(process.env, view)
            yield Sleep(process.rng.uniform(0, 3))
            yield from admin.resume(view)
        except StoreUnavailable:
            continue


def inspector(process: Process) -> Proto[None]:
    """Look at everything; nothing may change by it."""
    while not _stop(process):
        yield Sleep(process.rng.uniform(0.5, process.world.scenario.duration / 4))
        for queue in process.world.scenario.queues:
            view = process.view(queue)
            try:
                yield from inspect.stats(process.env, view)
                yield from inspect.peek(process.env, view, 10)
                yield from inspect.failed(process.env, view, 10)
                yield from _find_one(process, view)
            except StoreUnavailable:
                continue


def _find_one(process: Process, view: QueueView) -> Proto[None]:
    candidates = view.candidates
    if candidates:
        name = process.rng.choice(candidates)
        with suppress(MessageNotFound):
            yield from inspect.find(process.env, view, f"{name}-{process.rng.randrange(name.size)}")
