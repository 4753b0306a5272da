"""Settling: outcomes are gathered for a moment and written together; what the store refuses was lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from brigade.clock import Clock
from brigade.errors import BrigadeError, PermissionDenied, QueueNotFound, StaleLease, StoreUnavailable
from brigade.model import Settlement
from brigade.worker.jobs import Job, Source
from brigade.worker.restart import Trouble

__all__ = ["Settler"]

log = logging.getLogger("brigade.worker")
MOST_AT_ONCE = 1000
SOON = 0.5


class Settler:
    """Writes the outcomes of one source. `done(job, accepted)` is called for each when it is over."""

    def __init__(
        self,
        source: Source,
        clock: Clock,
        trouble: Trouble,
        linger: float,
        done: Callable[[Job, Settlement, bool], None],
    ) -> None:
        self._source = source
        self._clock = clock
        self._trouble = trouble
        self._linger = linger
        self._done = done
        self._pending: list[tuple[Job, Settlement]] = []
        self._arrived = asyncio.Event()
        self._full = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._leaving = asyncio.Event()

    def add(self, job: Job, settlement: Settlement) -> None:
        self._pending.append((job, settlement))
        self._quiet.clear()
        self._arrived.set()
        if len(self._pending) >= MOST_AT_ONCE:
            self._full.set()

    def hurry(self) -> None:
        """Nothing more is coming for now: don't wait for company."""
        self._full.set()

    async def finished(self) -> None:
        """Wait until nothing is left to settle; from now on failures are tried again soon."""
        self._leaving.set()
        self._full.set()
        await self._quiet.wait()

    async def run(self) -> None:
        while True:
            if not self._pending:
                self._quiet.set()
                self._arrived.clear()
                self._full.clear()
                await self._arrived.wait()
            # Company is worth waiting for only where it is likely to come.
            if self._source.speed.rate(self._clock.monotonic()) * self._linger >= 2 and not self._full.is_set():
                await self._until(self._full, self._linger)
            self._full.clear()
            batch, self._pending = self._pending[:MOST_AT_ONCE], self._pending[MOST_AT_ONCE:]
            try:
                await self._settle(batch)
            except BaseException:
                done = {job for job, _ in batch if job.settled}
                self._pending = [one for one in batch if one[0] not in done] + self._pending
                raise

    async def _until(self, event: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    async def _settle(self, batch: list[tuple[Job, Settlement]]) -> None:
        try:
            answers: list[Any] = await self._source.queue.settle([settlement for _, settlement in batch])
        except (StoreUnavailable, PermissionDenied) as error:
            self._pending = batch + self._pending
            delay = self._trouble.strikes(error)
            if self._leaving.is_set():
                await asyncio.sleep(min(delay, SOON))
            else:
                await self._until(self._leaving, delay)
            return
        except BrigadeError as error:
            await self._apart(batch, error)
            return
        self._trouble.over()
        for (job, settlement), answer in zip(batch, answers, strict=True):
            job.settled = True
            self._done(job, settlement, not isinstance(answer, StaleLease))

    async def _apart(self, batch: list[tuple[Job, Settlement]], error: BrigadeError) -> None:
        """One of them can't be settled: find it, so that it doesn't keep the others from it."""
        if len(batch) > 1 and not isinstance(error, QueueNotFound):
            middle = len(batch) // 2
            await self._settle(batch[:middle])
            await self._settle(batch[middle:])
            return
        for job, settlement in batch:
            log.error("message %s of queue %s can't be settled: %s", job.message.id, self._source.name, error)
            job.settled = True
            self._done(job, settlement, False)
