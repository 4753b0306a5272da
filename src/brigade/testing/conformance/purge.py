"""Purge: drop what waits and what has failed; leave what is in flight."""

from __future__ import annotations

import asyncio

import pytest

from brigade import MessageNotFound, Nack, QueuePolicy, State
from brigade.testing.conformance.harness import Harness, at_once, claim_all, claim_one, drain, eventually, values


async def test_purge_drops_everything_that_waits(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(5))
    await queue.enqueue("urgent", priority=0)
    await queue.enqueue("later", delay=3600)
    await queue.enqueue("grouped", group="g")
    assert await queue.purge() == 8
    assert await queue.claim(10) == []
    stats = await queue.stats()
    assert (stats.ready, stats.delayed, stats.total) == (0, 0, 0)


async def test_purge_leaves_what_is_in_flight(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(4))
    held = await claim_all(queue, 2)
    assert await queue.purge() == 2
    assert await queue.ack_many(held) == [State.SUCCEEDED] * 2
    assert await queue.claim(10) == []


async def test_a_message_that_is_given_back_after_a_purge_is_there(harness: Harness) -> None:
    """[G1] What was in flight was not purged."""
    queue = await harness.queue()
    await queue.enqueue_many(range(2))
    held = await claim_one(queue)
    await queue.purge()
    await queue.release(held)
    assert values(await drain(queue, 1)) == [0]


async def test_purge_drops_parked_failures(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue_many(range(3))
    await queue.settle([Nack(message) for message in await claim_all(queue, 3)])
    assert await queue.purge() == 3
    assert await queue.failed() == []
    assert await queue.redrive() == 0
    assert (await queue.stats()).failed == 0


async def test_purge_does_not_touch_other_queues(harness: Harness) -> None:
    hub = await harness.hub()
    queue, other = await harness.queue(hub=hub), await harness.queue(hub=hub)
    await queue.enqueue("x")
    await other.enqueue("y")
    await queue.purge()
    assert values(await other.claim()) == ["y"]


async def test_a_purged_queue_goes_on(harness: Harness) -> None:
    queue = await harness.queue()
    other = await harness.elsewhere(queue)
    await queue.enqueue_many(range(3))
    assert len(await other.peek()) == 3
    await queue.purge()
    await queue.enqueue("new")
    assert values(await drain(other, 1)) == ["new"]
    assert await queue.purge() == 0


async def test_a_purged_message_is_gone(harness: Harness) -> None:
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    await queue.purge()

    async def gone() -> bool:
        with pytest.raises(MessageNotFound):
            await queue.get(receipt.id)
        return True

    await eventually(gone)


async def test_purge_and_claim_at_once_have_one_winner_for_each_message(harness: Harness) -> None:
    """[G2] A message is purged or delivered, never both and never neither."""
    queue = await harness.queue()
    await queue.enqueue_many(range(30))
    other = await harness.elsewhere(queue)
    purging = asyncio.ensure_future(queue.purge())
    claimed = await asyncio.gather(*(other.claim(3) for _ in range(5)))
    purged = await purging
    taken = [message for messages in claimed for message in messages]
    rest = await other.claim(30)
    assert purged + len(taken) + len(rest) == 30
    assert await other.ack_many([*taken, *rest]) == [State.SUCCEEDED] * (len(taken) + len(rest))


async def test_dead_letters_can_be_purged(harness: Harness) -> None:
    letters = harness.name("dead")
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    await queue.enqueue_many(range(3))
    await queue.settle([Nack(message) for message in await claim_all(queue, 3)])
    dead_queue = await (await harness.hub()).queue(letters)
    assert await dead_queue.purge() == 3
    assert await queue.redrive() == 0
    assert await dead_queue.claim() == []


async def test_a_strict_queue_can_be_purged(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(ordering_guarantee=True))
    await queue.enqueue_many(range(3))
    head = await claim_one(queue)
    assert await queue.purge() == 2
    await queue.ack(head)
    await queue.enqueue("new")
    assert values(await drain(queue, 1)) == ["new"]


async def test_a_purge_of_failures_leaves_what_waits(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue_many(range(3))
    await queue.settle([Nack(message) for message in await claim_all(queue, 2)])
    assert await queue.purge(failed_only=True) == 2
    assert await queue.failed() == []
    assert values(await drain(queue, 1)) == [2]
