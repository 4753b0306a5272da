"""The end of every run: true clock, no faults. Everything is claimed and acked, then swept until nothing is left."""

from __future__ import annotations

from typing import Any, TypeVar

from brigade.stores.bucket import admin
from brigade.stores.bucket.claim import claim
from brigade.stores.bucket.keys import QueueKeys, SegmentName
from brigade.stores.bucket.load import load
from brigade.stores.bucket.redrive import redrive_parked
from brigade.stores.bucket.settle import Change
from brigade.stores.bucket.steps import Parallel, Proto, Sleep
from brigade.stores.bucket.sweep import sweep
from brigade.testing.sim.actors import deliver, settle_told, together
from brigade.testing.sim.process import Process, World
from brigade.testing.sim.records import Final
from brigade.testing.sim.scenario import JOBS, Scenario
from brigade.testing.sim.storage import Storage, Trace, VirtualClock, describe, summary

__all__ = ["Inline", "drain", "set_up"]

T = TypeVar("T")
ROUNDS = 40
HOUR = 3_600_000.0


class Inline:
    """Runs a generator alone, to its end, on a store that works."""

    def __init__(self, storage: Storage, clock: VirtualClock, trace: Trace) -> None:
        self.storage = storage
        self.clock = clock
        self.trace = trace

    def run(self, proto: Proto[T]) -> T:
        answer: Any = None
        while True:
            try:
                step = proto.send(answer)
            except StopIteration as stop:
                return stop.value
            match step:
                case Sleep(seconds):
                    self.clock.ms += seconds * 1000
                    answer = None
                case Parallel(parts, _):
                    answer = [self.run(part) for part in parts]
                case _:
                    answer = self.storage.apply(step)
                    self.clock.ms += 0.01
                    self.trace.add(f"{self.clock.ms:.3f} drain: {describe(step)} -> {summary(answer)}\n")


def set_up(inline: Inline, scenario: Scenario) -> None:
    """Create the queues. A dead-letter queue with the default policy comes to be by itself."""
    process = Process(World(scenario, inline.clock), "setup", scenario.seed, 0, lambda: None)
    for name, policy in scenario.queues.items():
        if name == JOBS or policy.visibility_timeout == scenario.lease:
            inline.run(admin.ensure_queue(process.env, QueueKeys(name), policy, replace=False))


def drain(inline: Inline, world: World) -> Final:
    """Ack everything there is, redrive what failed and ack that; then let time pass and sweep."""
    scenario, clock = world.scenario, inline.clock
    process = Process(world, "drain", scenario.seed + 1, 0, lambda: None)
    for queue in scenario.queues:
        inline.run(admin.resume(process.view(queue)))
    open_ones: list[str] = []
    for turn in range(ROUNDS):
        for queue in scenario.queues:
            inline.run(_drain_queue(process, queue))
        for queue in scenario.queues:
            inline.run(redrive_parked(process.env, process.view(queue), None, 100_000))
            inline.run(_drain_queue(process, queue))
            inline.run(sweep(process.env, process.view(queue)))
        open_ones = _open(inline.storage, scenario)
        if not open_ones:
            break
        clock.ms += 20_000 if turn < ROUNDS // 2 else HOUR / 6
    for step in (0.0, 2 * HOUR, 2 * HOUR, 8 * 24 * HOUR, 8 * 24 * HOUR, 2 * HOUR):
        clock.ms += step
        for queue in scenario.queues:
            inline.run(sweep(process.env, process.view(queue)))
            inline.run(process.finish(queue))
    return Final(open_ones, [key for key in inline.storage.left() if not _allowed(key, scenario)])


def _drain_queue(process: Process, queue: str) -> Proto[None]:
    view = process.view(queue)
    while True:
        view.stale()
        since = len(process.world.history)
        grants = yield from claim(process.env, view, limit=1000, owner="drain", visibility=600, listing_ttl=0)
        held = yield from deliver(process, queue, (yield from load(process.env, view, grants)), since)
        by_segment: dict[SegmentName, list[Change]] = {}
        for message in held:
            change = Change("ack", [message.place], message.token, message.version)
            by_segment.setdefault(message.name, []).append(change)
        for name, changes in by_segment.items():
            yield from settle_told(process, view, name, together(changes))
        yield from process.finish(queue)
        if not grants:
            return


def _open(storage: Storage, scenario: Scenario) -> list[str]:
    """What is still there: segments that are not void, and parked failures."""
    found: list[str] = []
    for queue in scenario.queues:
        found += storage.present(queue)
    return found


def _allowed(key: str, scenario: Scenario) -> bool:
    if not scenario.conditional_delete and key.split("/")[2] in ("ids", "lane"):
        return True
    return key.endswith(("/policy.json", "/seg/!lanes")) or key.startswith("corrupt/")
