"""A simulated process: one `Env` with a skewed clock, its views of the queues, and the tasks that share them."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any

from brigade.errors import StoreUnavailable
from brigade.ids import Ids
from brigade.stores.bucket.finish import finish
from brigade.stores.bucket.steps import Env, Proto
from brigade.stores.bucket.view import QueueView
from brigade.testing.sim.records import Record
from brigade.testing.sim.scenario import Scenario
from brigade.testing.sim.scheduler import Owner
from brigade.testing.sim.storage import SkewedClock, VirtualClock

__all__ = ["Actor", "Process", "World"]

PATIENCE = 2000
"""Milliseconds for which every other process leaves alone what others have just written, as on S3."""


class World:
    """What every process of a run shares: the scenario, the true time and the history that is being made."""

    def __init__(self, scenario: Scenario, clock: VirtualClock) -> None:
        self.scenario = scenario
        self.clock = clock
        self.history: list[Record] = []
        self.payloads: dict[str, bytes] = {}
        self.stopping = False
        self.uids = 0
        self._calls = 0

    def uid(self) -> str:
        self.uids += 1
        return f"u{self.uids}"

    def call(self) -> int:
        self._calls += 1
        return self._calls

    def now(self) -> int:
        return self.clock.now()

    def tell(self, record: Record) -> None:
        self.history.append(record)


class Process(Owner):
    """One process's memory. It is lost when the process is killed."""

    def __init__(self, world: World, name: str, seed: int, skew_ms: int, mourn: Callable[[], None]) -> None:
        super().__init__(name, mourn)
        self.world = world
        self.rng = random.Random(seed)
        self.env = Env(SkewedClock(world.clock, skew_ms), Ids(seed))
        self._views: dict[str, QueueView] = {}
        self._finishing = False

    def view(self, queue: str) -> QueueView:
        found = self._views.get(queue)
        if found is None:
            found = self._views[queue] = QueueView(queue, self.world.scenario.queues[queue])
            found.patience = sum(self.name.encode()) % 2 * PATIENCE
        return found

    def finish(self, queue: str) -> Proto[None]:
        """Write the history of what this process finished; what fails is left to a sweeper."""
        view = self.view(queue)
        if self._finishing or not view.finished:
            return
        self._finishing = True
        finals, view.finished = view.finished, {}
        try:
            yield from finish(self.env, view, finals)
        except StoreUnavailable:
            pass
        finally:
            self._finishing = False


Actor = Callable[[Process], Generator[Any, Any, None]]
