"""Where the actors of a cast perform: for the search each in a world of its own, for the reader all in one."""

from __future__ import annotations

from collections.abc import Sequence

from brigade.blobs import Op
from brigade.stores.bucket.steps import Sleep
from brigade.testing.explore.casts import Cast
from brigade.testing.explore.memory import Asked, OwnClock, Role, Run, flat
from brigade.testing.explore.moves import Move, blind, is_applied
from brigade.testing.explore.shelf import EMPTY, Shelf
from brigade.testing.sim.drain import Inline, set_up
from brigade.testing.sim.process import Process, World
from brigade.testing.sim.storage import Storage, Trace, VirtualClock, describe, summary, witness_write
from brigade.testing.sim.witness import Witness

__all__ = ["Play", "ShelfStorage", "Stage"]


class ShelfStorage(Storage):
    """The shelf of the moment with the witness of the simulation."""

    def __init__(self, clock: VirtualClock, witness: Witness, shelf: Shelf = EMPTY) -> None:
        super().__init__(clock, witness)
        self.shelf = shelf

    def left(self) -> list[str]:
        return sorted(self.shelf.objects)

    def apply(self, op: Op) -> object:
        answer, self.shelf = self.shelf.apply(op, self._clock.now())
        witness_write(self._witness, op, answer, self._clock.now())
        return answer


class Stage:
    """A world, its store and what came before the actors entered."""

    def __init__(self, cast: Cast) -> None:
        self.cast = cast
        self.clock = VirtualClock()
        self.world = World(cast.scenario, self.clock)
        self.storage = ShelfStorage(self.clock, Witness(self.world.tell))
        self.inline = Inline(self.storage, self.clock, Trace())
        set_up(self.inline, cast.scenario)
        for place, before in enumerate(cast.before):
            self.inline.run(before(Process(self.world, f"before{place}", 1000 + place, 0, lambda: None)))
        self.clock.ms = float(int(self.clock.ms) + 1)
        self.start_ms = self.clock.now()

    def at(self, ticks: int) -> int:
        """The time after that many jumps of the clock."""
        return self.start_ms + sum(self.cast.ticks[:ticks])

    def roles(self, *, merged: bool) -> list[Role]:
        """The actors, each to be made in a world of its own as often as needed."""
        places = range(len(self.cast.actors))
        return [Role(lambda place=place: self._alone(place), merged=merged) for place in places]

    def _alone(self, place: int) -> Run:
        return perform(self.cast, place, _OwnWorld(self.cast, place))


class _OwnWorld(World):
    """What one actor sees of the world: calls are numbered so that no two actors' are the same."""

    def __init__(self, cast: Cast, place: int) -> None:
        super().__init__(cast.scenario, VirtualClock())
        self._first_call = 1000 * (place + 1)

    def call(self) -> int:
        return self._first_call + super().call()


def perform(cast: Cast, place: int, world: World) -> Run:
    """An actor of the cast before its first step."""
    name, actor = cast.actors[place]
    process = Process(world, name, 7 + place, 0, lambda: None)
    clock = OwnClock(world.clock)
    process.env.clock = clock
    return Run(name, flat(actor(process), clock.nap), world, clock)


class Play:
    """A path of the search, played again on one stage with all actors in one world, in words."""

    def __init__(self, cast: Cast) -> None:
        self.stage = Stage(cast)
        self.told: list[str] = []
        self._cast = cast
        self._runs = [perform(cast, place, self.stage.world) for place in range(len(cast.actors))]
        self._asked: list[Asked | None] = [None] * len(self._runs)
        self._held: list[tuple[int, object, int]] = []
        self._late: list[Op] = []
        self._ticks = 0
        for actor in range(len(self._runs)):
            self._resume(actor, None)

    def play(self, moves: Sequence[Move]) -> None:
        for move in moves:
            self._move(move)
        for run in self._runs:
            run.close()

    def _move(self, move: Move) -> None:
        storage = self.stage.storage
        match move.kind:
            case "tick":
                self._tick()
            case "arrives":
                op = self._late.pop(move.actor)
                self.told.append(f"arrives late: {describe(op)} -> {summary(storage.apply(op))}")
            case "crash":
                self.told.append(f"{self._name(move)} dies")
                self._runs[move.actor].close()
            case "goes on":
                self._hear(move, None)
            case _:
                op = self._asked[move.actor]
                assert op is not None
                assert not isinstance(op, Sleep)
                done = storage.apply(op) if is_applied(move.kind) else None
                answer = done if move.kind == "ok" else blind(op)
                if move.kind == "late":
                    self._late.append(op)
                note = "" if move.kind == "ok" else f" ({move.kind})"
                later = " (heard after the clock has jumped)" if move.until else ""
                self.told.append(f"{self._name(move)}: {describe(op)} -> {summary(answer)}{note}{later}")
                self._hear(move, answer)

    def _name(self, move: Move) -> str:
        return self._cast.actors[move.actor][0]

    def _tick(self) -> None:
        jump = self._cast.ticks[self._ticks]
        self._ticks += 1
        self.stage.clock.ms += jump
        self.told.append(f"the clock jumps by {jump / 1000:g} s")
        held, self._held = self._held, []
        for actor, answer, until in held:
            if until == self._ticks:
                self._resume(actor, answer)
            else:
                self._held.append((actor, answer, until))

    def _hear(self, move: Move, answer: object) -> None:
        if move.until:
            self._held.append((move.actor, answer, move.until))
        else:
            self._resume(move.actor, answer)

    def _resume(self, actor: int, answer: object) -> None:
        self._asked[actor] = self._runs[actor].step(answer)
