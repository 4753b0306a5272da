"""Dead letters: everything that is needed to understand a failure and to repeat the work."""

from __future__ import annotations

from brigade import Message, State
from brigade.testing.conformance.harness import (
    SHORT,
    Harness,
    at_once,
    claim_all,
    claim_one,
    drain,
    eventually,
    now_ms,
    passed,
    values,
)


async def test_a_dead_letter_carries_what_is_known_of_the_failure(harness: Harness) -> None:
    """Reason, attempts, timestamps, origin queue and id, correlation id, payload, attributes and workflow state."""
    letters = harness.name("dead")
    hub = await harness.hub()
    queue = await hub.queue(harness.name(), at_once("hybrid", 1, letters))
    before = now_ms()
    receipt = await queue.enqueue({"job": 1}, attributes={"tenant": "a"}, correlation_id="order-7", priority=2)
    first = await claim_one(queue)
    await queue.state(first).save({"step": 2})
    await queue.nack(first, error="first")
    await queue.nack(await claim_one(queue), error="second")
    dead_queue = await (await harness.hub()).queue(letters)
    dead = await claim_one(dead_queue)
    info = dead.failure
    assert info is not None
    assert (info.reason, info.error, info.attempts) == ("failed", "second", 2)
    assert (info.queue, info.id) == (queue.name, receipt.id)
    assert before - 1000 <= info.enqueued_at_ms <= info.failed_at_ms <= now_ms() + 1000
    assert dead.correlation_id == "order-7"
    assert dead.data == {"job": 1}
    assert dict(dead.attributes) == {"tenant": "a"}
    assert (dead.priority, dead.content_type) == (2, "application/json")
    assert await dead_queue.state(dead).load() == {"step": 2}


async def test_a_dead_letter_is_a_message_with_attempts_of_its_own(harness: Harness) -> None:
    letters = harness.name("dead")
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    await queue.enqueue("x")
    await queue.nack(await claim_one(queue))
    dead_queue = await (await harness.hub()).queue(letters)
    dead = await claim_one(dead_queue)
    assert (dead.attempt, dead.max_attempts) == (1, 4)
    await dead_queue.ack(dead)
    assert (await dead_queue.get(dead.id)).state is State.SUCCEEDED


async def test_a_dead_letter_queue_comes_to_be_by_itself(harness: Harness) -> None:
    letters = harness.name("dead")
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    await queue.enqueue("x")
    await queue.nack(await claim_one(queue))
    hub = await harness.hub()
    assert letters in await hub.queues()
    assert (await (await hub.queue(letters, create=False)).stats()).ready == 1


async def test_a_dead_letter_queue_keeps_the_policy_it_was_made_with(harness: Harness) -> None:
    hub = await harness.hub()
    dead_queue = await hub.queue(harness.name("dead"), at_once("retry", 7))
    queue = await hub.queue(harness.name(), at_once("dead-letter", letters=dead_queue.name))
    await queue.enqueue("x")
    await queue.nack(await claim_one(queue))
    assert (await claim_one(dead_queue)).max_attempts == 8


async def test_each_message_is_dead_lettered_once(harness: Harness) -> None:
    """[G1] Several processes may see that a message is spent; there is one dead letter."""
    letters = harness.name("dead")
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    await queue.enqueue_many(range(10))
    lost = await claim_all(queue, 10, visibility=SHORT)
    workers = [await harness.elsewhere(queue) for _ in range(4)]
    await passed(lost[-1])
    for worker in workers:
        assert await worker.claim(10) == []
    await queue.sweep()
    dead = await drain(await (await harness.hub()).queue(letters), 10)
    assert sorted(values(dead)) == list(range(10))

    async def counted() -> bool:
        stats = await queue.stats()
        return (stats.dead_lettered, stats.ready, stats.in_flight) == (10, 0, 0)

    await eventually(counted)


async def test_several_queues_may_share_a_dead_letter_queue(harness: Harness) -> None:
    letters = harness.name("dead")
    queues = [await harness.queue(at_once("dead-letter", letters=letters)) for _ in range(3)]
    for queue in queues:
        await queue.enqueue(queue.name)
        await queue.nack(await claim_one(queue))
    dead: list[Message] = await drain(await (await harness.hub()).queue(letters), 3)
    assert {message.data for message in dead} == {queue.name for queue in queues}
    assert all(message.failure and message.failure.queue == message.data for message in dead)


async def test_a_dead_letter_keeps_its_group(harness: Harness) -> None:
    letters = harness.name("dead")
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    await queue.enqueue("x", group="g")
    await queue.nack(await claim_one(queue))
    dead = await claim_one(await (await harness.hub()).queue(letters))
    assert dead.group == "g"


async def test_a_dead_letter_tells_the_id_that_its_user_gave(harness: Harness) -> None:
    letters = harness.name("dead")
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    await queue.enqueue("x", id="mine")
    await queue.nack(await claim_one(queue))
    dead = await claim_one(await (await harness.hub()).queue(letters))
    assert dead.failure is not None
    assert (dead.failure.id, dead.failure.own_id) == ("mine", "mine")
    assert dead.correlation_id == "mine"
