"""One run: a seed's scenario played to its end, then drained, swept and checked."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from brigade.errors import StoreUnavailable
from brigade.stores.bucket.steps import Proto
from brigade.testing.sim import actors, upkeep
from brigade.testing.sim.checker import Violation, check
from brigade.testing.sim.drain import Inline, drain, set_up
from brigade.testing.sim.process import Process, World
from brigade.testing.sim.records import Limits, Raised, Record
from brigade.testing.sim.scenario import DEAD_LETTERS, JOBS, Scenario, scenario_of
from brigade.testing.sim.scheduler import Scheduler
from brigade.testing.sim.storage import Storage, Trace, VirtualClock
from brigade.testing.sim.witness import Witness

__all__ = ["Report", "run"]

Role = tuple[str, Callable[[Process], Proto[None]]]
GRACE = 20.0


@dataclass(frozen=True, slots=True)
class Report:
    """What a run showed."""

    scenario: Scenario
    violations: list[Violation]
    history: list[Record]
    trace: Trace
    messages: int


def run(seed: int, *, keep_trace: bool = False, scenario: Scenario | None = None) -> Report:
    """Play one seed. The same seed gives the same trace."""
    scenario = scenario or scenario_of(seed)
    clock = VirtualClock()
    world = World(scenario, clock)
    witness = Witness(world.tell)
    storage = Storage(clock, witness, conditional_delete=scenario.conditional_delete)
    trace = Trace(keep=keep_trace)
    rng = random.Random(f"run {seed}")
    inline = Inline(storage, clock, trace)
    set_up(inline, scenario)
    scheduler = Scheduler(rng, clock, storage, scenario.faults, trace)
    cast = _Cast(world, scheduler, rng)
    cast.enter()
    scheduler.run(scenario.duration * 1000)
    world.stopping = True
    scheduler.run((scenario.duration + GRACE * (rng.random() < 0.5)) * 1000)
    cast.leave()
    scheduler.run(clock.ms + 3_000_000)
    final = drain(inline, world)
    limits = Limits(
        {name: policy.failure.max_attempts for name, policy in scenario.queues.items()},
        skew_ms=scenario.skew_ms,
        purged=scenario.purgers > 0,
    )
    violations = check(world.history, limits, final)
    return Report(scenario, violations, world.history, trace, world.uids)


class _Cast:
    """Brings processes on stage, and new ones with fresh memory in place of those that are killed."""

    def __init__(self, world: World, scheduler: Scheduler, rng: random.Random) -> None:
        self._world = world
        self._scheduler = scheduler
        self._rng = rng
        self._processes: list[Process] = []

    def enter(self) -> None:
        scenario = self._world.scenario
        for index, count in enumerate(scenario.producers):
            self._spawn(f"producer{index}", [(f"p{n}", actors.producer) for n in range(count)])
        for index, count in enumerate(scenario.workers):
            roles: list[Role] = [(f"w{n}", actors.worker) for n in range(count)]
            if index < scenario.busy:
                roles += [("p", actors.producer), ("s", upkeep.sweeper), ("r", upkeep.redriver)]
            self._spawn(f"worker{index}", [*roles, ("f", upkeep.finisher)])
        alone: list[tuple[str, int, Callable[[Process], Proto[None]]]] = [
            ("letters", scenario.letter_workers, _letter_worker),
            ("sweeper", scenario.sweepers, upkeep.sweeper),
            ("mover", int(scenario.letters is not None), upkeep.mover),
            ("redriver", scenario.redrivers, upkeep.redriver),
            ("purger", scenario.purgers, upkeep.purger),
            ("pauser", scenario.pausers, upkeep.pauser),
            ("inspector", scenario.inspectors, upkeep.inspector),
        ]
        for name, count, role in alone:
            for index in range(count):
                self._spawn(f"{name}{index}", [("a", role)])

    def leave(self) -> None:
        for process in self._processes:
            process.kill()

    def _spawn(self, name: str, roles: list[Role], life: int = 0) -> None:
        world, rng = self._world, self._rng
        if world.stopping:
            return
        skew = world.scenario.skew_ms

        def mourn() -> None:
            if not world.stopping and life < 5:
                self._scheduler.after(rng.uniform(50, 3000), lambda: self._spawn(name, roles, life + 1))

        process = Process(world, f"{name}.{life}", rng.getrandbits(60), rng.randint(-skew, skew) if skew else 0, mourn)
        self._processes.append(process)
        for role, script in roles:
            self._scheduler.start(process, role, script(process), self._ended(process, role))

    def _ended(self, process: Process, role: str) -> Callable[[object, Exception | None], None]:
        def done(_: object, error: Exception | None) -> None:
            if error is None or isinstance(error, StoreUnavailable):
                return
            where = "; ".join(
                f"{frame.name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-3:]
            )
            text = f"{type(error).__name__}: {error} ({where})"
            at = self._world.now()
            self._world.tell(Raised(at=at, queue=JOBS, where=f"{process.name} {role}", error=text))

        return done


def _letter_worker(process: Process) -> Proto[None]:
    return actors.worker(process, DEAD_LETTERS)
