"""Where the actors of a cast perform: for the search, each alone on its memory; for the judge, all on one history."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence

from brigade.blobs import Op
from brigade.errors import StoreUnavailable
from brigade.stores.bucket.steps import Sleep
from brigade.testing.explore.casts import Cast
from brigade.testing.explore.memory import Asked, Script, flat
from brigade.testing.explore.moves import Move, act
from brigade.testing.explore.shelf import EMPTY, Shelf
from brigade.testing.sim.checker import Violation, check
from brigade.testing.sim.drain import Inline, drain, set_up
from brigade.testing.sim.process import Process, World
from brigade.testing.sim.records import Limits, Raised
from brigade.testing.sim.scenario import JOBS
from brigade.testing.sim.storage import EPOCH, Storage, Trace, VirtualClock, describe, summary, witness_write
from brigade.testing.sim.witness import Witness

__all__ = ["Stage"]

NAP = 60.0
"""How long a pause is by the clock of whoever makes it: long enough to lose patience."""


class ShelfStorage(Storage):
    """The shelf of the moment with the witness of the simulation."""

    def __init__(self, clock: VirtualClock, witness: Witness) -> None:
        super().__init__(clock, witness)
        self.shelf = EMPTY

    def left(self) -> list[str]:
        return sorted(self.shelf.objects)

    def apply(self, op: Op) -> object:
        answer, self.shelf = self.shelf.apply(op, self._clock.now())
        witness_write(self._witness, op, answer, self._clock.now())
        return answer


class _OwnClock:
    """The store's time, and an own idea of how much has passed."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._napped = 0.0

    def now(self) -> int:
        return self._clock.now()

    def monotonic(self) -> float:
        return self._clock.monotonic() + self._napped

    def nap(self) -> None:
        self._napped += NAP


class _Play:
    """One history: a world, its store, what came before the actors entered, and where each of them is."""

    def __init__(self, cast: Cast) -> None:
        self._cast = cast
        self.clock = VirtualClock()
        self.world = World(cast.scenario, self.clock)
        self.storage = ShelfStorage(self.clock, Witness(self.world.tell))
        self.inline = Inline(self.storage, self.clock, Trace())
        set_up(self.inline, cast.scenario)
        for place, before in enumerate(cast.before):
            self.inline.run(before(Process(self.world, f"before{place}", 1000 + place, 0, lambda: None)))
        self.clock.ms = float(int(self.clock.ms) + 1)
        self.start_ms = self.clock.now()
        self.told: list[str] = []
        self._scripts: list[Script] = []
        self._asked: list[Asked | None] = []
        self._held: list[tuple[int, object]] = []
        self._late: list[Op] = []
        self._ticks = 0

    def enter(self) -> None:
        """Bring the actors on stage."""
        self._scripts = [_script(self._cast, place, self.world) for place in range(len(self._cast.actors))]
        self._asked = [None] * len(self._scripts)
        for actor in range(len(self._scripts)):
            self._resume(actor, None)

    def move(self, move: Move) -> None:
        """Let one event happen."""
        match move.kind:
            case "tick":
                self._tick()
            case "arrives":
                op = self._late.pop(move.actor)
                self.told.append(f"arrives late: {describe(op)} -> {summary(self.storage.apply(op))}")
            case "crash":
                self.told.append(f"{self._cast.actors[move.actor][0]} dies")
                self._scripts[move.actor].close()
            case "goes on":
                self._resume(move.actor, None)
            case _:
                self._operate(move)

    def close(self) -> None:
        for script in self._scripts:
            script.close()

    def _tick(self) -> None:
        jump = self._cast.ticks[self._ticks]
        self._ticks += 1
        self.clock.ms += jump
        self.told.append(f"the clock jumps by {jump / 1000:g} s")
        held, self._held = self._held, []
        for actor, answer in held:
            self._resume(actor, answer)

    def _operate(self, move: Move) -> None:
        op = self._asked[move.actor]
        assert op is not None
        assert not isinstance(op, Sleep)
        kind, _, held = move.kind.partition(", answer ")
        answer, _ = act(self.storage.shelf, op, kind, self.clock.now())
        if kind == "ok" or kind.startswith("applied"):
            self.storage.apply(op)
        if kind == "late":
            self._late.append(op)
        note = "" if move.kind == "ok" else f" ({move.kind})"
        self.told.append(f"{self._cast.actors[move.actor][0]}: {describe(op)} -> {summary(answer)}{note}")
        if held:
            self._held.append((move.actor, answer))
        else:
            self._resume(move.actor, answer)

    def _resume(self, actor: int, answer: object) -> None:
        script = self._scripts[actor]
        self._asked[actor] = None
        try:
            self._asked[actor] = script.throw(answer) if isinstance(answer, Exception) else script.send(answer)
        except (StopIteration, StoreUnavailable):
            pass
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({where.name}:{where.lineno})"
            name = self._cast.actors[actor][0]
            self.world.tell(Raised(at=self.world.now(), queue=JOBS, where=name, error=text))


class Stage:
    """Makes actors for the search, and plays a path of the search again for the checker."""

    def __init__(self, cast: Cast) -> None:
        self.cast = cast
        play = _Play(cast)
        self.shelf: Shelf = play.storage.shelf
        self.start_ms = play.start_ms
        self._limits = Limits({name: policy.failure.max_attempts for name, policy in cast.scenario.queues.items()})

    def at(self, ticks: int) -> int:
        """The time after that many jumps of the clock."""
        return self.start_ms + sum(self.cast.ticks[:ticks])

    def actors(self) -> Iterator[Callable[[], tuple[Script, Callable[[int], None]]]]:
        """How to make each actor, with a clock to set."""
        for place in range(len(self.cast.actors)):
            yield lambda place=place: self._alone(place)

    def _alone(self, place: int) -> tuple[Script, Callable[[int], None]]:
        clock = VirtualClock()

        def set_clock(at: int) -> None:
            clock.ms = float(at - EPOCH)

        return _script(self.cast, place, World(self.cast.scenario, clock)), set_clock

    def judge(self, moves: Sequence[Move]) -> tuple[list[str], list[Violation]]:
        """Play the moves, drain what is left, and say what was promised and not kept."""
        play = _Play(self.cast)
        play.enter()
        for move in moves:
            play.move(move)
        play.close()
        return play.told, check(play.world.history, self._limits, drain(play.inline, play.world))


def _script(cast: Cast, place: int, world: World) -> Script:
    name, actor = cast.actors[place]
    process = Process(world, name, 7 + place, 0, lambda: None)
    clock = _OwnClock(world.clock)
    process.env.clock = clock
    return flat(actor(process), clock.nap)
