"""Stats: how many messages are where."""

from __future__ import annotations

from brigade import Nack, QueuePolicy, Stats
from brigade.testing.conformance.harness import (
    Harness,
    at_once,
    claim_all,
    claim_one,
    drain,
    eventually,
    now_ms,
    passed,
)


async def test_an_empty_queue_counts_nothing(harness: Harness) -> None:
    assert await (await harness.queue()).stats() == Stats()


async def test_stats_count_every_state(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue_many(range(10))
    await queue.enqueue_many(range(2), delay=3600)
    messages = await claim_all(queue, 6)
    await queue.ack_many(messages[:3])
    await queue.nack(messages[3])

    async def counted(seen: Stats) -> bool:
        assert (seen.ready, seen.delayed, seen.in_flight) == (4, 2, 2)
        assert (seen.succeeded, seen.failed, seen.dead_lettered) == (3, 1, 0)
        return True

    assert await counted(await queue.stats())
    assert await counted(await (await harness.elsewhere(queue)).stats())


async def test_total_is_the_sum_of_all_counts(harness: Harness) -> None:
    """[seed 001: stats] `total` is everything that is known, finished or not."""
    letters = harness.name("dead")
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    await queue.enqueue_many(range(6))
    messages = await claim_all(queue, 4)
    await queue.ack(messages[0])
    await queue.nack(messages[1])
    stats = await queue.stats()
    assert (stats.ready, stats.in_flight, stats.succeeded, stats.dead_lettered) == (2, 2, 1, 1)
    parts = (stats.ready, stats.delayed, stats.in_flight, stats.succeeded, stats.failed, stats.dead_lettered)
    assert stats.total == sum(parts)


async def test_counts_are_the_same_before_and_after_history_is_written(harness: Harness) -> None:
    letters = harness.name("dead")
    hub = await harness.hub()
    queue = await hub.queue(harness.name(), at_once("dead-letter", letters=letters))
    await queue.enqueue_many(range(8))
    messages = await claim_all(queue, 8)
    await queue.ack_many(messages[:5])
    await queue.settle([Nack(message) for message in messages[5:]])
    before = await queue.stats()
    await hub.close()
    after = await (await (await harness.hub()).queue(queue.name)).stats()
    for stats in (before, after):
        assert (stats.succeeded, stats.dead_lettered, stats.ready, stats.in_flight) == (5, 3, 0, 0)


async def test_retries_that_wait_count_as_delayed(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(3))
    await queue.nack(await claim_one(queue), delay=3600)
    stats = await queue.stats()
    assert (stats.ready, stats.delayed, stats.in_flight) == (2, 1, 0)


async def test_oldest_age_is_that_of_the_oldest_waiting_message(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    start = now_ms()
    await passed(start + 200)
    age = (await queue.stats()).oldest_age
    assert 0.15 <= age <= (now_ms() - start) / 1000 + 2
    await drain(queue, 1)
    assert (await queue.stats()).oldest_age == 0


async def test_strict_queues_and_groups_are_counted(harness: Harness) -> None:
    for policy, group in ((QueuePolicy(ordering_guarantee=True), None), (None, "g")):
        queue = await harness.queue(policy)
        await queue.enqueue_many(range(4), group=group)
        head = await claim_one(queue)
        stats = await queue.stats()
        assert (stats.ready, stats.in_flight) == (3, 1)
        await queue.ack(head)
        await drain(queue, 3)

        async def ended() -> bool:
            stats = await queue.stats()  # noqa: B023
            return (stats.ready, stats.in_flight, stats.succeeded) == (0, 0, 4)

        await eventually(ended)


async def test_a_redriven_message_no_longer_counts_as_failed(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue("x")
    await queue.nack(await claim_one(queue))
    assert (await queue.stats()).failed == 1
    await queue.redrive()
    stats = await queue.stats()
    assert (stats.failed, stats.ready) == (0, 1)


async def test_requests_are_counted_by_kind(harness: Harness) -> None:
    harness.needs("requests")
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    before = hub.requests()
    await queue.enqueue("x")
    after = hub.requests()
    assert sum(after.values()) > sum(before.values())
    assert all(isinstance(count, int) and count > 0 for count in after.values())
