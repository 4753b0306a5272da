"""Failure routing: retry, dead-letter, or both."""

from __future__ import annotations

from brigade import Nack, QueuePolicy, State
from brigade.testing.conformance.harness import Harness, at_once, claim_all, claim_one, drain, values


async def test_retry_exhausts_to_failed(harness: Harness) -> None:
    """[seed 000: Retry to original queue] [seed 002: Nack (exhausted)] Kept, listable, redrivable."""
    queue = await harness.queue(at_once("retry", 2))
    receipt = await queue.enqueue("x")
    outcomes = [await queue.nack(await claim_one(queue), error=f"no {n}") for n in range(3)]
    assert outcomes == [State.READY, State.READY, State.FAILED]
    assert await queue.claim() == []
    (failed,) = await queue.failed()
    assert (failed.id, failed.data, failed.error, failed.attempts) == (receipt.id, "x", "no 2", 3)
    assert (await queue.get(receipt.id)).outcome == "failed"


async def test_dead_letter_goes_there_at_the_first_failure(harness: Harness) -> None:
    """[seed 000: Route to dead-letter queue] Moved, and annotated with reason, attempts and time."""
    letters = harness.name("dead")
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    receipt = await queue.enqueue({"job": 1})
    assert await queue.nack(await claim_one(queue), error="boom") is State.FAILED
    assert await queue.claim() == []
    dead = await claim_one(await (await harness.hub()).queue(letters))
    assert dead.data == {"job": 1}
    info = dead.failure
    assert info is not None
    assert (info.queue, info.id, info.reason, info.error) == (queue.name, receipt.id, "failed", "boom")
    assert info.attempts == 1
    assert info.failed_at >= info.enqueued_at
    assert (await queue.get(receipt.id)).outcome == "dead-lettered"


async def test_hybrid_retries_and_then_dead_letters(harness: Harness) -> None:
    """[seed 000: Retry then dead-letter]"""
    letters = harness.name("dead")
    queue = await harness.queue(at_once("hybrid", 3, letters))
    await queue.enqueue("x")
    outcomes = [await queue.nack(await claim_one(queue)) for _ in range(4)]
    assert outcomes == [State.READY] * 3 + [State.FAILED]
    assert await queue.failed() == []
    dead = await claim_one(await (await harness.hub()).queue(letters))
    assert dead.failure is not None
    assert dead.failure.attempts == 4


async def test_hybrid_without_retries_dead_letters_at_once(harness: Harness) -> None:
    letters = harness.name("dead")
    queue = await harness.queue(at_once("hybrid", 0, letters))
    await queue.enqueue("x")
    assert await queue.nack(await claim_one(queue)) is State.FAILED
    assert values(await drain(await (await harness.hub()).queue(letters), 1)) == ["x"]


async def test_many_failures_in_one_batch_are_all_routed(harness: Harness) -> None:
    letters = harness.name("dead")
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    await queue.enqueue_many(range(20))
    messages = await claim_all(queue, 20)
    await queue.settle([Nack(message, error=str(message.data)) for message in messages if message.data % 2])
    await queue.ack_many([message for message in messages if message.data % 2 == 0])
    dead = await drain(await (await harness.hub()).queue(letters), 10)
    assert sorted(values(dead)) == list(range(1, 20, 2))
    assert all(message.failure and message.failure.error == str(message.data) for message in dead)


async def test_failures_are_counted(harness: Harness) -> None:
    letters = harness.name("dead")
    parking = await harness.queue(at_once("retry", 0))
    routing = await harness.queue(at_once("dead-letter", letters=letters))
    for queue in (parking, routing):
        await queue.enqueue_many(range(3))
        await queue.settle([Nack(message) for message in await claim_all(queue, 3)])
    assert (await parking.stats()).failed == 3
    stats = await routing.stats()
    assert (stats.failed, stats.dead_lettered) == (0, 3)


async def test_a_changed_policy_routes_the_failures_that_come_after(harness: Harness) -> None:
    letters = harness.name("dead")
    hub = await harness.hub()
    queue = await hub.queue(harness.name(), at_once("retry", 0))
    await queue.enqueue_many(["parked", "letter"])
    first = await claim_one(queue)
    await queue.nack(first)
    changed = await hub.queue(queue.name, at_once("dead-letter", letters=letters), replace=True)
    await changed.nack(await claim_one(changed))
    assert values(await changed.failed()) == ["parked"]
    assert values(await drain(await hub.queue(letters), 1)) == ["letter"]


async def test_failed_lists_the_oldest_first_up_to_a_limit(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    for n in range(5):
        await queue.enqueue(n)
        await queue.nack(await claim_one(queue))
    listed = await queue.failed()
    assert [message.failure.failed_at_ms for message in listed] == sorted(
        message.failure.failed_at_ms for message in listed
    )
    assert sorted(values(listed)) == list(range(5))
    assert len(await queue.failed(2)) == 2


async def test_a_queue_may_be_its_own_neighbours_dead_letter_queue(harness: Harness) -> None:
    """A dead-letter queue is a queue: its own failures go where its own policy says."""
    hub = await harness.hub()
    second = await hub.queue(harness.name("second"), QueuePolicy(failure=at_once("retry", 0).failure))
    first = await hub.queue(harness.name("first"), at_once("dead-letter", letters=second.name))
    await first.enqueue("x")
    await first.nack(await claim_one(first), error="one")
    await second.nack(await claim_one(second), error="two")
    (failed,) = await second.failed()
    assert (failed.data, failed.error, failed.failure.queue) == ("x", "two", second.name)
