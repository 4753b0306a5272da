"""Redrive: failures come back, with a fresh count of attempts, once each."""

from __future__ import annotations

import asyncio

from brigade import AsyncQueue, Nack, QueuePolicy, State
from brigade.testing.conformance.harness import Harness, at_once, claim_all, claim_one, drain, values


async def fail(queue: AsyncQueue, count: int) -> None:
    await queue.settle([Nack(message, error="no", reject=True) for message in await claim_all(queue, count)])


async def test_parked_failures_come_back_with_fresh_attempts(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 1))
    await queue.enqueue_many(["a", "b"], attributes={"k": 1}, correlation_id="c", priority=2)
    await fail(queue, 2)
    assert await queue.redrive() == 2
    assert await queue.failed() == []
    messages = await claim_all(queue, 2)
    assert sorted(values(messages)) == ["a", "b"]
    for message in messages:
        assert (message.attempt, message.max_attempts, message.priority) == (1, 2, 2)
        assert (message.correlation_id, dict(message.attributes)) == ("c", {"k": 1})
        assert message.failure is None
    await queue.ack_many(messages)
    assert (await queue.stats()).failed == 0


async def test_redrive_takes_only_the_ids_that_it_is_given(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    receipts = await queue.enqueue_many(range(5))
    await fail(queue, 5)
    assert await queue.redrive([receipts[1].id, receipts[3].id, "unknown"]) == 2
    assert sorted(values(await claim_all(queue, 2))) == [1, 3]
    assert sorted(values(await queue.failed())) == [0, 2, 4]


async def test_redrive_keeps_to_its_limit(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue_many(range(6))
    await fail(queue, 6)
    assert await queue.redrive(limit=4) == 4
    assert len(await queue.failed()) == 2
    assert await queue.redrive() == 2
    assert sorted(values(await claim_all(queue, 6))) == list(range(6))


async def test_dead_letters_are_redriven_from_the_queue_they_failed_in(harness: Harness) -> None:
    letters = harness.name("dead")
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    await queue.enqueue_many(range(4), attributes={"k": 1})
    await fail(queue, 4)
    assert await queue.redrive() == 4
    messages = await claim_all(queue, 4)
    assert sorted(values(messages)) == list(range(4))
    assert [message.attempt for message in messages] == [1] * 4
    assert [message.failure for message in messages] == [None] * 4
    assert await (await (await harness.hub()).queue(letters)).claim() == []


async def test_dead_letters_are_redriven_from_the_queue_they_lie_in(harness: Harness) -> None:
    letters = harness.name("dead")
    first = await harness.queue(at_once("dead-letter", letters=letters))
    second = await harness.queue(at_once("dead-letter", letters=letters))
    for queue in (first, second):
        await queue.enqueue(queue.name)
        await fail(queue, 1)
    assert await (await (await harness.hub()).queue(letters)).redrive() == 2
    assert values(await claim_all(first, 1)) == [first.name]
    assert values(await claim_all(second, 1)) == [second.name]


async def test_a_queue_redrives_only_its_own_dead_letters(harness: Harness) -> None:
    letters = harness.name("dead")
    first = await harness.queue(at_once("dead-letter", letters=letters))
    second = await harness.queue(at_once("dead-letter", letters=letters))
    for queue in (first, second):
        await queue.enqueue(queue.name)
        await fail(queue, 1)
    assert await first.redrive() == 1
    assert await second.claim() == []
    left = await drain(await (await harness.hub()).queue(letters), 1)
    assert values(left) == [second.name]
    assert left[0].attempt == 1


async def test_chosen_dead_letters_are_redriven_by_their_first_id(harness: Harness) -> None:
    letters = harness.name("dead")
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    receipts = await queue.enqueue_many(range(3))
    await fail(queue, 3)
    assert await queue.redrive([receipts[1].id]) == 1
    assert values(await claim_all(queue, 1)) == [1]
    rest = await drain(await (await harness.hub()).queue(letters), 2)
    assert sorted(values(rest)) == [0, 2]


async def test_messages_that_were_sent_to_a_dead_letter_queue_by_hand_stay(harness: Harness) -> None:
    letters = harness.name("dead")
    hub = await harness.hub()
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    await queue.enqueue("failed")
    await fail(queue, 1)
    dead_queue = await hub.queue(letters)
    await dead_queue.enqueue("by hand")
    assert await dead_queue.redrive() == 1
    assert values(await drain(dead_queue, 1)) == ["by hand"]


async def test_letters_whose_queue_is_gone_stay_and_hold_nobody_up(harness: Harness) -> None:
    letters = harness.name("dead")
    gone = await harness.queue(at_once("dead-letter", letters=letters))
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    for origin in (gone, queue):
        await origin.enqueue(origin.name)
        await fail(origin, 1)
    await gone.delete()
    dead_queue = await (await harness.hub()).queue(letters)
    assert await dead_queue.redrive() == 1
    assert values(await claim_all(queue, 1)) == [queue.name]
    assert values(await drain(dead_queue, 1)) == [gone.name]


async def test_with_nothing_failed_there_is_nothing_to_redrive(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("fine")
    assert await queue.redrive() == 0
    assert values(await drain(queue, 1)) == ["fine"]


async def test_two_redrives_at_once_bring_each_message_back_once(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue_many(range(20))
    await fail(queue, 20)
    hubs = [await harness.elsewhere(queue) for _ in range(3)]
    counts = await asyncio.gather(*(hub.redrive() for hub in hubs))
    assert sum(counts) == 20
    assert sorted(values(await drain(queue, 20))) == list(range(20))
    assert await queue.claim() == []


async def test_two_redrives_of_dead_letters_at_once_bring_each_back_once(harness: Harness) -> None:
    letters = harness.name("dead")
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    await queue.enqueue_many(range(12))
    await fail(queue, 12)
    hubs = [await harness.elsewhere(queue) for _ in range(3)]
    await asyncio.gather(*(hub.redrive() for hub in hubs))
    await queue.redrive()
    assert sorted(values(await drain(queue, 12))) == list(range(12))
    assert await queue.claim() == []


async def test_a_redriven_message_can_fail_and_be_redriven_again(harness: Harness) -> None:
    for mode in ("retry", "dead-letter"):
        letters = harness.name("dead") if mode == "dead-letter" else None
        queue = await harness.queue(at_once(mode, 0, letters))
        await queue.enqueue("x", id="mine")
        for _ in range(3):
            await fail(queue, 1)
            assert await queue.redrive() == 1
        message = await claim_one(queue)
        assert (message.id, message.data) == ("mine", "x")
        await queue.ack(message)
        assert (await queue.get("mine")).state is State.SUCCEEDED


async def test_redriven_messages_of_a_strict_queue_are_strict(harness: Harness) -> None:
    """[G6] They come back at the end of the line, one at a time."""
    policy = at_once("retry", 0)
    queue = await harness.queue(QueuePolicy(ordering_guarantee=True, failure=policy.failure))
    await queue.enqueue_many(["bad", "good"])
    await fail(queue, 1)
    assert await queue.redrive() == 1
    head = await claim_one(queue)
    assert head.data == "good"
    assert await queue.claim() == []
    await queue.ack(head)
    assert values(await drain(queue, 1)) == ["bad"]


async def test_redriven_messages_keep_their_own_limits(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 5))
    await queue.enqueue("x", max_attempts=2)
    await fail(queue, 1)
    await queue.redrive()
    assert (await claim_one(queue)).max_attempts == 2
