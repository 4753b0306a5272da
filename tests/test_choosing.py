"""Messages that somebody has chosen: leased wherever they are in line, or given another priority."""

from __future__ import annotations

import uuid

from brigade.hub import AsyncHub
from brigade.stores import ChoosingStore
from each_hub import hub, postgres, postgres_url

__all__ = ["hub", "postgres", "postgres_url"]


def chooser(hub: AsyncHub) -> ChoosingStore:
    store = hub.store
    assert isinstance(store, ChoosingStore)
    return store


async def test_chosen_messages_are_leased_and_others_are_not(hub: AsyncHub) -> None:
    queue = await hub.queue(f"c{uuid.uuid4().hex[:12]}")
    receipts = await queue.enqueue_many([{"n": n} for n in range(5)])
    (later,) = await queue.enqueue_many(["later"], delay=3600)
    (lane,) = await queue.enqueue_many(["lane"], group="g")
    (taken,) = await queue.claim(1, owner="other")
    wanted = [receipts[2].ref, receipts[4].ref, later.ref, lane.ref, taken.ref, "nonsense"]
    grants = await chooser(hub).claim_these(queue.name, wanted, owner="me", visibility=60)
    messages = await hub.store.load(grants)
    assert {message.ref for message in messages} == {receipts[2].ref, receipts[4].ref, later.ref} - {taken.ref}
    assert await chooser(hub).claim_these(queue.name, wanted, owner="me", visibility=60) == []
    await queue.ack_many(messages)
    stats = await queue.stats()
    assert (stats.ready + stats.in_flight + stats.delayed, stats.delayed) == (4, 0)


async def test_a_priority_is_changed_with_all_else_kept(hub: AsyncHub) -> None:
    queue = await hub.queue(f"c{uuid.uuid4().hex[:12]}")
    await queue.enqueue("first")
    receipt = await queue.enqueue({"n": 1}, priority=9, attributes={"a": 1}, correlation_id="c", max_attempts=7)
    assert await chooser(hub).reprioritize(queue.name, [receipt.ref], 0) == 1
    (message,) = await queue.claim(1, owner="w")
    assert (message.data, message.priority, message.attributes) == ({"n": 1}, 0, {"a": 1})
    assert (message.correlation_id, message.max_attempts, message.attempt) == ("c", 7, 1)
    assert await chooser(hub).reprioritize(queue.name, [message.ref], 3) == 0
