"""Depth first through every state that the actors, the clock and the faults can bring about."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple

from brigade.blobs import Get, List, Op
from brigade.stores.bucket.steps import Sleep
from brigade.testing.explore.casts import AGES, Cast
from brigade.testing.explore.history import NOTHING, History, Lines
from brigade.testing.explore.judge import Judge
from brigade.testing.explore.memory import NONE, Answer, Memory
from brigade.testing.explore.moves import Move, blind, fates, is_applied
from brigade.testing.explore.shelf import Shelf
from brigade.testing.explore.stage import Stage
from brigade.testing.sim.checker import Violation

__all__ = ["Report", "explore"]

TELL_EVERY = 500


class Held(NamedTuple):
    """An answer that an actor hears after so many jumps of the clock."""

    actor: int
    answer: Answer
    until: int


class State(NamedTuple):
    """Everything that the future depends on. `dead` has a bit for each actor that has crashed."""

    shelf: Shelf
    memories: tuple[Memory, ...]
    held: tuple[Held, ...]
    late: tuple[Op, ...]
    ticks: int
    faults: int
    lates: int
    crashes: int
    dead: int


@dataclass(slots=True)
class Report:
    """How far an exploration came, and what it found. `complete` says that there is no other state.

    `judged` counts different histories with what the store held at the end of each, `ends` the states in which
    everybody has done what there was to do.
    """

    cast: str
    states: int = 0
    moves: int = 0
    ends: int = 0
    judged: int = 0
    longest: int = 0
    complete: bool = False
    broken: list[tuple[list[str], list[Violation]]] = field(default_factory=list[tuple[list[str], list[Violation]]])


def explore(
    cast: Cast,
    *,
    most_states: int | None = None,
    tell: Callable[[int], None] | None = None,
    reduced: bool = True,
    shortest: bool = False,
) -> Report:
    """Visit every state once, and judge it. Stops at the first that breaks a promise.

    `tell` hears now and then how many states have been visited. Without `reduced`, orders of events that come to the
    same are told apart: that takes far longer, and finds the same. With `shortest` the path to what is broken has as
    few events as any; that takes more memory.
    """
    search = _Search(cast, reduced=reduced)
    report = Report(cast.name)
    start, history = search.start()
    seen = {search.key(start)}
    todo: deque[tuple[State, History, tuple[Any, ...], int]] = deque([(start, history, (), 0)])
    take = todo.popleft if shortest else todo.pop
    judge = search.judge
    while todo:
        state, history, path, depth = take()
        report.states += 1
        report.longest = max(report.longest, depth)
        if tell is not None and report.states % TELL_EVERY == 0:
            tell(report.states)
        if most_states is not None and report.states >= most_states:
            report.judged = judge.judged
            return report
        report.ends += all(memory.ended for memory in state.memories) and not state.late
        for move, after, told in search.moves(state):
            report.moves += 1
            then = history.then(told)
            broken = judge.judge(then, after.shelf, after.ticks)
            if broken:
                report.broken.append(judge.in_words(_unfold((path, move))))
                report.judged = judge.judged
                return report
            key = search.key(after)
            if key not in seen:
                seen.add(key)
                todo.append((after, then, (path, move), depth + 1))
    report.judged, report.complete = judge.judged, True
    return report


def _unfold(path: tuple[Any, ...]) -> list[Move]:
    moves: list[Move] = []
    while path:
        path, move = path
        moves.append(move)
    return moves[::-1]


class _Search:
    """What may happen next in a state of a cast."""

    def __init__(self, cast: Cast, *, reduced: bool) -> None:
        self._cast = cast
        self._stage = Stage(cast)
        self._reduced = reduced
        self.judge = Judge(self._stage)
        self._times = [self._stage.at(ticks) for ticks in range(len(cast.ticks) + 1)]
        self._roles = self._stage.roles(merged=reduced)
        self._pack = Struct(f"<16s{len(cast.actors)}qII5B").pack
        self._rare: dict[object, int] = {(): 0}

    def start(self) -> tuple[State, History]:
        memories = tuple(role.enter(self._times[0]) for role in self._roles)
        history = History(None, Lines(tuple(self._stage.world.history), b""))
        for memory in memories:
            history = history.then(memory.told)
        crashes = 0 if self._reduced else self._cast.crashes
        state = State(self._stage.storage.shelf, memories, (), (), 0, self._cast.faults, self._cast.late, crashes, 0)
        return state, history

    def key(self, state: State) -> bytes:
        shelf, memories, held, late, *small = state
        rare = self._rare
        return self._pack(
            shelf.mark.to_bytes(16),
            *[memory.number for memory in memories],
            rare.setdefault(tuple((actor, answer.name, until) for actor, answer, until in held), len(rare))
            if held
            else 0,
            rare.setdefault(late, len(rare)) if late else 0,
            *small,
        )

    def moves(self, state: State) -> Iterator[tuple[Move, State, Lines]]:
        """Every event that may come next, the state after it, and what is told of it."""
        waiting = {held.actor for held in state.held}
        able = [
            (actor, memory)
            for actor, memory in enumerate(state.memories)
            if not memory.ended and actor not in waiting and not state.dead >> actor & 1
        ]
        if self._reduced:
            for actor, memory in able:
                if isinstance(memory.op, Sleep):
                    yield from self._hears(state, Move("goes on", actor), memory, NONE, NOTHING)
                    return
        now = self._times[state.ticks]
        for actor, memory in able:
            op = memory.op
            if isinstance(op, Sleep):
                yield from self._hears(state, Move("goes on", actor), memory, NONE, NOTHING)
            elif op is not None:
                yield from self._operations(state, actor, memory, op, now)
            if state.crashes:
                dead = state._replace(dead=state.dead | 1 << actor, crashes=state.crashes - 1)
                yield Move("crash", actor), dead, NOTHING
        for place, op in enumerate(state.late):
            done = self.judge.perform(state.shelf, op, now)
            left = (*state.late[:place], *state.late[place + 1 :])
            yield Move("arrives", place), state._replace(shelf=done.shelf, late=left), done.seen
        if state.ticks < len(self._cast.ticks):
            yield self._tick(state)

    def _operations(
        self, state: State, actor: int, memory: Memory, op: Op, now: int
    ) -> Iterator[tuple[Move, State, Lines]]:
        """An actor's operation with every fate it may have."""
        done = self.judge.perform(state.shelf, op, now)
        for kind in fates(op, faults=state.faults, lates=state.lates):
            if kind == "ok":
                yield from self._hears(
                    state._replace(shelf=done.shelf), Move(kind, actor), memory, done.answer, done.seen
                )
                continue
            applied = is_applied(kind)
            after = state._replace(
                shelf=done.shelf if applied else state.shelf,
                faults=state.faults - 1,
                late=(*state.late, op) if kind == "late" else state.late,
                lates=state.lates - (kind == "late"),
            )
            yield from self._hears(
                after, Move(kind, actor), memory, Answer.of(blind(op)), done.seen if applied else NOTHING
            )

    def _hears(
        self, state: State, move: Move, memory: Memory, answer: Answer, seen: Lines
    ) -> Iterator[tuple[Move, State, Lines]]:
        """The actor hears of it now, or after a jump of the clock."""
        actor = move.actor
        heard = memory.after(answer, self._times[state.ticks])
        yield move, _put(state, actor, heard), _both(seen, heard.told)
        for until in range(state.ticks + 1, len(self._times)):
            before, heard = heard, memory.after(answer, self._times[until])
            if not self._reduced or heard is not before or self._cuts_off(until, heard):
                yield move._replace(until=until), state._replace(held=(*state.held, Held(actor, answer, until))), seen

    def _cuts_off(self, ticks: int, memory: Memory) -> bool:
        """Whether that jump of the clock is longer than a write can be under way, and the actor waits for one."""
        op = memory.op
        return self._cast.ticks[ticks - 1] >= AGES and op is not None and not isinstance(op, Get | List | Sleep)

    def _tick(self, state: State) -> tuple[Move, State, Lines]:
        """The clock jumps, and who has waited for that hears its answer."""
        ticks, told, dead = state.ticks + 1, NOTHING, state.dead
        waiting = {held.actor for held in state.held}
        for actor, memory in enumerate(state.memories):
            if actor not in waiting and self._cuts_off(ticks, memory):
                dead |= 1 << actor
        after = state._replace(ticks=ticks, dead=dead, held=tuple(held for held in state.held if held.until != ticks))
        for actor, answer, until in state.held:
            if until == ticks:
                heard = after.memories[actor].after(answer, self._times[ticks])
                after, told = _put(after, actor, heard), _both(told, heard.told)
        return Move("tick"), after, told


def _put(state: State, actor: int, memory: Memory) -> State:
    memories = state.memories
    return state._replace(memories=(*memories[:actor], memory, *memories[actor + 1 :]))


def _both(first: Lines, second: Lines) -> Lines:
    if not (first.records and second.records):
        return first if first.records else second
    return Lines(first.records + second.records, first.digest + second.digest)
