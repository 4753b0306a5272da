"""Judges a path: its records, and those of the drain that follows when everybody who is under way stops for good.

What a write means to the witness, and what a drain comes to, depends on the store and the time alone. So both are
worked out once for each store, however many paths lead there.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from brigade.blobs import Get, List, Op
from brigade.testing.explore.history import NOTHING, History, Lines, lines
from brigade.testing.explore.memory import Answer
from brigade.testing.explore.moves import Move
from brigade.testing.explore.shelf import Shelf
from brigade.testing.explore.stage import Play, ShelfStorage, Stage
from brigade.testing.sim.checker import Violation, check
from brigade.testing.sim.drain import Inline, drain
from brigade.testing.sim.process import World
from brigade.testing.sim.records import Delivered, Final, Limits, Record
from brigade.testing.sim.storage import EPOCH, Trace, VirtualClock, witness_write
from brigade.testing.sim.witness import Witness

__all__ = ["Done", "Judge"]

MOST_DONE = 500_000
MOST_DRAINS = 50_000


class Done(NamedTuple):
    """An operation's answer, the store after it, and what the witness saw."""

    answer: Answer
    shelf: Shelf
    seen: Lines


class Judge:
    """Performs operations and judges histories, and remembers both."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        failures = {name: policy.failure for name, policy in stage.cast.scenario.queues.items()}
        self._limits = Limits({name: failure.max_attempts for name, failure in failures.items()})
        self._done: dict[tuple[int, int, Op], Done] = {}
        self._drains: dict[tuple[int, int], tuple[list[Record], Final]] = {}
        self._judged: set[bytes] = set()

    @property
    def judged(self) -> int:
        """How many histories, each with its store and its time."""
        return len(self._judged)

    def perform(self, shelf: Shelf, op: Op, now: int) -> Done:
        key = (shelf.mark, now, op)
        done = self._done.get(key)
        if done is None:
            if len(self._done) >= MOST_DONE:
                self._done.clear()
            done = self._done[key] = self._perform(shelf, op, now)
        return done

    def _perform(self, shelf: Shelf, op: Op, now: int) -> Done:
        answer, after = shelf.apply(op, now)
        if isinstance(op, Get | List) or after is shelf:
            return Done(Answer.of(answer), after, NOTHING)
        seen: list[Record] = []
        witness_write(_witness_of(shelf, seen), op, answer, now)
        return Done(Answer.of(answer), after, lines(seen))

    def judge(self, history: History, shelf: Shelf, ticks: int) -> list[Violation]:
        """What was promised and not kept. Nothing where the same has been judged before."""
        key = history.digest + shelf.mark.to_bytes(16) + bytes((ticks,))
        if key in self._judged:
            return []
        self._judged.add(key)
        records = history.records()
        rest, final = self._drained(shelf, ticks)
        before = len(records)
        records += [
            replace(record, since=record.since + before) if isinstance(record, Delivered) else record for record in rest
        ]
        return check(records, self._limits, final)

    def in_words(self, moves: list[Move]) -> tuple[list[str], list[Violation]]:
        """The same judgement of a path that is played again from the beginning: what happened, and what was broken."""
        play = Play(self._stage.cast)
        play.play(moves)
        world = play.stage.world
        final = drain(play.stage.inline, world)
        return play.told, check(world.history, self._limits, final)

    def _drained(self, shelf: Shelf, ticks: int) -> tuple[list[Record], Final]:
        key = (shelf.mark, ticks)
        found = self._drains.get(key)
        if found is None:
            if len(self._drains) >= MOST_DRAINS:
                self._drains.clear()
            clock = VirtualClock()
            clock.ms = float(self._stage.at(ticks) - EPOCH)
            world = World(self._stage.cast.scenario, clock)
            storage = ShelfStorage(clock, _witness_of(shelf, world.history), shelf)
            final = drain(Inline(storage, clock, Trace()), world)
            found = self._drains[key] = (world.history, final)
        return found


def _witness_of(shelf: Shelf, seen: list[Record]) -> Witness:
    """A witness who knows what there is on the shelf, and writes down what comes."""
    witness = Witness(seen.append)
    for key, blob in shelf.objects.items():
        witness.wrote(key, blob.body, blob.modified)
    seen.clear()
    return witness
