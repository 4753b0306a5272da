"""Claim + ack by several real processes on one directory."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from typing import Any

import brigade
from bench.measure import FILE, FILE_FSYNC, SQLITE, Case, Ground, Measurement, best_of
from bench.throughput import preload

__all__ = ["PROCESSES", "processes"]

PROCESSES = 4


def processes(ground: Ground) -> list[Measurement]:
    """Every case that runs in four processes. Memory is left out: it is shared inside one process only."""
    found: list[Measurement] = []
    for case, batch in CASES:
        found += best_of(ground, case, batch=batch)
    return found


def runs(total: int) -> int:
    """How many runs `processes` makes, for the progress bar."""
    return total * sum(len(case.messages) for case, _ in CASES)


def _consume(url: str, messages: int, batch: int) -> float:
    """Seconds from the common start until the last of the messages was acked."""
    asyncio.run(_fill(url, messages))
    context = multiprocessing.get_context("spawn")
    start, done = context.Barrier(PROCESSES + 1), context.Value("q", 0)
    ends = context.Queue()
    workers = [
        context.Process(target=_work, args=(url, messages, batch, start, done, ends), daemon=True)
        for _ in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    start.wait(60)
    started = time.monotonic()
    ended = max(ends.get(timeout=300) for _ in workers)
    for worker in workers:
        worker.join(60)
    return ended - started


async def _fill(url: str, messages: int) -> None:
    async with brigade.connect_async(url) as hub:
        await preload(await hub.queue("bench"), messages)


def _work(url: str, messages: int, batch: int, start: Any, done: Any, ends: Any) -> None:
    asyncio.run(_drain(url, messages, batch, start, done, ends))


async def _drain(url: str, messages: int, batch: int, start: Any, done: Any, ends: Any) -> None:
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("bench")
        start.wait(60)
        ended = time.monotonic()
        while done.value < messages:
            claimed = await queue.claim(batch, wait=0.05)
            if not claimed:
                continue
            await queue.ack_many(claimed)
            ended = time.monotonic()
            with done.get_lock():
                done.value += len(claimed)
    ends.put(ended)


CASES: tuple[tuple[Case, int], ...] = tuple(
    (
        Case(
            f"claim + ack, {batch:,}, {PROCESSES} processes",
            lambda url, messages, batch=batch: _consume(url, messages, batch),
            {FILE: count, FILE_FSYNC: count, SQLITE: count},
        ),
        batch,
    )
    for batch, count in ((1, 1_000), (100, 40_000), (1000, 100_000))
)
