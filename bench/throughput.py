"""Enqueue, claim + ack, and both together up to history, in one process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import brigade
from bench.measure import FILE, FILE_FSYNC, MEMORY, MESSAGE, SQLITE, Case, Ground, Measurement, best_of
from bench.workers import CASES as WORKERS

__all__ = ["preload", "throughput"]

BATCH = 1000
CALLERS = 64


def throughput(ground: Ground) -> list[Measurement]:
    """Every case that runs in one process."""
    found: list[Measurement] = []
    for case, batch in (*CASES, *WORKERS):
        found += best_of(ground, case, batch=batch)
    return found


def runs(total: int) -> int:
    """How many runs `throughput` makes, for the progress bar."""
    return total * sum(len(case.messages) for case, _ in (*CASES, *WORKERS))


def _blocking(work: Callable[[str, int], Coroutine[Any, Any, float]]) -> Callable[[str, int], float]:
    return lambda url, messages: asyncio.run(work(url, messages))


async def preload(queue: brigade.AsyncQueue, messages: int) -> None:
    """Fill a queue in segments of a thousand."""
    for start in range(0, messages, BATCH):
        await queue.enqueue_many([MESSAGE] * min(BATCH, messages - start))


async def _enqueue_alone(url: str, messages: int) -> float:
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("bench")
        started = time.perf_counter()
        for _ in range(messages):
            await queue.enqueue(MESSAGE)
        return time.perf_counter() - started


async def _enqueue_together(url: str, messages: int) -> float:
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("bench")
        left = iter(range(messages))

        async def caller() -> None:
            for _ in left:
                await queue.enqueue(MESSAGE)

        started = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        return time.perf_counter() - started


async def _enqueue_many(url: str, messages: int) -> float:
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("bench")
        started = time.perf_counter()
        await preload(queue, messages)
        return time.perf_counter() - started


def _consume(batch: int) -> Callable[[str, int], Coroutine[Any, Any, float]]:
    async def consume(url: str, messages: int) -> float:
        async with brigade.connect_async(url) as hub:
            queue = await hub.queue("bench")
            await preload(queue, messages)
        async with brigade.connect_async(url) as hub:
            queue = await hub.queue("bench")
            done = 0
            started = time.perf_counter()
            while done < messages:
                claimed = await queue.claim(batch)
                await queue.ack_many(claimed)
                done += len(claimed)
            return time.perf_counter() - started

    return consume


async def _end_to_end(url: str, messages: int) -> float:
    """The clock runs until the hub is closed: by then every message is in history and its segment is gone."""
    hub = await brigade.connect_async(url).open()
    queue = await hub.queue("bench")
    started = time.perf_counter()
    for _ in range(0, messages, BATCH):
        await queue.enqueue_many([MESSAGE] * BATCH)
        await queue.ack_many(await queue.claim(BATCH))
    await hub.close()
    return time.perf_counter() - started


CASES: tuple[tuple[Case, int], ...] = (
    (
        Case(
            "enqueue, 1 caller",
            _blocking(_enqueue_alone),
            {MEMORY: 10_000, FILE: 3_000, FILE_FSYNC: 1_000, SQLITE: 1_000},
        ),
        1,
    ),
    (
        Case(
            f"enqueue, {CALLERS} callers at once",
            _blocking(_enqueue_together),
            {MEMORY: 30_000, FILE: 20_000, FILE_FSYNC: 10_000, SQLITE: 10_000},
        ),
        1,
    ),
    (
        Case(
            "enqueue_many, 1,000 a call",
            _blocking(_enqueue_many),
            {MEMORY: 100_000, FILE: 100_000, FILE_FSYNC: 100_000, SQLITE: 100_000},
        ),
        BATCH,
    ),
    (
        Case(
            "claim + ack, 1 at a time",
            _blocking(_consume(1)),
            {MEMORY: 3_000, FILE: 1_000, FILE_FSYNC: 500, SQLITE: 500},
        ),
        1,
    ),
    (
        Case(
            "claim + ack, 100 at a time",
            _blocking(_consume(100)),
            {MEMORY: 30_000, FILE: 20_000, FILE_FSYNC: 20_000, SQLITE: 20_000},
        ),
        100,
    ),
    (
        Case(
            "claim + ack, 1,000 at a time",
            _blocking(_consume(BATCH)),
            {MEMORY: 100_000, FILE: 100_000, FILE_FSYNC: 100_000, SQLITE: 100_000},
        ),
        BATCH,
    ),
    (
        Case(
            "end to end, batches of 1,000",
            _blocking(_end_to_end),
            {MEMORY: 100_000, FILE: 100_000, FILE_FSYNC: 100_000, SQLITE: 100_000},
        ),
        BATCH,
    ),
)
