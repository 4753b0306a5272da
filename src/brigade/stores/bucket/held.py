"""What a process holds open for one queue: its view, its group commits, and the wake-ups of waiting claims."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from brigade.blobs import Blobs
from brigade.model import Receipt
from brigade.stores.bucket.enqueue import Draft, enqueue
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.settle import Answers, Change, settle
from brigade.stores.bucket.steps import Env, Proto
from brigade.stores.bucket.view import QueueView
from brigade.stores.groupcommit import GroupCommit, GroupCommits

__all__ = ["HeldQueue"]

SETTLING = 0.1


class Run(Protocol):
    """Carries out a protocol function."""

    async def __call__(self, proto: Proto[Any], /) -> Any: ...


class HeldQueue:
    """What this process holds open for one queue."""

    def __init__(self, run: Run, env: Env, view: QueueView) -> None:
        self._run = run
        self._env = env
        self.view = view
        self.policy_at = 0.0
        self.sweep_at: float | None = None
        self.swept_at: float | None = None
        self.looked_at = 0
        self.idle_polls = 0
        self.waiting = 0
        self.woken = asyncio.Event()
        self.finishing = asyncio.Lock()
        self.finish_now = asyncio.Event()
        self.finisher: asyncio.Task[None] | None = None
        self.deleted = False
        """Whether this process has deleted the queue: then nothing of it goes to history any more."""
        self.enqueues: GroupCommit[Draft, Receipt] = GroupCommit(self._write_drafts)
        self.settles: GroupCommits[SegmentName, Change, Answers] = GroupCommits(self._write_changes)
        self.listening = False
        self._stops: list[Callable[[], None]] = []
        self._look_again: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()

    async def _write_drafts(self, drafts: list[Draft]) -> list[Receipt]:
        placed = await self._run(enqueue(self._env, self.view, drafts))
        self.wake()
        return placed

    async def _write_changes(self, name: SegmentName, changes: list[Change]) -> list[Answers]:
        return await self._run(settle(self._env, self.view, name, changes))

    def wake(self) -> None:
        self.woken.set()

    def returned(self, name: SegmentName) -> None:
        """A message of this segment may be claimed again: no listing is needed to know that."""
        if not name.lane:
            self.view.add_candidate(name)
        self.wake()

    def watch(self, blobs: Blobs) -> bool:
        """Listen to the store for new segments; False where it can't tell."""
        if not self.listening:
            self.listening = True
            keys = self.view.keys
            stops = [blobs.watch(prefix, self._told) for prefix in (keys.segments, keys.lanes, keys.ledgers)]
            self._stops = [stop for stop in stops if stop is not None]
        return bool(self._stops)

    def _told(self, key: str) -> None:
        """Called from any thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._changed, key)

    def _changed(self, key: str) -> None:
        if key.startswith(self.view.keys.ledgers):
            if self.waiting and self._look_again is None:
                self._look_again = self.loop.call_later(SETTLING, self._look)
            return
        name = self.view.keys.parse(key)
        if name is not None and name.due <= self._env.now():
            self.view.add_candidate(name)
        else:
            self.view.stale()
        self.wake()

    def _look(self) -> None:
        """Ledgers changed: somebody may have given messages back. Many changes are one look."""
        self._look_again = None
        self.view.stale()
        self.wake()

    def close(self) -> None:
        for stop in self._stops:
            stop()
        self._stops = []
        self.listening = False
        if self._look_again is not None:
            self._look_again.cancel()
            self._look_again = None
