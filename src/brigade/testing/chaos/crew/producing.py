"""Producers: one by one, side by side, in batches, under own ids, in groups, in a strict line, delayed, large."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import brigade
from brigade import AsyncHub, AsyncQueue, StoreUnavailable
from brigade.payload import NewMessage
from brigade.testing.chaos.journal import Journal
from brigade.testing.chaos.plan import JOBS, LINE, Brief

__all__ = ["large_payload", "opened", "patiently", "produce", "queue_of", "small_payload"]

T = TypeVar("T")
OWN_IDS = 40
LOOK_EVERY = 15
LARGE = (300_000, 3_000_000)


async def patiently(call: Callable[[], Awaitable[T]], stop: asyncio.Event) -> T:
    """Try until the store answers, or it is time to stop."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            if stop.is_set():
                raise
            await asyncio.sleep(0.2)


async def opened(brief: Brief, stop: asyncio.Event) -> AsyncHub | None:
    """A hub, as soon as the store answers; None where it is time to stop before that."""
    try:
        return await patiently(lambda: brigade.connect_async(brief.url).open(), stop)
    except StoreUnavailable:
        return None


async def queue_of(hub: AsyncHub, name: str, stop: asyncio.Event) -> AsyncQueue:
    """A queue that is there, as soon as the store answers."""
    return await patiently(lambda: hub.queue(name, create=False), stop)


def small_payload(uid: str, rng: random.Random) -> bytes:
    return f"{uid}:{'x' * rng.randrange(60)}".encode()


def large_payload(uid: str, size: int) -> bytes:
    """So many bytes that only this message has, so that whoever reads them can tell."""
    return (f"{uid}:".encode() * (size // len(uid) + 1))[:size]


async def produce(brief: Brief, journal: Journal, stop: asyncio.Event) -> None:
    hub = await opened(brief, stop)
    if hub is None:
        return
    async with hub:
        producer = _Producer(brief, await queue_of(hub, JOBS, stop), await queue_of(hub, LINE, stop))
        while not stop.is_set():
            try:
                await producer.call()
                await producer.hold_back(stop)
            except StoreUnavailable:
                await asyncio.sleep(0.1)
            await asyncio.sleep(producer.rng.uniform(0, 2 * brief.pause))


class _Producer:
    def __init__(self, brief: Brief, jobs: AsyncQueue, line: AsyncQueue) -> None:
        self.rng = random.Random(brief.seed)
        self._brief = brief
        self._jobs = jobs
        self._line = line
        self._made = self._calls = 0

    async def call(self) -> None:
        """One call, or a few side by side."""
        rng = self.rng
        self._calls += 1
        group = rng.choice("abc")
        manners: list[Callable[[], Awaitable[object]]] = [
            lambda: self._single(self._jobs),
            lambda: asyncio.gather(*(self._single(self._jobs) for _ in range(rng.randint(2, 6)))),
            lambda: self._jobs.enqueue_many(self._batch(rng.randint(2, 20))),
            lambda: self._single(self._jobs, group=group),
            lambda: self._jobs.enqueue_many(self._batch(rng.randint(2, 4)), group=group),
            lambda: self._single(self._jobs, delay=rng.uniform(0.1, 2)),
            lambda: self._own_id(f"own-{rng.randrange(OWN_IDS)}"),
            lambda: self._single(self._line),
            lambda: self._line.enqueue_many(self._batch(rng.randint(2, 4))),
        ]
        if self._brief.large:
            manners.append(self._large)
        await rng.choice(manners)()

    async def _single(self, queue: AsyncQueue, *, group: str | None = None, delay: float = 0.0) -> None:
        uid = self._uid()
        await queue.enqueue(
            small_payload(uid, self.rng),
            correlation_id=uid,
            group=group,
            delay=delay,
            priority=self.rng.choice((0, 5, 5, 9)),
        )

    async def _large(self) -> None:
        uid = self._uid()
        await self._jobs.enqueue(large_payload(uid, self.rng.randint(*LARGE)), correlation_id=uid)

    async def _own_id(self, id: str) -> None:
        """The same message from everybody who sends it: only one of them may count."""
        await self._jobs.enqueue(id.encode(), id=id, correlation_id=id)

    def _batch(self, count: int) -> list[NewMessage]:
        uids = [self._uid() for _ in range(count)]
        return [NewMessage(payload=small_payload(uid, self.rng), correlation_id=uid) for uid in uids]

    def _uid(self) -> str:
        self._made += 1
        return f"{self._brief.name}-{self._made}"

    async def hold_back(self, stop: asyncio.Event) -> None:
        """Don't run away from the consumers: what piles up has to be drained in the end."""
        if self._calls % LOOK_EVERY:
            return
        for queue in (self._jobs, self._line):
            while (await queue.stats()).ready > self._brief.backlog:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), 0.5)
                    return
