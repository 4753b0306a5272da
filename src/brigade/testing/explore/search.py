"""Depth first through every state that the actors, the clock and the faults can bring about."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from brigade.blobs import Op
from brigade.stores.bucket.steps import Sleep
from brigade.testing.explore.casts import Cast
from brigade.testing.explore.memory import Memory
from brigade.testing.explore.moves import Move, act, fates
from brigade.testing.explore.shelf import Shelf
from brigade.testing.explore.stage import Stage
from brigade.testing.sim.checker import Violation

__all__ = ["Report", "explore"]

TELL_EVERY = 500


class State(NamedTuple):
    """Everything that the future depends on.

    `held` are answers that arrive after the next jump of the clock; a dead actor's memory is None. Who pauses goes on
    when the store or the clock is no longer `as_left`, or when nobody else can go on: to look again before would show
    the same.
    """

    shelf: Shelf
    memories: tuple[Memory | None, ...]
    as_left: tuple[tuple[int, int], ...]
    held: tuple[tuple[int, object], ...]
    late: tuple[Op, ...]
    ticks: int
    faults: int
    lates: int
    crashes: int

    def key(self) -> object:
        return (
            self.shelf.mark,
            tuple(-1 if memory is None else memory.number for memory in self.memories),
            self.as_left,
            repr(self.held) if self.held else "",
            self.late,
            *self[5:],
        )


@dataclass(slots=True)
class Report:
    """How far an exploration came, and what it found."""

    cast: str
    states: int = 0
    moves: int = 0
    ends: int = 0
    longest: int = 0
    complete: bool = True
    broken: list[tuple[list[str], list[Violation]]] = field(default_factory=list[tuple[list[str], list[Violation]]])


def explore(cast: Cast, *, most_states: int | None = None, tell: Callable[[int], None] | None = None) -> Report:
    """Visit every state once, and judge every end. Stops at the first that breaks a promise.

    `tell` hears now and then how many states have been visited.
    """
    stage = Stage(cast)
    report = Report(cast.name)
    numbers = itertools.count()
    start = State(
        stage.shelf,
        tuple(Memory(start, ((None, stage.start_ms),), numbers) for start in stage.actors()),
        ((0, 0),) * len(cast.actors),
        (),
        (),
        0,
        cast.faults,
        cast.late,
        cast.crashes,
    )
    seen = {start.key()}
    todo: list[tuple[State, tuple[Any, ...]]] = [(start, ())]
    while todo:
        state, path = todo.pop()
        report.states += 1
        if tell is not None and report.states % TELL_EVERY == 0:
            tell(report.states)
        if most_states is not None and report.states >= most_states:
            report.complete = False
            return report
        ended = True
        for move, after in _moves(cast, stage, state):
            report.moves += 1
            ended = ended and move.kind == "tick"
            key = after.key()
            if key not in seen:
                seen.add(key)
                todo.append((after, (path, move)))
        if ended and not state.late:
            report.ends += 1
            moves = _unfold(path)
            report.longest = max(report.longest, len(moves))
            told, violations = stage.judge(moves)
            if violations:
                report.broken.append((told, violations))
                return report
    return report


def _unfold(path: tuple[Any, ...]) -> list[Move]:
    moves: list[Move] = []
    while path:
        path, move = path
        moves.append(move)
    return moves[::-1]


def _moves(cast: Cast, stage: Stage, state: State) -> Iterator[tuple[Move, State]]:
    """Every event that may come next, and the state after it."""
    now = stage.at(state.ticks)
    waiting = {actor for actor, _ in state.held}
    able = [
        (actor, memory)
        for actor, memory in enumerate(state.memories)
        if memory is not None and memory.op is not None and actor not in waiting
    ]
    busy = any(not isinstance(memory.op, Sleep) or _changed(state, actor) for actor, memory in able)
    for actor, memory in able:
        op = memory.op
        if isinstance(op, Sleep):
            if _changed(state, actor) or not (busy or state.late):
                yield Move("goes on", actor), _told(state, actor, memory.told(None, now))
        elif op is not None:
            yield from _operations(cast, state, actor, memory, op, now)
        if state.crashes:
            left = _put(state.memories, actor, None)
            yield Move("crash", actor), state._replace(memories=left, crashes=state.crashes - 1)
    for place, op in enumerate(state.late):
        _, shelf = state.shelf.apply(op, now)
        yield Move("arrives", place), state._replace(shelf=shelf, late=(*state.late[:place], *state.late[place + 1 :]))
    if state.ticks < len(cast.ticks):
        after = state._replace(held=(), ticks=state.ticks + 1)
        for actor, answer in state.held:
            memory = state.memories[actor]
            assert memory is not None
            after = _told(after, actor, memory.told(answer, stage.at(after.ticks)))
        yield Move("tick"), after


def _operations(cast: Cast, state: State, actor: int, memory: Memory, op: Op, now: int) -> Iterator[tuple[Move, State]]:
    """An actor's operation with every fate it may have, its answer now or after the next jump of the clock."""
    for kind in fates(op, faults=state.faults, lates=state.lates):
        faults, lates = state.faults - (kind != "ok"), state.lates - (kind == "late")
        answer, shelf = act(state.shelf, op, kind, now)
        late = (*state.late, op) if kind == "late" else state.late
        after = state._replace(shelf=shelf, late=late, faults=faults, lates=lates)
        yield Move(kind, actor), _told(after, actor, memory.told(answer, now))
        if state.ticks < len(cast.ticks):
            yield Move(f"{kind}, answer held", actor), after._replace(held=(*state.held, (actor, answer)))


def _changed(state: State, actor: int) -> bool:
    return state.as_left[actor] != (state.shelf.mark, state.ticks)


def _told(state: State, actor: int, memory: Memory) -> State:
    """The state in which an actor has got an answer."""
    left = (state.shelf.mark, state.ticks) if isinstance(memory.op, Sleep) else (0, 0)
    as_left = (*state.as_left[:actor], left, *state.as_left[actor + 1 :])
    return state._replace(memories=_put(state.memories, actor, memory), as_left=as_left)


def _put(memories: tuple[Memory | None, ...], actor: int, memory: Memory | None) -> tuple[Memory | None, ...]:
    return (*memories[:actor], memory, *memories[actor + 1 :])
