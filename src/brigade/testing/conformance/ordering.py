"""Ordering: fifo unless told, lifo on request, best effort unless guaranteed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brigade import AsyncQueue, ConfigError, QueuePolicy
from brigade.testing.conformance.harness import (
    Harness,
    at_once,
    claim_all,
    claim_one,
    drain,
    listen,
    values,
)


async def test_messages_come_in_the_order_they_were_enqueued(harness: Harness) -> None:
    """[G6] [seed 000: Default FIFO ordering] [seed 002: FIFO order by default]"""
    queue = await harness.queue()
    assert queue.policy.ordering == "fifo"
    for n in range(30):
        await queue.enqueue(n)
    assert values(await drain(queue, 30, limit=1)) == list(range(30))


async def test_messages_come_in_order_to_another_process(harness: Harness) -> None:
    """[G6] The order is the store's, not the producer's memory."""
    queue = await harness.queue()
    for n in range(20):
        await queue.enqueue(n)
    assert values(await drain(await harness.elsewhere(queue), 20, limit=3)) == list(range(20))


async def test_batches_and_single_messages_keep_one_order(harness: Harness) -> None:
    """[G6] However the messages were written."""
    queue = await harness.queue()
    await queue.enqueue_many(range(5))
    await queue.enqueue(5)
    await queue.enqueue_many(range(6, 10))
    assert values(await drain(queue, 10, limit=3)) == list(range(10))


async def test_lifo_hands_out_the_newest_first(harness: Harness) -> None:
    """[G6] [seed 000: LIFO ordering]"""
    queue = await harness.queue(QueuePolicy(ordering="lifo"))
    for n in range(20):
        await queue.enqueue(n)
    assert values(await drain(queue, 20, limit=1)) == list(range(19, -1, -1))


async def test_lifo_goes_through_a_batch_backwards(harness: Harness) -> None:
    """[G6] A batch is a sequence of enqueues."""
    queue = await harness.queue(QueuePolicy(ordering="lifo"))
    await queue.enqueue_many(range(5))
    await queue.enqueue_many(range(5, 10))
    assert values(await drain(queue, 10, limit=2)) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


async def test_lifo_takes_what_arrives_meanwhile_first(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(ordering="lifo"))
    await queue.enqueue_many(range(3))
    assert values([await claim_one(queue)]) == [2]
    await queue.enqueue("new")
    assert values(await claim_all(queue, 3)) == ["new", 1, 0]


@pytest.mark.parametrize("ordering", ["random", "FIFO", "", None, 1])
async def test_an_unknown_ordering_is_refused(harness: Harness, ordering: Any) -> None:
    """[seed 000: Reject unsupported ordering] A configuration error that says what is possible."""
    with pytest.raises(ConfigError, match=r"ordering.*'fifo' or 'lifo'"):
        QueuePolicy(ordering=ordering)


async def test_best_effort_order_loses_nothing_among_many_workers(harness: Harness) -> None:
    """[seed 000: Best-effort ordering] Messages may come out of order, and each comes to one worker."""
    queue = await harness.queue(QueuePolicy(ordering_guarantee=False))
    await queue.enqueue_many(range(60))
    workers = [await harness.elsewhere(queue) for _ in range(4)]
    taken: list[Any] = []

    async def work(worker: AsyncQueue) -> None:
        while messages := await worker.claim(3):
            taken.extend(values(messages))
            await worker.ack_many(messages)

    await asyncio.gather(*map(work, workers))
    taken += values(await drain(queue, 60 - len(taken))) if len(taken) < 60 else []
    assert sorted(taken) == list(range(60))


async def test_operators_can_listen_for_the_best_effort_diagnostic(harness: Harness) -> None:
    """[seed 000: Best-effort ordering] `ordering-best-effort` is an event that a hub knows."""
    hub = await harness.hub()
    assert listen(hub, "ordering-best-effort") == []
    assert (await hub.queue(harness.name())).policy.ordering_guarantee is False


async def test_queues_do_not_wait_for_each_other(harness: Harness) -> None:
    """[seed 002: No cross-queue ordering guarantees]"""
    hub = await harness.hub()
    first, second = await harness.queue(hub=hub), await harness.queue(hub=hub)
    await first.enqueue("first")
    await second.enqueue("second")
    assert values(await second.claim()) == ["second"]
    assert values(await first.claim()) == ["first"]


async def test_a_retried_message_comes_back_among_the_rest(harness: Harness) -> None:
    """[seed 002: Strict FIFO is not maintained across retries] It is not lost, and nothing is handed out twice."""
    queue = await harness.queue(at_once())
    await queue.enqueue_many(range(5))
    await queue.nack(await claim_one(queue))
    assert sorted(values(await claim_all(queue, 5))) == list(range(5))
