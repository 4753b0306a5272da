"""Attempts: counted at the claim, bounded by the policy or by the message."""

from __future__ import annotations

from brigade import NewMessage, QueuePolicy, State
from brigade.testing.conformance.harness import SHORT, Harness, at_once, claim_all, claim_one, passed


async def test_attempts_are_counted_at_the_claim(harness: Harness) -> None:
    """[G4] The first claim is attempt 1."""
    queue = await harness.queue(at_once())
    receipt = await queue.enqueue("x")
    assert (await queue.get(receipt.id)).attempts == 0
    for attempt in (1, 2, 3):
        message = await claim_one(queue)
        assert message.attempt == attempt
        assert (await queue.get(receipt.id)).attempts == attempt
        await queue.nack(message)


async def test_by_default_there_are_three_retries(harness: Harness) -> None:
    """[seed 002: Initial attempt + 3 retries = 4 total attempts maximum]"""
    assert QueuePolicy().failure.max_retries == 3
    queue = await harness.queue(at_once())
    await queue.enqueue("x")
    outcomes: list[State] = []
    while messages := await queue.claim():
        assert messages[0].max_attempts == 4
        outcomes.append(await queue.nack(messages[0]))
    assert outcomes == [State.READY, State.READY, State.READY, State.FAILED]
    (failed,) = await queue.failed()
    assert (failed.attempts, failed.reason) == (4, "failed")


async def test_deaths_and_failures_count_together(harness: Harness) -> None:
    """[G4] A worker that dies counts as an attempt."""
    queue = await harness.queue(at_once("retry", 2))
    await queue.enqueue("x")
    await passed(await claim_one(queue, visibility=SHORT))
    assert await queue.nack(await claim_one(queue)) is State.READY
    last = await claim_one(queue)
    assert last.attempt == last.max_attempts == 3
    assert await queue.nack(last) is State.FAILED


async def test_a_message_may_have_its_own_number_of_attempts(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 5))
    await queue.enqueue_many([NewMessage(payload="once", max_attempts=1), "policy"])
    messages = await claim_all(queue, 2)
    assert {message.data: message.max_attempts for message in messages} == {"once": 1, "policy": 6}
    outcomes = {message.data: await queue.nack(message) for message in messages}
    assert outcomes == {"once": State.FAILED, "policy": State.READY}


async def test_own_attempts_may_exceed_the_policy(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue("x", max_attempts=3)
    outcomes = [await queue.nack(await claim_one(queue)) for _ in range(3)]
    assert outcomes == [State.READY, State.READY, State.FAILED]


async def test_no_retries_means_one_attempt(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue("x")
    message = await claim_one(queue)
    assert message.max_attempts == 1
    assert await queue.nack(message) is State.FAILED


async def test_a_message_is_in_exactly_one_state(harness: Harness) -> None:
    """[seed 002: State Consistency] The counts of the states always add up to what was enqueued."""
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue_many(range(6))
    messages = await claim_all(queue, 4)
    await queue.ack(messages[0])
    await queue.nack(messages[1])
    await queue.release(messages[2])
    stats = await queue.stats()
    counted = (stats.ready, stats.in_flight, stats.succeeded, stats.failed)
    assert counted == (3, 1, 1, 1)
