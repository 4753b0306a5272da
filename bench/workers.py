"""Workers with handlers that do nothing: what the machinery itself can do, from a full queue to an empty one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal

import brigade
from bench.measure import FILE, FILE_FSYNC, MEMORY, MESSAGE, SQLITE, Case

__all__ = ["CASES"]

BATCH = 1000


def nothing(message: brigade.Message) -> None:
    """The handler."""


def _worker(executor: Literal["thread", "process"], concurrency: int) -> Callable[[str, int], float]:
    def run(url: str, messages: int) -> float:
        with brigade.connect(url) as hub:
            queue = hub.queue("bench")
            for _ in range(0, messages, BATCH):
                queue.enqueue_many([MESSAGE] * BATCH)
            worker = brigade.Worker(queue, nothing, concurrency=concurrency, executor=executor)
            started = time.perf_counter()
            worker.run(until_empty=True)
            return time.perf_counter() - started

    return run


def _async_worker(concurrency: int) -> Callable[[str, int], float]:
    async def handle(message: brigade.Message) -> None:
        await asyncio.sleep(0)

    async def run(url: str, messages: int) -> float:
        async with brigade.connect_async(url) as hub:
            queue = await hub.queue("bench")
            for _ in range(0, messages, BATCH):
                await queue.enqueue_many([MESSAGE] * BATCH)
            worker = brigade.Worker(queue, handle, concurrency=concurrency)
            started = time.perf_counter()
            await worker.serve(until_empty=True)
            return time.perf_counter() - started

    return lambda url, messages: asyncio.run(run(url, messages))


CASES: tuple[tuple[Case, int], ...] = (
    (
        Case(
            "worker, 8 threads",
            _worker("thread", 8),
            {MEMORY: 20_000, FILE: 20_000, FILE_FSYNC: 20_000, SQLITE: 20_000},
        ),
        BATCH,
    ),
    (
        Case("worker, 64 tasks", _async_worker(64), {MEMORY: 20_000, FILE: 20_000, FILE_FSYNC: 20_000, SQLITE: 20_000}),
        BATCH,
    ),
    (Case("worker, 2 processes, with their start", _worker("process", 2), {FILE_FSYNC: 20_000, SQLITE: 20_000}), BATCH),
)
