"""Runs protocol generators against real blobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeVar

from brigade.blobs import Blobs
from brigade.stores.bucket.steps import Parallel, Proto, Sleep

__all__ = ["perform"]

T = TypeVar("T")


async def perform(proto: Proto[T], blobs: Blobs) -> T:
    """Carry out what the generator asks for, until it returns."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = proto.send(answer) if error is None else proto.throw(error)
        except StopIteration as stop:
            return stop.value
        answer, error = None, None
        try:
            if isinstance(step, Parallel):
                answer = await _side_by_side(step.parts, step.width, blobs)
            elif isinstance(step, Sleep):
                await asyncio.sleep(step.seconds)
            else:
                answer = blobs.try_now(step)
                if answer is NotImplemented:
                    answer = await blobs.perform(step)
        except Exception as caught:
            error = caught


async def _side_by_side(parts: Sequence[Proto[Any]], width: int, blobs: Blobs) -> list[Any]:
    """Results in order. All parts run to their end before the first error is raised."""
    if blobs.immediate:
        return [await perform(part, blobs) for part in parts]
    gate = asyncio.Semaphore(width)

    async def one(part: Proto[Any]) -> Any:
        async with gate:
            return await perform(part, blobs)

    results = await asyncio.gather(*(one(part) for part in parts), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
