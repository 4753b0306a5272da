"""Many at once: exclusive, unique and complete, whoever competes."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from brigade import AsyncQueue, Message, StaleLease, State
from brigade.testing.conformance.harness import (
    PATIENCE,
    SHORT,
    Harness,
    at_once,
    claim_all,
    claim_one,
    passed,
    values,
)


async def test_of_a_hundred_claimers_of_one_message_one_wins(harness: Harness) -> None:
    """[G2] [seed 000: 100 concurrent consumers] The others find the queue empty until the lease ends."""
    queue = await harness.queue()
    workers = [await harness.elsewhere(queue) for _ in range(5)]
    await queue.enqueue("only")
    answers = await asyncio.gather(*(workers[n % 5].claim(visibility=600) for n in range(100)))
    won = [message for answer in answers for message in answer]
    assert len(won) == 1
    assert [await worker.claim() for worker in workers] == [[]] * 5
    await workers[0].release(won[0])
    assert values([await claim_one(workers[1])]) == ["only"]


async def test_of_a_hundred_waiting_claimers_one_gets_the_message(harness: Harness) -> None:
    """[G2] [seed 000: 100 concurrent consumers] When the message becomes available, exactly one acquires it."""
    queue = await harness.queue()
    workers = [await harness.elsewhere(queue) for _ in range(5)]
    waiting = [asyncio.ensure_future(workers[n % 5].claim(wait=PATIENCE, visibility=600)) for n in range(100)]
    await asyncio.sleep(0.1)
    await queue.enqueue("only")
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [values(task.result()) for task in done] == [["only"]]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    assert (await queue.stats()).in_flight == 1


async def test_every_token_is_unique(harness: Harness) -> None:
    """[G2] [seed 000: Lock token uniqueness] Over messages, claims and processes."""
    queue = await harness.queue()
    await queue.enqueue_many(range(40))
    workers = [await harness.elsewhere(queue) for _ in range(4)]
    tokens: list[str] = []
    for _ in range(3):
        rounds = await asyncio.gather(*(worker.claim(10) for worker in workers))
        for worker, messages in zip(workers, rounds, strict=True):
            tokens += [message.lease.token for message in messages]
            for message in messages:
                await worker.release(message)
    assert len(tokens) > 40
    assert len(set(tokens)) == len(tokens)


async def test_old_tokens_are_rejected_and_versions_grow(harness: Harness) -> None:
    """[G2] [seed 000: Lock token uniqueness] [seed 002: Lease version incremented on each claim]"""
    queue = await harness.queue(at_once("retry", 100))
    await queue.enqueue("x")
    workers = [await harness.elsewhere(queue) for _ in range(3)]
    held: list[Message] = []
    for turn in range(9):
        message = await claim_one(workers[turn % 3])
        held.append(message)
        if turn % 2:
            await workers[turn % 3].nack(message)
        else:
            await workers[turn % 3].extend(message, SHORT)
            await passed(message.lease.expires_at_ms - 30_000 + 100)
    versions = [message.lease.version for message in held]
    assert versions == sorted(set(versions))
    last = await claim_one(queue)
    for message in held:
        (answer,) = await queue.ack_many([message])
        assert isinstance(answer, StaleLease)
    await queue.ack(last)


async def test_many_producers_and_consumers_lose_and_repeat_nothing(harness: Harness) -> None:
    """[G1] [G3] [seed 002: Every enqueued job will be processed at least once]"""
    queue = await harness.queue()
    producers = [await harness.elsewhere(queue) for _ in range(4)]
    workers = [await harness.elsewhere(queue) for _ in range(4)]
    acked: Counter[Any] = Counter()

    async def produce(producer: AsyncQueue, number: int) -> None:
        for n in range(15):
            if n % 3:
                await producer.enqueue(f"{number}-{n}")
            else:
                await producer.enqueue_many([f"{number}-{n}-{k}" for k in range(4)])

    async def consume(worker: AsyncQueue) -> None:
        while sum(acked.values()) < 4 * 30:
            messages = await worker.claim(7, wait=0.2)
            answers = await worker.ack_many(messages)
            acked.update(m.data for m, a in zip(messages, answers, strict=True) if a is State.SUCCEEDED)

    await asyncio.gather(
        *(produce(producer, number) for number, producer in enumerate(producers)), *map(consume, workers)
    )
    assert len(acked) == 4 * 30
    assert set(acked.values()) == {1}
    assert await queue.claim() == []


async def test_of_an_ack_and_a_takeover_at_once_one_wins(harness: Harness) -> None:
    """[G3] [G5] A late ack either ends the message or is stale: it is never acked and delivered."""
    queue = await harness.queue()
    other = await harness.elsewhere(queue)
    for round_ in range(10):
        await queue.enqueue(round_)
        old = await claim_one(queue, visibility=SHORT)
        await passed(old)
        acked, taken = await asyncio.gather(queue.ack_many([old]), other.claim(visibility=60))
        if isinstance(acked[0], StaleLease):
            assert values(taken) == [round_]
            await other.ack(taken[0])
        else:
            assert taken == []
            assert await other.claim() == []


async def test_two_holders_never_overlap(harness: Harness) -> None:
    """[G2] [seed 002: Only one worker can hold a lease on a job at any time] Each lease begins after the last ended."""
    queue = await harness.queue(at_once("retry", 1000))
    await queue.enqueue_many(range(3))
    workers = [await harness.elsewhere(queue) for _ in range(4)]
    holders: Counter[str] = Counter()
    overlaps: list[str] = []

    async def work(worker: AsyncQueue) -> None:
        for _ in range(12):
            for message in await worker.claim(2, wait=0.05, visibility=60):
                holders[message.id] += 1
                if holders[message.id] > 1:
                    overlaps.append(message.id)
                await asyncio.sleep(0)
                holders[message.id] -= 1
                await worker.nack(message)

    await asyncio.gather(*map(work, workers))
    assert overlaps == []
    assert sorted(values(await claim_all(queue, 3))) == [0, 1, 2]
