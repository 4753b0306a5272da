"""A claim that waits looks again when something is due, however long its last look took."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import brigade
from brigade.stores.bucket import store as bucket_store
from brigade.stores.bucket.store import BucketStore
from brigade.testing.conformance.harness import values

NEVER = 3600.0
"""Seconds between polls, so that what is not known of is not found by chance."""


async def test_a_message_that_comes_due_while_a_claim_looks_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_store, "FIRST_POLL", NEVER)
    monkeypatch.setattr(bucket_store, "SAFETY_POLL", NEVER)
    async with brigade.connect_async("memory://") as hub:
        queue, store = await hub.queue("tasks"), hub.store
        assert isinstance(store, BucketStore)
        assert await queue.claim(wait=0.1) == []
        await queue.enqueue("late", delay=1)
        due = store.clock.now() + 1000
        claim: Callable[..., Awaitable[Any]] = store._claim

        async def claim_slowly(*args: Any) -> Any:
            won = await claim(*args)
            while store.clock.now() <= due:
                await asyncio.sleep(0.01)
            return won

        assert await queue.claim() == []
        monkeypatch.setattr(store, "_claim", claim_slowly)
        assert values(await asyncio.wait_for(queue.claim(wait=NEVER), 20)) == ["late"]
