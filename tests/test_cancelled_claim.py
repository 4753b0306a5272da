"""A claim that is cancelled after it has won its leases, while the messages are being read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import brigade
from brigade.model import Grant, Message


async def test_a_claim_cancelled_while_it_reads_gives_back_what_it_won(monkeypatch: pytest.MonkeyPatch) -> None:
    async with brigade.connect_async("memory://") as hub:
        queue = await hub.queue("tasks")
        await queue.enqueue("x")
        reading, go_on = asyncio.Event(), asyncio.Event()
        load = hub.store.load

        async def slow(grants: Sequence[Grant]) -> list[Message]:
            reading.set()
            await go_on.wait()
            return await load(grants)

        monkeypatch.setattr(hub.store, "load", slow)
        claiming = asyncio.ensure_future(queue.claim(visibility=600))
        await reading.wait()
        claiming.cancel()
        go_on.set()
        await asyncio.gather(claiming, return_exceptions=True)
        assert claiming.cancelled()
        (message,) = await queue.claim(wait=60)
        assert message.attempt == 1


async def test_a_claim_cancelled_in_the_moment_it_is_woken_ends() -> None:
    async with brigade.connect_async("memory://") as hub:
        queue = await hub.queue("tasks")
        waiting = asyncio.ensure_future(queue.claim(wait=600))
        held = hub.store._queues["tasks"]
        while not held.waiting:
            await asyncio.sleep(0)
        held.woken.set()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
