"""The end of a run, on a store that works: everything is acked, failures come back and are acked, then it is swept."""

from __future__ import annotations

import asyncio
import time

import brigade
from brigade import Ack, AsyncHub, AsyncQueue
from brigade.clock import SystemClock
from brigade.testing.chaos.journal import Journal
from brigade.testing.chaos.plan import JOBS, LETTERS, LINE, Brief

__all__ = ["drain", "sweep"]

WITHIN = 120.0
HOUR = 3_600_000
DAYS = 24 * HOUR


async def drain(brief: Brief, journal: Journal, stop: asyncio.Event) -> list[str]:
    """Ack everything; dead letters as such, parked failures after a redrive. Returns what could not be drained."""
    async with brigade.connect_async(brief.url) as hub:
        queues = [await hub.queue(name, create=False) for name in (JOBS, LINE, LETTERS)]
        end = time.monotonic() + WITHIN
        while (left := await _open(queues)) and time.monotonic() < end and not stop.is_set():
            for queue in queues:
                await _ack_all(queue)
            for queue in (LINE, LETTERS):
                journal.write("redriven", count=await (await hub.queue(queue)).redrive())
        await _later(hub, queues, [2 * HOUR])
        return left


async def _open(queues: list[AsyncQueue]) -> list[str]:
    left: list[str] = []
    for queue in queues:
        stats = await queue.stats()
        parked = len(await queue.failed())
        if stats.ready + stats.delayed + stats.in_flight + parked:
            left.append(f"{queue.name}: {stats.ready} ready, {stats.delayed} delayed, {stats.in_flight} in flight")
    return left


async def _ack_all(queue: AsyncQueue) -> None:
    while held := await queue.claim(500, wait=0.5, visibility=60):
        await queue.settle([Ack(message) for message in held])


async def sweep(brief: Brief, journal: Journal, stop: asyncio.Event) -> None:
    """Let days pass for the sweeper: history is dropped, too."""
    async with brigade.connect_async(brief.url) as hub:
        queues = [await hub.queue(name, create=False) for name in (JOBS, LINE, LETTERS)]
        await _later(hub, queues, [0, 2 * HOUR, 4 * HOUR, 8 * DAYS, 16 * DAYS])


async def _later(hub: AsyncHub, queues: list[AsyncQueue], ahead: list[int]) -> None:
    """Sweep as if it were later. A store that keeps time by a server's clock is swept as of now."""
    clock = hub.clock
    base = clock.offset_ms if isinstance(clock, SystemClock) else 0
    for step in ahead:
        if isinstance(clock, SystemClock):
            clock.offset_ms = base + step
        for queue in queues:
            await queue.sweep()
    if isinstance(clock, SystemClock):
        clock.offset_ms = base
