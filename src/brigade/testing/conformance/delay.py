"""Delay: a message is there, and counted, but nobody gets it before it is due."""

from __future__ import annotations

import asyncio

from brigade import NewMessage, QueuePolicy, State
from brigade.testing.conformance.harness import PATIENCE, Harness, claim_all, claim_one, now_ms, values


async def test_a_delayed_message_is_not_claimable_before_it_is_due(harness: Harness) -> None:
    """[seed 002: Job status is Ready, retry_at <= now]"""
    queue = await harness.queue()
    receipt = await queue.enqueue("later", delay=3600)
    assert await queue.claim() == []
    assert await (await harness.elsewhere(queue)).claim() == []
    info = await queue.get(receipt.id)
    assert info.state is State.READY
    assert info.due_at_ms >= now_ms() + 3_500_000


async def test_a_delayed_message_comes_when_it_is_due(harness: Harness) -> None:
    queue = await harness.queue()
    receipt = await queue.enqueue("later", delay=0.4)
    due = (await queue.get(receipt.id)).due_at_ms
    assert (await claim_one(queue)).id == receipt.id
    assert now_ms() >= due


async def test_another_process_waits_for_a_delayed_message(harness: Harness) -> None:
    queue = await harness.queue()
    other = await harness.elsewhere(queue)
    waiting = asyncio.ensure_future(other.claim(wait=PATIENCE))
    await queue.enqueue("later", delay=0.4)
    assert values(await waiting) == ["later"]


async def test_a_delayed_message_holds_nobody_up(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("later", delay=3600)
    await queue.enqueue("urgent later", delay=3600, priority=0)
    await queue.enqueue("now")
    assert values(await claim_all(queue, 1)) == ["now"]
    assert await queue.claim() == []


async def test_a_batch_may_mix_due_times(harness: Harness) -> None:
    queue = await harness.queue()
    delays = [3600, 0, 0.4, 7200, 0]
    await queue.enqueue_many([NewMessage(payload=n, delay=delay) for n, delay in enumerate(delays)])
    assert values(await claim_all(queue, 3)) == [1, 4, 2]
    assert await queue.claim(5) == []
    assert (await queue.stats()).delayed == 2


async def test_delayed_messages_come_in_order_of_their_due_time(harness: Harness) -> None:
    queue = await harness.queue()
    for n, delay in enumerate((0.6, 0.2, 0.4)):
        await queue.enqueue(n, delay=delay)
    assert values([await claim_one(queue) for _ in range(3)]) == [1, 2, 0]


async def test_delay_works_with_lifo(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(ordering="lifo"))
    await queue.enqueue("later", delay=3600)
    await queue.enqueue("now")
    assert values(await queue.claim(2)) == ["now"]


async def test_a_delay_of_nothing_is_no_delay(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("now", delay=0)
    assert values(await queue.claim()) == ["now"]


async def test_a_delay_counts_from_the_enqueue_and_survives_the_process(harness: Harness) -> None:
    """[G1] A delayed message is as durable as any other."""
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    await queue.enqueue("later", delay=0.3)
    await hub.close()
    assert values([await claim_one(await (await harness.hub()).queue(queue.name))]) == ["later"]
