"""Workers with handlers in threads, on a loop, or in processes; handlers succeed, fail, dawdle and crash."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Literal

from brigade import AsyncContext, Message, Reject, Retry, Snooze, StoreUnavailable, Worker
from brigade.testing.chaos.crew.producing import opened, queue_of
from brigade.testing.chaos.journal import Journal
from brigade.testing.chaos.plan import JOBS, LETTERS, LINE, Brief
from brigade.worker import Context

__all__ = ["handle", "handle_async", "note_in", "work"]

_journal: list[Journal] = []
_random = random.Random()
DAWDLE = 3.0


def handle(message: Message, context: Context) -> dict[str, int]:
    """What handlers in threads and processes do."""
    chance = _begin("run")
    if chance < 0.02:
        context.wait_cancelled(DAWDLE)
    if "processes" in context.worker_id and 0.5 < chance < 0.505:
        _note("handler crashed")
        os._exit(9)
    _misbehave(chance)
    time.sleep(_random.uniform(0, 0.01))
    return {"attempt": message.attempt}


async def handle_async(message: Message, context: AsyncContext) -> None:
    chance = _begin("run")
    if chance < 0.02:
        await asyncio.sleep(DAWDLE)
    if 0.5 < chance < 0.52:
        await context.extend(5)
    _misbehave(chance)
    await asyncio.sleep(_random.uniform(0, 0.01))


def _begin(op: str) -> float:
    _note(op)
    return _random.random()


def _misbehave(chance: float) -> None:
    if chance > 0.98:
        raise Retry("later", delay=0.2)
    if chance > 0.97:
        raise Reject("never")
    if chance > 0.95:
        raise Snooze(0.3)
    if chance > 0.88:
        raise RuntimeError("no luck")


def note_in(journal: Journal) -> None:
    """Where handlers of this process write down that they ran."""
    _journal.append(journal)


def _note(op: str) -> None:
    if not _journal:
        _journal.append(Journal(os.environ["BRIGADE_CHAOS_JOURNAL"], f"pid {os.getpid()}"))
    _journal[0].write(op, count=1)


async def work(brief: Brief, journal: Journal, stop: asyncio.Event) -> None:
    note_in(journal)
    hub = await opened(brief, stop)
    if hub is None:
        return
    executor: Literal["process", "thread"] = "process" if brief.role == "processes" else "thread"
    async with hub:
        weights = {await queue_of(hub, name, stop): weight for name, weight in ((JOBS, 4), (LINE, 2), (LETTERS, 1))}
        worker = Worker(
            weights,
            handle_async if brief.role == "tasks" else handle,
            concurrency=2 if executor == "process" else 4,
            executor=executor,
            worker_id=brief.name,
            grace=5,
        )
        while not stop.is_set():
            try:
                async with worker:
                    await stop.wait()
            except StoreUnavailable:
                await asyncio.sleep(0.2)
