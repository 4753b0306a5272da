"""Pause: nothing is handed out; everything else goes on."""

from __future__ import annotations

import asyncio

import pytest

from brigade import AsyncQueue, QueuePaused, QueuePolicy, State
from brigade.testing.conformance.harness import PATIENCE, Harness, claim_all, claim_one, eventually, values


async def hands_nothing_out(queue: AsyncQueue) -> bool:
    with pytest.raises(QueuePaused, match="resume"):
        await queue.claim(10)
    return True


async def test_a_paused_queue_hands_nothing_out(harness: Harness) -> None:
    """A claim needs the queue not paused; it says so, and how to go on."""
    queue = await harness.queue()
    await queue.enqueue("x")
    await queue.pause()
    await hands_nothing_out(queue)
    with pytest.raises(QueuePaused):
        await queue.claim(wait=0.05)
    await queue.resume()
    assert values(await queue.claim()) == ["x"]


async def test_other_processes_see_that_a_queue_is_paused(harness: Harness) -> None:
    queue = await harness.queue()
    other = await harness.elsewhere(queue)
    await queue.enqueue("x")
    await queue.pause()
    await hands_nothing_out(await harness.elsewhere(queue))
    await eventually(lambda: hands_nothing_out(other))
    await other.resume()
    assert values([await claim_one(queue)]) == ["x"]


async def test_producers_do_not_notice_a_pause(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.pause()
    await queue.enqueue_many(range(3))
    assert (await queue.stats()).ready == 3
    await queue.resume()
    assert values(await claim_all(queue, 3)) == [0, 1, 2]


async def test_what_is_in_flight_may_be_settled_during_a_pause(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(4))
    acked, nacked, extended, released = await claim_all(queue, 4)
    await queue.pause()
    await queue.ack(acked)
    assert await queue.nack(nacked, delay=0) is State.READY
    await queue.extend(extended, 60)
    await queue.release(released)
    await hands_nothing_out(queue)
    await queue.resume()
    assert sorted(values(await claim_all(queue, 2))) == [1, 3]


async def test_a_waiting_claim_goes_on_when_the_queue_is_resumed(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    await queue.pause()
    waiting = asyncio.ensure_future(queue.claim(wait=PATIENCE))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await queue.resume()
    assert values(await waiting) == ["x"]


async def test_pausing_and_resuming_may_be_repeated(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.resume()
    await queue.pause()
    await queue.pause()
    assert (await queue.stats()).paused
    await queue.resume()
    await queue.resume()
    assert not (await queue.stats()).paused
    assert await queue.claim() == []


async def test_a_pause_survives_the_process(harness: Harness) -> None:
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    await queue.enqueue("x")
    await queue.pause()
    await hub.close()
    reopened = await (await harness.hub()).queue(queue.name)
    await hands_nothing_out(reopened)
    assert (await reopened.stats()).paused


async def test_a_strict_queue_and_its_groups_can_be_paused(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(ordering_guarantee=True))
    await queue.enqueue("x")
    await queue.pause()
    await hands_nothing_out(await harness.elsewhere(queue))
    await queue.resume()
    assert values([await claim_one(queue)]) == ["x"]


async def test_a_pause_is_of_one_queue(harness: Harness) -> None:
    hub = await harness.hub()
    paused, other = await harness.queue(hub=hub), await harness.queue(hub=hub)
    await paused.pause()
    await other.enqueue("x")
    assert values(await other.claim()) == ["x"]
