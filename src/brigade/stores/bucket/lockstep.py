"""Generators side by side, in lockstep, where storage answers at once: what they ask for at a time is one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brigade.blobs import Gathering
from brigade.stores.bucket.steps import Parallel, Proto, Sleep, Step

__all__ = ["in_lockstep", "resumed"]


def in_lockstep(parallel: Parallel, blobs: Gathering) -> list[Any] | Parallel:
    """The results of all parts, in order, or what is left of them: parts that go on from where they had to wait.

    At most as many parts as its width are under way at once. All run to their end before the first error is raised.
    """
    root = _Strand(_whole(parallel))
    asking = root.begin()
    while asking:
        ready = [strand for strand in asking if not isinstance(strand.step, Sleep)]
        answers = blobs.try_all([strand.step for strand in ready])
        asking = list[_Strand]()
        for strand, answer in zip(ready, answers, strict=True):
            if answer is not NotImplemented:
                asking += strand.go_on(answer)
    if not root.ended:
        return root.left()
    if root.error is not None:
        raise root.error
    return root.result


def _whole(parallel: Parallel) -> Proto[list[Any]]:
    return (yield parallel)


class _Strand:
    """A generator under way, and those that it has made run side by side."""

    __slots__ = (
        "_beginning",
        "_begun",
        "_children",
        "_parent",
        "_proto",
        "_under_way",
        "ended",
        "error",
        "result",
        "step",
    )

    def __init__(self, proto: Proto[Any], parent: _Strand | None = None) -> None:
        self._proto = proto
        self._parent = parent
        self._children: list[_Strand] = []
        self._begun = self._under_way = 0
        self._beginning = False
        self.step: Any = None
        self.result: Any = None
        self.error: Exception | None = None
        self.ended = False

    def begin(self) -> list[_Strand]:
        """Run up to the first step; returns the strands that ask for something now."""
        return self.go_on(None)

    def go_on(self, answer: object) -> list[_Strand]:
        """Run up to the next step, with the answer to the last one or the error that it came to."""
        while True:
            try:
                self.step = self._proto.throw(answer) if isinstance(answer, Exception) else self._proto.send(answer)
            except StopIteration as stop:
                self.result = stop.value
                return self._end()
            except Exception as error:
                self.error = error
                return self._end()
            if not isinstance(self.step, Parallel):
                return [self]
            self._begun = self._under_way = 0
            asking = self._begin_parts(self.step)
            if self._under_way:
                return asking
            answer = self._of_children()

    def _begin_parts(self, parallel: Parallel) -> list[_Strand]:
        """Begin parts until as many as may be are under way, or none is left."""
        asking: list[_Strand] = []
        self._beginning = True
        while self._under_way < parallel.width and self._begun < len(parallel.parts):
            child = _Strand(parallel.parts[self._begun], self)
            self._children.append(child)
            self._begun += 1
            self._under_way += 1
            asking += child.begin()
        self._beginning = False
        return asking

    def _end(self) -> list[_Strand]:
        self.ended = True
        return [] if self._parent is None else self._parent._child_ended()

    def _child_ended(self) -> list[_Strand]:
        self._under_way -= 1
        if self._beginning:
            return []
        asking = self._begin_parts(self.step)
        return asking if self._under_way else self.go_on(self._of_children())

    def _of_children(self) -> object:
        """What all parts came to: the first error, or their results."""
        children, self._children = self._children, []
        failed = [child.error for child in children if child.error is not None]
        return failed[0] if failed else [child.result for child in children]

    def left(self) -> Parallel:
        """What is left of the parts that are under way."""
        parts: Sequence[Proto[Any]] = self.step.parts
        return Parallel([*(child._rest() for child in self._children), *parts[self._begun :]], self.step.width)

    def _rest(self) -> Proto[Any]:
        """What is left of it, as a generator that has not begun."""
        if self.ended:
            return _over(self.result, self.error)
        return resumed(self._proto, self.left() if self._children else self.step)


def _over(result: Any, error: Exception | None) -> Proto[Any]:
    yield from ()
    if error is not None:
        raise error
    return result


def resumed(proto: Proto[Any], step: Step) -> Proto[Any]:
    """A generator that was run up to that step, as one that has not begun."""
    while True:
        try:
            answer = yield step
        except Exception as error:
            resume, answer = proto.throw, error
        else:
            resume = proto.send
        try:
            step = resume(answer)
        except StopIteration as stop:
            return stop.value
