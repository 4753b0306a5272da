"""Group commit: what arrives while a write is under way goes out together in the next one. No timer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

__all__ = ["GroupCommit", "GroupCommits"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")


class GroupCommit(Generic[T, R]):
    """Gathers items from concurrent callers; each caller returns when its own items are written."""

    def __init__(self, write: Callable[[list[T]], Awaitable[Sequence[R]]]) -> None:
        self._write = write
        self._waiting: list[tuple[Sequence[T], asyncio.Future[Sequence[R]]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._busy = False

    @property
    def idle(self) -> bool:
        return not self._busy and not self._waiting

    async def submit(self, items: Sequence[T]) -> Sequence[R]:
        """The results for these items, in order. A caller that is cancelled doesn't undo its write.

        A caller that finds nothing under way lets whoever is ready now come along, behind it, and writes by itself if
        nobody does: a lone caller pays for no task.
        """
        place = len(self._waiting)
        if not self._busy:
            self._busy, place = True, 0
            try:
                await asyncio.sleep(0)
                if not self._waiting:
                    return await self._write(list(items))
            finally:
                self._busy = False
                if self._waiting:
                    self._start()
        done: asyncio.Future[Sequence[R]] = asyncio.get_running_loop().create_future()
        self._waiting.insert(place, (items, done))
        self._start()
        return await done

    def _start(self) -> None:
        if not self._busy:
            self._busy = True
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
                    if not isinstance(error, Exception):
                        raise
                    continue
                place = 0
                for items, done in batch:
                    if not done.done():
                        done.set_result(results[place : place + len(items)])
                    place += len(items)
        finally:
            self._busy = False


class GroupCommits(Generic[K, T, R]):
    """A group commit for each key, for as long as somebody uses it."""

    def __init__(self, write: Callable[[K, list[T]], Awaitable[Sequence[R]]]) -> None:
        self._write = write
        self._commits: dict[K, GroupCommit[T, R]] = {}

    def __len__(self) -> int:
        return len(self._commits)

    async def submit(self, key: K, items: Sequence[T]) -> Sequence[R]:
        """The results for these items, which go out with others of the same key."""
        commit = self._commits.get(key)
        if commit is None:
            commit = self._commits[key] = GroupCommit(lambda batch: self._write(key, batch))
        try:
            return await commit.submit(items)
        finally:
            if commit.idle and self._commits.get(key) is commit:
                del self._commits[key]
