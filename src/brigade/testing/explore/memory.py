"""What an actor knows is what it has been answered, and when. So its memory is a tree of answers, made once a branch.

A generator can't be copied. But it is deterministic: fed with the same answers at the same times, it asks for the
same operations. Where a search needs an actor in a state that it has been in before, nothing is run at all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from brigade.blobs import Op
from brigade.errors import BrigadeError
from brigade.stores.bucket.steps import Parallel, Sleep

__all__ = ["Asked", "Memory", "Script", "flat"]

Asked = Op | Sleep
Script = Generator[Asked, Any, None]
Start = Callable[[], tuple[Script, Callable[[int], None]]]
"""Makes the actor anew: its generator, and how to set its clock."""


class Memory:
    """One state of an actor: what it asks for next, or how it ended."""

    __slots__ = ("_answers", "_next", "_numbers", "_start", "error", "number", "op")

    def __init__(self, start: Start, answers: tuple[tuple[object, int], ...], numbers: Iterator[int]) -> None:
        self._start = start
        self._answers = answers
        self._next: dict[tuple[str, int], Memory] = {}
        self._numbers = numbers
        self.number = next(numbers)
        self.op: Asked | None = None
        self.error: Exception | None = None
        self._recall()

    def told(self, answer: object, at: int) -> Memory:
        """The state after an answer, or an exception, that came at that time."""
        key = (repr(answer), at)
        found = self._next.get(key)
        if found is None:
            found = self._next[key] = Memory(self._start, (*self._answers, (answer, at)), self._numbers)
        return found

    def _recall(self) -> None:
        script, set_clock = self._start()
        try:
            step: Asked | None = None
            for answer, at in self._answers:
                set_clock(at)
                step = script.throw(answer) if isinstance(answer, Exception) else script.send(answer)
            self.op = step
        except StopIteration:
            pass
        except Exception as error:
            self.error = error
        finally:
            script.close()


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
