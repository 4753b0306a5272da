"""A bucket far away, in virtual time: the real store on a dict with S3's latencies that counts what is asked of it.

Time moves when everybody waits, so the counts are the same on every machine, however slow.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest import mock

from brigade.blobs import CONFLICT, Create, DeleteIf, Get, List, Op, Swap
from brigade.blobs.cloud import CloudBlobs
from brigade.blobs.memory import Bucket, MemoryBlobs
from brigade.hub import AsyncHub
from brigade.ids import Ids
from brigade.stores.bucket.store import BucketStore
from brigade.testing.sim.storage import EPOCH

__all__ = ["FarBucket", "play"]

T = TypeVar("T")


class _Instant(selectors.SelectSelector):
    """Doesn't wait: the loop's time jumps to when something is due."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout:
            self.passed += timeout
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
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


def play(work: Callable[[], Awaitable[T]]) -> T:
    """What the work comes to, in virtual time."""
    loop = _VirtualLoop()

    async def whole() -> T:
        return await work()

    try:
        return loop.run_until_complete(whole())
    finally:
        loop.close()


@dataclass(slots=True)
class FarBucket:
    """A bucket and what was asked of it. `read` and `write` are median seconds; one in a hundred takes ten times that.

    Made inside `play`, because it lives on that loop. Every hub is a process of its own, as far as the store can tell.
    """

    read: float = 0.025
    write: float = 0.040
    seed: int = 0
    requests: Counter[str] = field(default_factory=Counter[str])
    conflicts: int = 0
    busiest: Counter[str] = field(default_factory=Counter[str])
    clock: _Clock = field(default_factory=lambda: _Clock(asyncio.get_running_loop()))
    bucket: Bucket = field(init=False)
    _hubs: int = 0
    _seconds: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])

    def __post_init__(self) -> None:
        self.bucket = Bucket(self.clock)

    async def hub(self) -> AsyncHub:
        """A hub of its own on this bucket."""
        number = self.seed * 1_000_003 + self._hubs
        self._hubs += 1
        blobs = _FarBlobs(self.bucket, self, random.Random(number))
        store = BucketStore(blobs, clock=self.clock, ids=Ids(number))
        with mock.patch("brigade.hub.open_store", return_value=store):
            return await AsyncHub("memory://").open()

    def count(self, op: Op, kind: str, answer: object) -> None:
        self.requests[type(op).__name__.lower()] += 1
        second = (kind, int(self.clock.monotonic()))
        self._seconds[second] = count = self._seconds.get(second, 0) + 1
        self.busiest[kind] = max(self.busiest[kind], count)
        if answer is CONFLICT and isinstance(op, Create | Swap | DeleteIf):
            self.conflicts += 1


class _FarBlobs(MemoryBlobs):
    """A memory bucket that is as far away as S3, and that tells nobody of changes."""

    immediate = False
    pledges = False
    prompt = False
    listing_ttl = CloudBlobs.listing_ttl
    poll_interval = CloudBlobs.poll_interval
    patience = CloudBlobs.patience

    def __init__(self, bucket: Bucket, far: FarBucket, rng: random.Random) -> None:
        super().__init__(bucket=bucket)
        self._far = far
        self._rng = rng

    def try_now(self, op: Op) -> object:
        return NotImplemented

    def watch(self, prefix: str, wake: Callable[[str], None]) -> None:
        return None

    async def perform(self, op: Op) -> object:
        kind = "read" if isinstance(op, Get | List) else "write"
        took = self._rng.lognormvariate(0, 0.3) * (self._far.read if kind == "read" else self._far.write)
        if self._rng.random() < 0.01:
            took *= 10
        await asyncio.sleep(took / 2)
        answer = self._bucket.apply(op)
        self._far.count(op, kind, answer)
        await asyncio.sleep(took / 2)
        return answer
