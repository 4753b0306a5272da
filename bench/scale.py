"""`python -m bench.scale`: a thousand workers and a million messages on one bucket, in virtual time.

Every worker is a hub of its own with the real store in it; only the bucket is simulated: a dict with S3's latencies
that counts what is asked of it. Time is virtual, so the counts are the same on every machine, however slow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import selectors
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from unittest import mock

from rich.console import Console
from rich.progress import Progress

from brigade.blobs import CONFLICT, Create, DeleteIf, Get, List, Op, Swap
from brigade.blobs.cloud import CloudBlobs
from brigade.blobs.memory import Bucket, MemoryBlobs
from brigade.cost import load_prices
from brigade.hub import AsyncHub
from brigade.ids import Ids
from brigade.policy import QueuePolicy
from brigade.stores.bucket.store import BucketStore
from brigade.testing.sim.storage import EPOCH

__all__ = ["Run", "Scale", "simulate"]

READ, WRITE = 0.025, 0.040
"""Median seconds of a read and of a write; one in a hundred takes ten times as long."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is going on."""

    messages: int = 1_000_000
    rate: int = 10_000
    workers: int = 1000
    claim: int = 20
    handler: float = 0.1
    queues: int = 1
    batch: int = 1000


@dataclass(slots=True)
class Run:
    """What it came to."""

    scale: Scale
    seconds: float = 0.0
    processed: int = 0
    requests: Counter[str] = field(default_factory=Counter[str])
    conflicts: int = 0
    busiest: Counter[str] = field(default_factory=Counter[str])
    late: list[float] = field(default_factory=list[float])

    def summary(self) -> dict[str, Any]:
        total = self.requests.total()
        waits = sorted(self.late)
        return {
            **asdict(self.scale),
            "virtual_seconds": round(self.seconds, 1),
            "processed": self.processed,
            "requests": dict(self.requests),
            "requests_a_message": round(total / self.processed, 4),
            "requests_a_second": round(total / self.seconds),
            "writes_in_the_busiest_second": self.busiest["write"],
            "reads_in_the_busiest_second": self.busiest["read"],
            "conflicts": self.conflicts,
            "conflicts_in_a_hundred_writes": round(
                100 * self.conflicts / max(1, self.requests["create"] + self.requests["swap"]), 2
            ),
            "seconds_to_start_median": round(waits[len(waits) // 2], 2),
            "seconds_to_start_p99": round(waits[len(waits) * 99 // 100], 2),
            "dollars_a_million": round(load_prices().of(self.requests) / self.processed * 1e6, 3),
        }


class _Instant(selectors.SelectSelector):
    """Doesn't wait: the loop's time jumps to when something is due."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout:
            self.passed += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock only moves when everybody waits."""

    def __init__(self) -> None:
        self._instant = _Instant()
        super().__init__(self._instant)

    def time(self) -> float:
        return self._instant.passed


class _Clock:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> int:
        return EPOCH + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


class _FarBlobs(MemoryBlobs):
    """A memory bucket that is as far away as S3, and that tells nobody of changes."""

    immediate = False
    listing_ttl = CloudBlobs.listing_ttl
    poll_interval = CloudBlobs.poll_interval
    patience = CloudBlobs.patience

    def __init__(self, bucket: Bucket, run: Run, rng: random.Random, seconds: dict[tuple[str, int], int]) -> None:
        super().__init__(bucket=bucket)
        self._run = run
        self._rng = rng
        self._seconds = seconds

    def try_now(self, op: Op) -> object:
        return NotImplemented

    def watch(self, prefix: str, wake: Any) -> None:
        return None

    async def perform(self, op: Op) -> object:
        kind = "read" if isinstance(op, Get | List) else "write"
        took = self._rng.lognormvariate(0, 0.3) * (READ if kind == "read" else WRITE)
        if self._rng.random() < 0.01:
            took *= 10
        await asyncio.sleep(took / 2)
        run = self._run
        run.requests[type(op).__name__.lower()] += 1
        second = (kind, int(asyncio.get_running_loop().time()))
        self._seconds[second] = count = self._seconds.get(second, 0) + 1
        run.busiest[kind] = max(run.busiest[kind], count)
        answer = self._bucket.apply(op)
        if answer is CONFLICT and isinstance(op, Create | Swap | DeleteIf):
            run.conflicts += 1
        await asyncio.sleep(took / 2)
        return answer


async def _hub(run: Run, bucket: Bucket, number: int, seconds: dict[tuple[str, int], int]) -> AsyncHub:
    clock = _Clock(asyncio.get_running_loop())
    store = BucketStore(_FarBlobs(bucket, run, random.Random(number), seconds), clock=clock, ids=Ids(number))
    with mock.patch("brigade.hub.open_store", return_value=store):
        return await AsyncHub("memory://").open()


async def _simulate(scale: Scale, tell: Callable[[int], None]) -> Run:
    run, seconds = Run(scale), dict[tuple[str, int], int]()
    loop = asyncio.get_running_loop()
    clock = _Clock(loop)
    bucket = Bucket(clock)
    policy = QueuePolicy(visibility_timeout=60)
    names = [f"jobs{n}" for n in range(scale.queues)]
    sender = await _hub(run, bucket, 0, seconds)
    sending = [await sender.queue(name, policy=policy) for name in names]
    batch = min(scale.batch, scale.messages)

    async def produce() -> None:
        under_way: set[asyncio.Task[Any]] = set()
        for number in range(scale.messages // batch):
            sent = sending[number % len(sending)].enqueue_many([f"message {number}"] * batch)
            task = asyncio.create_task(sent)
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            await asyncio.sleep(batch / scale.rate)
        await asyncio.gather(*under_way)

    async def work(number: int) -> None:
        hub = await _hub(run, bucket, number, seconds)
        queue = await hub.queue(names[number % len(names)], create=False)
        while run.processed < scale.messages:
            claimed = await queue.claim(scale.claim, wait=5)
            if not claimed:
                continue
            now = clock.now()
            run.late.extend((now - message.enqueued_at_ms) / 1000 for message in claimed[:1])
            await asyncio.sleep(scale.handler * len(claimed))
            await queue.ack_many(claimed)
            run.processed += len(claimed)
            tell(len(claimed))
            if run.processed >= scale.messages:
                run.seconds = loop.time()
        await hub.close()

    await asyncio.gather(produce(), *(work(number) for number in range(1, scale.workers + 1)))
    await sender.close()
    return run


def simulate(scale: Scale, tell: Callable[[int], None] = lambda _: None) -> Run:
    """Play it to the last ack. `tell` is called with the number of messages that were just acked."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(_simulate(scale, tell))
    finally:
        loop.close()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    default = Scale()
    for name, what in (
        ("messages", "how many"),
        ("rate", "messages a second that come in"),
        ("workers", "hubs that claim"),
        ("claim", "messages a claim asks for"),
        ("handler", "seconds that a message takes; one after the other in a worker"),
        ("queues", "queues that they share"),
        ("batch", "messages that an enqueue writes together, in a segment"),
    ):
        value = getattr(default, name)
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"{what} (default: {value:,})")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = vars(parser.parse_args(argv))
    as_json = given.pop("json")
    scale = Scale(**given)
    with Progress(*Progress.get_default_columns(), console=Console(stderr=True), transient=True) as progress:
        shown = progress.add_task(f"{scale.workers:,} workers", total=scale.messages)
        told = simulate(scale, lambda count: progress.advance(shown, count)).summary()
    if as_json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name.replace('_', ' '):32} {value:,}" if isinstance(value, int | float) else f"{name:32} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
