"""What an actor knows is what it has been answered, and when. So its memory is a tree of answers, made once a branch.

A generator can't be copied. But it is deterministic: fed with the same answers at the same times, it asks for the
same operations. Where a search needs an actor in a state that it has been in before, nothing is run at all.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from brigade.blobs import Op
from brigade.errors import BrigadeError, StoreUnavailable
from brigade.stores.bucket.steps import Parallel, Sleep
from brigade.testing.explore.history import Lines, lines
from brigade.testing.sim.process import World
from brigade.testing.sim.records import Raised
from brigade.testing.sim.scenario import JOBS
from brigade.testing.sim.storage import EPOCH, VirtualClock

__all__ = ["Answer", "Asked", "Memory", "OwnClock", "Role", "Script", "flat"]

Asked = Op | Sleep
Script = Generator[Asked, Any, None]
NAP = 250.0
"""How long a pause is by the clock of whoever makes it: long enough to lose patience, and to give up after a few."""
MOST_ALIVE = 2000


class Answer(NamedTuple):
    """What an operation answers, or the exception that it raises, and how it is told from other answers."""

    value: object
    name: str

    @staticmethod
    def of(value: object) -> Answer:
        return Answer(value, repr(value))


NONE = Answer.of(None)


class OwnClock:
    """The store's time, and an own idea of how much has passed. Knows whether anybody has looked."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._napped = 0.0
        self.looked = False

    def now(self) -> int:
        self.looked = True
        return self._clock.now()

    def monotonic(self) -> float:
        self.looked = True
        return self._clock.monotonic() + self._napped

    def nap(self) -> None:
        self._napped += NAP


class Run:
    """An actor under way, in a world of its own."""

    def __init__(self, name: str, script: Script, world: World, clock: OwnClock) -> None:
        self._name = name
        self._script = script
        self._world = world
        self._clock = clock

    def go_on(self, answer: object, at: int) -> tuple[Asked | None, Lines, bool]:
        """What it asks for next, what it has told of meanwhile, and whether it has looked at the clock."""
        self._world.clock.ms = float(at - EPOCH)
        self._clock.looked = False
        op = self.step(answer)
        told = lines(self._world.history)
        self._world.history.clear()
        return op, told, self._clock.looked

    def step(self, answer: object) -> Asked | None:
        """What it asks for next, None where it has ended."""
        try:
            if isinstance(answer, Exception):
                # Always a new one: an exception keeps the frames that it has passed through.
                return self._script.throw(type(answer)(*answer.args))
            return self._script.send(answer)
        except (StopIteration, StoreUnavailable):
            return None
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({where.name}:{where.lineno})"
            self._world.tell(Raised(at=self._world.now(), queue=JOBS, where=self._name, error=text))
            return None

    def close(self) -> None:
        self._script.close()


class Role:
    """One actor of a cast: how to make it, and all that it may ever remember.

    With `merged` two memories count as one where the difference can't be told from outside, now or later: what an
    actor has been answered in a step in which it didn't look at the clock is the same at any time, and one that has
    ended is known by what it has told alone.
    """

    def __init__(self, make: Callable[[], Run], *, merged: bool) -> None:
        self.make = make
        self.merged = merged
        self._alive: dict[int, Run] = {}
        self._said: dict[tuple[int, bytes], int] = {}
        self._numbers = itertools.count(1)

    def enter(self, at: int) -> Memory:
        return Memory(self, None, NONE, at)

    def number(self) -> int:
        return next(self._numbers)

    def said(self, before: int, told: Lines) -> int:
        """All that has been told of so far, as a number."""
        return self._said.setdefault((before, told.digest), len(self._said) + 1) if told.records else before

    def keep(self, number: int, run: Run) -> None:
        """Have an actor at hand for the next answer; the one that has waited longest makes room."""
        self._alive[number] = run
        if len(self._alive) > MOST_ALIVE:
            self._alive.pop(next(iter(self._alive))).close()

    def take(self, number: int) -> Run | None:
        return self._alive.pop(number, None)


class Memory:
    """One state of an actor: what it asks for next, or that it has ended, and what it told of on its way here."""

    __slots__ = (
        "_answer",
        "_at",
        "_next",
        "_own",
        "_parent",
        "_role",
        "ended",
        "looked",
        "number",
        "op",
        "said",
        "told",
    )

    def __init__(self, role: Role, parent: Memory | None, answer: Answer, at: int) -> None:
        self._role = role
        self._parent = parent
        self._answer = answer
        self._at = at
        self._next: dict[tuple[str, int], Memory] = {}
        self._own = role.number()
        run = role.make() if parent is None else parent._run()
        self.op, self.told, self.looked = run.go_on(answer.value, at)
        self.said = role.said(parent.said if parent else 0, self.told)
        self.ended = self.op is None
        self.number = -self.said if self.ended and role.merged else self._own
        if self.ended:
            run.close()
        else:
            role.keep(self._own, run)

    def after(self, answer: Answer, at: int) -> Memory:
        """The state after an answer, or an exception, that came at that time."""
        found = self._next.get((answer.name, 0)) or self._next.get((answer.name, at))
        if found is None:
            found = Memory(self._role, self, answer, at)
            self._next[answer.name, at if found.looked or not self._role.merged else 0] = found
        return found

    def _run(self) -> Run:
        """The actor in this state: still there from when it got here, or made again."""
        run = self._role.take(self._own)
        if run is None:
            path: list[tuple[object, int]] = []
            here: Memory | None = self
            while here is not None:
                path.append((here._answer.value, here._at))
                here = here._parent
            run = self._role.make()
            for answer, at in reversed(path):
                run.go_on(answer, at)
        return run


def flat(proto: Generator[Any, Any, Any], nap: Callable[[], None]) -> Generator[Asked, Any, Any]:
    """The steps of a protocol function, one after the other: parallel parts take turns. `nap` is told of pauses."""
    answer: Any = None
    error: Exception | None = None
    while True:
        try:
            step = proto.send(answer) if error is None else proto.throw(error)
        except StopIteration as stop:
            return stop.value
        answer, error = None, None
        try:
            answer = (yield from _in_turn(step, nap)) if isinstance(step, Parallel) else (yield step)
        except Exception as caught:
            error = caught
        if isinstance(step, Sleep):
            nap()


def _in_turn(step: Parallel, nap: Callable[[], None]) -> Generator[Asked, Any, list[Any]]:
    results: list[Any] = []
    first: Exception | None = None
    for part in step.parts:
        try:
            results.append((yield from flat(part, nap)))
        except BrigadeError as error:
            results.append(None)
            first = first or error
    if first is not None:
        raise first
    return results
