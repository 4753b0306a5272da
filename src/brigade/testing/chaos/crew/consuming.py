"""Consumers that claim and settle by hand, in every way there is: also late, or not at all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from brigade import Ack, AsyncQueue, Extend, Message, MessageNotFound, Nack, Release, StaleLease, StoreUnavailable
from brigade.model import Settlement
from brigade.testing.chaos.crew.producing import large_payload, opened, queue_of
from brigade.testing.chaos.journal import Journal
from brigade.testing.chaos.plan import JOBS, LETTERS, LINE, Brief

__all__ = ["consume"]

PLANS = ("ack", "nack", "reject", "release", "extend", "late", "forget")
WEIGHTS = (62, 10, 2, 6, 10, 5, 5)
CALM = (85, 5, 1, 4, 5, 0, 0)
"""The same without faults: nothing is late or forgotten."""


async def consume(brief: Brief, journal: Journal, stop: asyncio.Event) -> None:
    hub = await opened(brief, stop)
    if hub is None:
        return
    async with hub, asyncio.TaskGroup() as group:
        for index, name in enumerate((JOBS, JOBS, LINE, LETTERS)):
            queue = await queue_of(hub, name, stop)
            hand = _Hand(brief, journal, queue, random.Random(brief.seed * 10 + index), stop)
            group.create_task(hand.run())


class _Hand:
    def __init__(
        self, brief: Brief, journal: Journal, queue: AsyncQueue, rng: random.Random, stop: asyncio.Event
    ) -> None:
        self._brief = brief
        self._journal = journal
        self._queue = queue
        self._rng = rng
        self._stop = stop

    async def run(self) -> None:
        rng = self._rng
        while not self._stop.is_set():
            try:
                held = await self._queue.claim(rng.choice((1, 2, 5, 20)), wait=0.5)
                await asyncio.sleep(rng.uniform(0, 0.05))
                await self._settle([message for message in held if await self._is_whole(message)])
            except StoreUnavailable:
                await asyncio.sleep(0.1)

    async def _is_whole(self, message: Message) -> bool:
        """Read a payload that is stored apart. Under a lease that others have taken over it may be gone."""
        if message.body is not None:
            return True
        try:
            read = await message.open().read()
        except MessageNotFound:
            (answer,) = await self._queue.settle([Ack(message)])
            if not isinstance(answer, StaleLease):
                raise RuntimeError(f"the payload of {message.ref} was gone while its lease was held") from None
            self._journal.write("large payload gone", count=1)
            return False
        if read != large_payload(message.correlation_id, message.size):
            raise RuntimeError(f"the payload of {message.ref} is not what was sent")
        self._journal.write("large payload read", count=1)
        return True

    async def _settle(self, held: Sequence[Message]) -> None:
        rng, lease = self._rng, self._brief.lease
        wanted: list[Settlement] = []
        for message, plan in zip(
            held, rng.choices(PLANS, WEIGHTS if self._brief.faults else CALM, k=len(held)), strict=True
        ):
            match plan:
                case "forget":
                    self._journal.write("forgotten", count=1)
                case "nack" | "reject":
                    wanted.append(Nack(message, "no luck", reject=plan == "reject"))
                case "release":
                    wanted.append(Release(message, rng.choice((0, 0, 0.5))))
                case "extend":
                    await self._queue.settle([Extend(message, lease * rng.uniform(1, 2))])
                    wanted.append(Ack(message))
                case "late":
                    await asyncio.sleep(lease * rng.uniform(1.0, 1.6))
                    wanted.append(Ack(message))
                case _:
                    wanted.append(Ack(message, {"by": self._brief.name} if rng.random() < 0.2 else None))
        if rng.random() < 0.5:
            await self._queue.settle(wanted)
            return
        for one in wanted:
            await self._queue.settle([one])
