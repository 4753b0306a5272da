"""Strict order: across retries, timeouts and crashes, whoever works."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brigade import AsyncQueue, Failure, QueuePolicy, StaleLease, State
from brigade.testing.conformance.harness import (
    AT_ONCE,
    PATIENCE,
    SHORT,
    Harness,
    claim_one,
    drain,
    eventually,
    passed,
    values,
)

STRICT = QueuePolicy(ordering_guarantee=True, backoff=AT_ONCE)


async def test_a_strict_queue_hands_out_one_message_at_a_time(harness: Harness) -> None:
    """[G6] [seed 000: Strict ordering guarantee] The head blocks the rest until it has ended."""
    queue = await harness.queue(STRICT)
    await queue.enqueue_many(range(3))
    head = await claim_one(queue)
    assert head.data == 0
    assert await queue.claim(10) == []
    assert await (await harness.elsewhere(queue)).claim(10) == []
    await queue.ack(head)
    assert values([await claim_one(queue)]) == [1]


async def test_a_strict_queue_delivers_in_enqueue_order(harness: Harness) -> None:
    """[G6] [seed 000: Strict ordering guarantee]"""
    queue = await harness.queue(STRICT)
    for n in range(8):
        await queue.enqueue(n)
    await queue.enqueue_many(range(8, 16))
    assert values(await drain(queue, 16)) == list(range(16))


async def test_strict_order_holds_across_retries(harness: Harness) -> None:
    """[G6] [seed 000: Strict ordering guarantee] A failed head comes again before the next message."""
    queue = await harness.queue(STRICT)
    await queue.enqueue_many(range(2))
    for _ in range(2):
        head = await claim_one(queue)
        assert head.data == 0
        await queue.nack(head)
    await queue.nack(await claim_one(queue), delay=3600)
    assert await queue.claim(2) == []
    assert await (await harness.elsewhere(queue)).claim(2) == []


async def test_strict_order_holds_across_timeouts(harness: Harness) -> None:
    """[G6] [seed 000: Strict ordering guarantee] A head whose worker died comes again before the next message."""
    queue = await harness.queue(STRICT)
    await queue.enqueue_many(range(3))
    lost = await claim_one(queue, visibility=SHORT)
    other = await harness.elsewhere(queue)
    again = await claim_one(other, visibility=60)
    assert (again.data, again.attempt) == (0, 2)
    with pytest.raises(StaleLease):
        await queue.ack(lost)
    await other.ack(again)
    assert values(await drain(other, 2)) == [1, 2]


async def test_strict_order_holds_across_releases(harness: Harness) -> None:
    """[G6] A head that was given back stays the head."""
    queue = await harness.queue(STRICT)
    await queue.enqueue_many(range(2))
    await queue.release(await claim_one(queue))
    assert values(await drain(queue, 2)) == [0, 1]


async def test_a_delayed_head_blocks_a_strict_queue(harness: Harness) -> None:
    """[G6] Strict means strict: what was enqueued first comes first, even if it is due later."""
    queue = await harness.queue(STRICT)
    await queue.enqueue("first", delay=1.5)
    await queue.enqueue("second")
    assert await queue.claim(2) == []
    assert values(await drain(queue, 2)) == ["first", "second"]


async def test_a_head_that_fails_for_good_lets_the_next_one_come(harness: Harness) -> None:
    """[G6] A lane is not blocked for ever by a message that cannot succeed."""
    policy = QueuePolicy(ordering_guarantee=True, backoff=AT_ONCE, failure=Failure("retry", 1))
    queue = await harness.queue(policy)
    await queue.enqueue_many(["bad", "good"])
    for expected in (State.READY, State.FAILED):
        head = await claim_one(queue)
        assert head.data == "bad"
        assert await queue.nack(head) is expected
    assert values(await drain(queue, 1)) == ["good"]
    assert values(await queue.failed()) == ["bad"]


async def test_a_head_that_kills_its_workers_lets_the_next_one_come(harness: Harness) -> None:
    """[G4] [G6] Spent attempts end the head of a lane, too."""
    letters = harness.name("dead")
    policy = QueuePolicy(ordering_guarantee=True, backoff=AT_ONCE, failure=Failure("hybrid", 1, letters))
    queue = await harness.queue(policy)
    await queue.enqueue_many(["bad", "good"])
    for _ in range(2):
        await passed(await claim_one(queue, visibility=SHORT))
    assert values(await drain(queue, 1)) == ["good"]
    assert values(await drain(await (await harness.hub()).queue(letters), 1)) == ["bad"]


async def test_strict_lifo_hands_out_the_newest_first(harness: Harness) -> None:
    """[G6] Strict and lifo: the newest that is there when somebody claims, one at a time."""
    policy = QueuePolicy(ordering="lifo", ordering_guarantee=True)
    queue = await harness.queue(policy)
    await queue.enqueue_many(range(3))
    first = await claim_one(queue)
    assert first.data == 2
    await queue.enqueue(3)
    assert await queue.claim() == []
    await queue.ack(first)
    assert values(await drain(queue, 3)) == [3, 1, 0]


async def test_strict_order_holds_among_many_workers(harness: Harness) -> None:
    """[G6] Whoever works, and however they fail, messages end in the order they were enqueued."""
    queue = await harness.queue(STRICT)
    await queue.enqueue_many(range(20))
    ended: list[Any] = []

    async def work(worker: AsyncQueue, number: int) -> None:
        turn = 0
        while len(ended) < 20:
            for message in await worker.claim(5, wait=0.2):
                turn += 1
                if (turn + number) % 4 == 0:
                    await worker.nack(message, penalize=False)
                else:
                    ended.append(message.data)
                    await worker.ack(message)

    await asyncio.gather(*[work(await harness.elsewhere(queue), number) for number in range(4)])
    assert ended == list(range(20))


async def test_producers_of_a_strict_queue_keep_their_own_order(harness: Harness) -> None:
    """[G6] Several producers are interleaved; each one's messages stay in the order it enqueued them."""
    queue = await harness.queue(STRICT)

    async def produce(producer: AsyncQueue, number: int) -> None:
        for n in range(6):
            await producer.enqueue([number, n])

    await asyncio.gather(*[produce(await harness.elsewhere(queue), number) for number in range(4)])
    found = values(await drain(queue, 24))
    for number in range(4):
        assert [n for who, n in found if who == number] == list(range(6))


async def test_a_waiting_claim_gets_the_next_head(harness: Harness) -> None:
    queue = await harness.queue(STRICT)
    await queue.enqueue_many(range(2))
    head = await claim_one(queue)
    waiting = asyncio.ensure_future((await harness.elsewhere(queue)).claim(wait=PATIENCE))
    await asyncio.sleep(0.05)
    await queue.ack(head)
    assert values(await waiting) == [1]


async def test_strict_messages_end_in_history(harness: Harness) -> None:
    queue = await harness.queue(STRICT)
    receipts = await queue.enqueue_many(range(3))
    await drain(queue, 3)

    async def counted() -> bool:
        return (await (await harness.elsewhere(queue)).stats()).succeeded == 3

    await eventually(counted)
    for receipt in receipts:
        assert (await queue.get(receipt.id)).outcome == "processed"
