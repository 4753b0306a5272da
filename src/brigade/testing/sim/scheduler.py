"""Runs protocol generators side by side on virtual time: one thread, one seed, one order of events.

An operation travels to the store, is applied, and its answer travels back; each way takes a random time, so
which actor's operation is next is a matter of the seed. A process is a set of tasks that share an `Env` and its
views, and that die together.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from brigade.blobs import CONFLICT, UNKNOWN, Blob, Delete, Get, Op
from brigade.errors import StoreUnavailable
from brigade.stores.bucket.steps import Parallel, Proto, Sleep
from brigade.testing.sim.faults import Fate, Faults, damaged, delay, draw
from brigade.testing.sim.storage import Storage, Trace, VirtualClock, describe, summary

__all__ = ["Owner", "Scheduler", "Task"]

Done = Callable[[Any, Exception | None], None]


class Owner:
    """Whose tasks these are. A dead owner's tasks are never resumed."""

    def __init__(self, name: str, mourn: Callable[[], None] | None = None) -> None:
        self.name = name
        self.alive = True
        self.tasks: dict[Task, None] = {}
        self._mourn = mourn

    def kill(self) -> None:
        """Stop between two operations, for good; memory is lost."""
        if not self.alive:
            return
        self.alive = False
        for task in self.tasks:
            task.close()
        self.tasks.clear()
        if self._mourn is not None:
            self._mourn()


class Scheduler:
    """The order of everything."""

    def __init__(self, rng: random.Random, clock: VirtualClock, storage: Storage, faults: Faults, trace: Trace) -> None:
        self.rng = rng
        self.clock = clock
        self.storage = storage
        self.faults = faults
        self.trace = trace
        self._events: list[tuple[float, float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, ms: float, action: Callable[[], None]) -> None:
        """Do something later; what falls on one moment happens in an order drawn from the seed."""
        self._count += 1
        heapq.heappush(self._events, (self.clock.ms + ms, self.rng.random(), self._count, action))

    def run(self, until_ms: float) -> None:
        """Let time pass until then, or until nothing is left to do."""
        while self._events and self._events[0][0] <= until_ms:
            when, _, _, action = heapq.heappop(self._events)
            self.clock.ms = when
            action()
        self.clock.ms = max(self.clock.ms, until_ms)

    def start(self, owner: Owner, name: str, proto: Proto[Any], done: Done) -> Task:
        task = Task(self, owner, name, proto, done)
        if owner.alive:
            owner.tasks[task] = None
            self.after(0, task.resume)
        return task

    def request(self, task: Task, op: Op) -> None:
        """Send an operation on its way to the store."""
        if self.rng.random() < self.faults.kill:
            self.after(0, task.owner.kill)
            if self.rng.random() < 0.5:
                return
        fate = draw(self.rng, self.faults, op, may_corrupt=task.may_corrupt(op))
        if fate.corrupt and isinstance(op, Get):
            task.corrupted = op.key
        there = delay(self.rng, self.faults)
        if self.rng.random() < self.faults.coma:
            there += self.rng.uniform(60_000, 2_700_000)
        self.after(there, lambda: self._arrive(task, op, fate))

    def _arrive(self, task: Task, op: Op, fate: Fate) -> None:
        answer, error = self._perform(op, fate)
        told = f"{type(error).__name__}" if error else summary(answer)
        note = "" if fate.applied else " (not applied)"
        lost = "" if task.owner.alive else " (nobody waits)"
        self.trace.add(f"{self.clock.ms:.3f} {task.owner.name} {task.name}: {describe(op)} -> {told}{note}{lost}\n")
        self.after(delay(self.rng, self.faults), lambda: task.resume(answer, error))
        if fate.late:
            self.after(self.rng.uniform(0, self.faults.slowest), lambda: self._arrive_late(task, op))

    def _arrive_late(self, task: Task, op: Op) -> None:
        answer = summary(self.storage.apply(op))
        self.trace.add(f"{self.clock.ms:.3f} {task.owner.name} {task.name}: {describe(op)} -> {answer} (late)\n")

    def _perform(self, op: Op, fate: Fate) -> tuple[object, Exception | None]:
        answer: object = None
        if fate.partial and isinstance(op, Delete):
            some = tuple(key for key in op.keys if self.rng.random() < 0.5)
            self.storage.apply(Delete(some))
        elif fate.applied:
            answer = self.storage.apply(op)
        if fate.fails:
            return None, StoreUnavailable("the simulated store did not answer")
        if fate.answer is UNKNOWN or (fate.answer is CONFLICT and isinstance(answer, str)):
            return fate.answer, None
        if fate.corrupt and isinstance(answer, Blob):
            return damaged(self.rng, answer), None
        return answer, None


class Task:
    """A generator on its way, alone or as a part of a `Parallel` step."""

    def __init__(self, scheduler: Scheduler, owner: Owner, name: str, proto: Proto[Any], done: Done) -> None:
        self._scheduler = scheduler
        self.owner = owner
        self.name = name
        self._proto = proto
        self._done = done
        self._open = True
        self.corrupted = ""

    def may_corrupt(self, op: Op) -> bool:
        """A damaged read is sound when it is repeated: the wire was at fault. Payloads apart have no checksum."""
        if not isinstance(op, Get) or "/blob/" in op.key:
            return False
        again = self.corrupted == op.key
        self.corrupted = ""
        return not again

    def close(self) -> None:
        self._open = False
        self._proto.close()

    def resume(self, answer: object = None, error: Exception | None = None) -> None:
        """Hand over an answer and carry out what is asked for next."""
        if not self._open:
            return
        try:
            step = self._proto.send(answer) if error is None else self._proto.throw(error)
        except StopIteration as stop:
            self._end(stop.value, None)
        except Exception as raised:
            self._end(None, raised)
        else:
            match step:
                case Sleep(seconds):
                    self._scheduler.after(seconds * 1000, self.resume)
                case Parallel():
                    _Fork(self._scheduler, self, step)
                case _:
                    self._scheduler.request(self, step)

    def _end(self, value: object, error: Exception | None) -> None:
        self._open = False
        self.owner.tasks.pop(self, None)
        self._done(value, error)


class _Fork:
    """The parts of a `Parallel` step: all of them end before the first error is raised."""

    def __init__(self, scheduler: Scheduler, parent: Task, step: Parallel) -> None:
        self._scheduler = scheduler
        self._parent = parent
        self._waiting = deque(enumerate(step.parts))
        self._left = len(step.parts)
        self._results: list[Any] = [None] * self._left
        self._errors: dict[int, Exception] = {}
        if not self._left:
            scheduler.after(0, lambda: parent.resume([]))
        for _ in range(min(step.width, self._left)):
            self._next()

    def _next(self) -> None:
        if not self._waiting:
            return
        place, part = self._waiting.popleft()

        def done(value: object, error: Exception | None) -> None:
            self._results[place] = value
            if error is not None:
                self._errors[place] = error
            self._left -= 1
            if self._left:
                self._next()
            else:
                self._parent.resume(self._results, self._errors[min(self._errors)] if self._errors else None)

        self._scheduler.start(self._parent.owner, f"{self._parent.name}/{place}", part, done)
