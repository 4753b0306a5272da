"""Runs protocol generators against real blobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from brigade.blobs import Blobs, Gathering
from brigade.stores.bucket.lockstep import in_lockstep
from brigade.stores.bucket.steps import Parallel, Proto, Sleep, Step

__all__ = ["Unfinished", "perform", "perform_now"]

T = TypeVar("T")


class Unfinished(Generic[T]):
    """A generator that was carried out up to a step that has to be waited for."""

    __slots__ = ("proto", "step")

    def __init__(self, proto: Proto[T], step: Step) -> None:
        self.proto = proto
        self.step = step


def perform_now(proto: Proto[T], blobs: Blobs) -> T | Unfinished[T]:
    """Carry out what the generator asks for, as long as storage answers at once."""
    step: Step
    try:
        step = proto.send(None)
        while not isinstance(step, Sleep):
            try:
                answer = _several_now(step, blobs) if isinstance(step, Parallel) else blobs.try_now(step)
            except Exception as error:
                step = proto.throw(error)
                continue
            if answer is NotImplemented:
                break
            if isinstance(answer, Parallel):
                step = answer
                break
            step = proto.send(answer)
    except StopIteration as stop:
        return stop.value
    return Unfinished(proto, step)


async def perform(proto: Proto[T], blobs: Blobs, step: Step | None = None) -> T:
    """Carry out what the generator asks for, until it returns; from `step` on, where it has come that far."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        if step is None:
            try:
                step = proto.send(answer) if error is None else proto.throw(error)
            except StopIteration as stop:
                return stop.value
        answer, error = None, None
        try:
            if isinstance(step, Parallel):
                answer = _several_now(step, blobs)
                if isinstance(answer, Parallel):
                    answer = await _side_by_side(answer.parts, answer.width, blobs)
            elif isinstance(step, Sleep):
                await asyncio.sleep(step.seconds)
            else:
                answer = blobs.try_now(step)
                if answer is NotImplemented:
                    answer = await blobs.perform(step)
        except Exception as caught:
            error = caught
        step = None


def _several_now(step: Parallel, blobs: Blobs) -> list[Any] | Parallel:
    """The results of all parts, or what is left of them to be waited for."""
    return in_lockstep(step, blobs) if isinstance(blobs, Gathering) else step


async def _side_by_side(parts: Sequence[Proto[Any]], width: int, blobs: Blobs) -> list[Any]:
    """Results in order. All parts run to their end before the first error is raised."""
    if blobs.immediate:
        results = [await _caught(part, blobs) for part in parts]
    else:
        gate = asyncio.Semaphore(width)

        async def one(part: Proto[Any]) -> Any:
            async with gate:
                return await _caught(part, blobs)

        results = await asyncio.gather(*(one(part) for part in parts))
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


async def _caught(part: Proto[Any], blobs: Blobs) -> Any:
    try:
        return await perform(part, blobs)
    except Exception as error:
        return error
