"""Settling: outcomes are gathered for a moment and written together; what the store refuses was lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

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
                waiting = {job for job, _ in self._pending}
                lost = [one for one in batch if not one[0].settled and one[0] not in waiting]
                self._pending = lost + self._pending
                raise

    async def _until(self, event: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    async def _settle(self, batch: list[tuple[Job, Settlement]]) -> None:
        try:
            answers = await self._source.queue.settle_each([settlement for _, settlement in batch])
        except BrigadeError as error:
            if len(batch) > 1 and not isinstance(error, StoreUnavailable | PermissionDenied | QueueNotFound):
                # One of them can't be settled: it is not to keep the others from it.
                await self._settle(batch[: len(batch) // 2])
                await self._settle(batch[len(batch) // 2 :])
                return
            answers = [error] * len(batch)
        again: list[tuple[Job, Settlement]] = []
        trouble: BrigadeError | None = None
        for (job, settlement), answer in zip(batch, answers, strict=True):
            if isinstance(answer, StoreUnavailable | PermissionDenied):
                again.append((job, settlement))
                trouble = answer
                continue
            if isinstance(answer, BrigadeError) and not isinstance(answer, StaleLease):
                log.error("message %s of queue %s can't be settled: %s", job.message.id, self._source.name, answer)
            job.settled = True
            self._done(job, settlement, not isinstance(answer, BrigadeError))
        self._pending = again + self._pending
        if trouble is None:
            self._trouble.over()
            return
        delay = self._trouble.strikes(trouble)
        if self._leaving.is_set():
            await asyncio.sleep(min(delay, SOON))
        else:
            await self._until(self._leaving, delay)
