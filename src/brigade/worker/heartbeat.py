"""The heartbeat: extends what is held at a third of the lease, with one write for all leases of a grant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from brigade.clock import Clock, to_ms
from brigade.errors import BrigadeError, QueueNotFound, StaleLease
from brigade.model import Extend, Lease
from brigade.worker.jobs import Backlog, Job, Source
from brigade.worker.restart import Trouble

__all__ = ["Heartbeat"]

FASTEST, SLOWEST = 0.02, 1.0


class Heartbeat:
    """Keeps the leases of one source, whether their handlers run, wait, or have ended and wait to be settled."""

    def __init__(self, source: Source, backlog: Backlog, clock: Clock, trouble: Trouble) -> None:
        self._source = source
        self._backlog = backlog
        self._clock = clock
        self._trouble = trouble
        self._begun = asyncio.Event()

    def beats(self) -> None:
        """There is something to hold."""
        if self._source.held:
            self._begun.set()

    async def begun(self) -> None:
        await self._begun.wait()

    async def run(self, lose: Callable[[Job], None]) -> None:
        """Calls `lose(job)` for each lease that somebody else has taken."""
        length = self._source.queue.policy.visibility_timeout
        tick = min(SLOWEST, max(FASTEST, length / 12))
        while True:
            if not self._source.held:
                self._trouble.forget()
                self._begun.clear()
                await self._begun.wait()
            await asyncio.sleep(tick)
            soon = self._clock.now() + to_ms(length * 2 / 3)
            due = [job for job in self._source.held.values() if job.message.lease.expires_at_ms <= soon]
            if due:
                await self._extend(due, lose)

    async def _extend(self, due: list[Job], lose: Callable[[Job], None]) -> None:
        try:
            answers = await self._source.queue.settle_each([Extend(job.message) for job in due])
        except QueueNotFound:
            for job in due:
                lose(job)
            return
        except BrigadeError as error:
            await asyncio.sleep(min(self._trouble.strikes(error), SLOWEST))
            return
        failures = [one for one in answers if isinstance(one, BrigadeError) and not isinstance(one, StaleLease)]
        if failures:
            self._trouble.strikes(failures[0])
        else:
            self._trouble.over()
        for job, answer in zip(due, answers, strict=True):
            if isinstance(answer, StaleLease):
                lose(job)
            elif isinstance(answer, Lease):
                job.message = replace(job.message, lease=answer)
                self._backlog.trust(job)
