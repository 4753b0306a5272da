"""TTL: messages that nobody claimed in time go the way of failures."""

from __future__ import annotations

from brigade import Failure, NewMessage, QueuePolicy, State
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


async def test_an_unclaimed_message_expires_by_the_policy(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(ttl=SHORT))
    receipt = await queue.enqueue("old")
    await passed(now_ms() + 100)
    assert await queue.claim() == []

    async def parked() -> bool:
        return len(await queue.failed()) == 1

    await eventually(parked)
    (failed,) = await queue.failed()
    assert (failed.reason, failed.attempts, failed.data) == ("expired", 0, "old")
    assert (await queue.get(receipt.id)).state is State.FAILED


async def test_a_message_may_have_a_ttl_of_its_own(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many([NewMessage(payload="short", ttl=SHORT), NewMessage(payload="long", ttl=600), "ever"])
    await passed(now_ms() + 100)
    assert sorted(values(await claim_all(queue, 2))) == ["ever", "long"]
    assert await queue.claim() == []


async def test_a_ttl_of_its_own_goes_before_the_policy(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(ttl=SHORT))
    await queue.enqueue("kept", ttl=600)
    await passed(now_ms() + 100)
    assert values(await drain(queue, 1)) == ["kept"]


async def test_an_expired_message_is_dead_lettered_where_failures_are(harness: Harness) -> None:
    letters = harness.name("dead")
    queue = await harness.queue(QueuePolicy(failure=Failure("hybrid", 3, letters)))
    await queue.enqueue("old", ttl=SHORT)
    await passed(now_ms() + 100)
    assert await queue.claim() == []
    dead = await claim_one(await (await harness.hub()).queue(letters))
    assert dead.failure is not None
    assert (dead.data, dead.failure.reason) == ("old", "expired")


async def test_a_message_that_was_claimed_does_not_expire(harness: Harness) -> None:
    """The ttl is for messages that nobody wanted: one that is being retried is kept."""
    queue = await harness.queue(at_once())
    await queue.enqueue("x", ttl=0.3)
    message = await claim_one(queue)
    await passed(message.enqueued_at_ms + 400)
    await queue.nack(message)
    assert (await claim_one(queue)).attempt == 2


async def test_a_sweep_expires_messages_that_nobody_claims(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("old", ttl=SHORT)
    await passed(now_ms() + 100)
    await queue.sweep()

    async def parked() -> bool:
        return values(await queue.failed()) == ["old"]

    await eventually(parked)


async def test_a_sweep_expires_messages_of_strict_queues_and_groups(harness: Harness) -> None:
    """Lanes that nobody claims from are decided, too."""
    for policy, group in ((QueuePolicy(ordering_guarantee=True), None), (None, "g")):
        queue = await harness.queue(policy)
        await queue.enqueue("old", ttl=SHORT, group=group)
        await passed(now_ms() + 100)
        await queue.sweep()
        assert values(await queue.failed()) == ["old"]


async def test_a_sweep_fails_messages_that_killed_their_last_worker(harness: Harness) -> None:
    """[G4] Even where nobody claims any more."""
    for policy in (at_once("retry", 0), QueuePolicy(ordering_guarantee=True, failure=Failure("retry", 0))):
        queue = await harness.queue(policy)
        await queue.enqueue("poison")
        await passed(await claim_one(queue, visibility=SHORT))
        await queue.sweep()
        assert values(await queue.failed()) == ["poison"]


async def test_a_ttl_counts_from_when_a_message_is_due(harness: Harness) -> None:
    """A delayed message has its whole ttl after its delay."""
    queue = await harness.queue()
    await queue.enqueue("x", delay=0.3, ttl=5)
    assert values([await claim_one(queue)]) == ["x"]


async def test_a_delayed_message_of_a_batch_has_its_whole_ttl(harness: Harness) -> None:
    """Whatever it was enqueued together with, and whoever set the ttl."""
    queue = await harness.queue(QueuePolicy(ttl=2))
    await queue.enqueue_many([NewMessage(payload="now", max_attempts=2), NewMessage(payload="later", delay=2.2)])
    assert values(await drain(queue, 2)) == ["now", "later"]
    assert await queue.failed() == []


async def test_a_strict_queue_skips_an_expired_head(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(ordering_guarantee=True))
    await queue.enqueue("old", ttl=SHORT)
    await queue.enqueue("new")
    await passed(now_ms() + 100)
    assert values(await drain(queue, 1)) == ["new"]
    assert values(await queue.failed()) == ["old"]
