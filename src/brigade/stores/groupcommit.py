"""Group commit: what arrives while a write is under way goes out together in the next one. No timer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["GroupCommit"]

T = TypeVar("T")
R = TypeVar("R")


class GroupCommit(Generic[T, R]):
    """Gathers items from concurrent callers; each caller returns when its own items are written."""

    def __init__(self, write: Callable[[list[T]], Awaitable[Sequence[R]]]) -> None:
        self._write = write
        self._waiting: list[tuple[Sequence[T], asyncio.Future[Sequence[R]]]] = []
        self._writer: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        return self._writer is None

    async def submit(self, items: Sequence[T]) -> Sequence[R]:
        """The results for these items, in order. A caller that is cancelled doesn't undo its write."""
        done: asyncio.Future[Sequence[R]] = asyncio.get_running_loop().create_future()
        self._waiting.append((items, done))
        self._go_on()
        return await asyncio.shield(done)

    def _go_on(self) -> None:
        if self._waiting and self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                try:
                    results = await self._write([item for items, _ in batch for item in items])
                except BaseException as error:
                    for _, done in batch:
                        if not done.done():
                            done.set_exception(error)
                            done.exception()
                    if not isinstance(error, Exception):
                        raise
                    continue
                place = 0
                for items, done in batch:
                    if not done.done():
                        done.set_result(results[place : place + len(items)])
                    place += len(items)
        finally:
            self._writer = None
            self._go_on()
