"""Expiry: a worker that dies loses its messages to others, and its attempts count."""

from __future__ import annotations

import asyncio

from brigade import State
from brigade.testing.conformance.harness import (
    SHORT,
    Harness,
    at_once,
    claim_all,
    claim_one,
    drain,
    eventually,
    passed,
    values,
)


async def test_an_unacknowledged_message_becomes_available_again(harness: Harness) -> None:
    """[seed 000: Lock visibility timeout] [seed 002: Leased jobs become reclaimable after lease expiry]"""
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    lost = await claim_one(queue, visibility=0.3)
    other = await harness.elsewhere(queue)
    again = await claim_one(other)
    assert again.id == receipt.id
    assert again.lease.token != lost.lease.token
    assert again.lease.version > lost.lease.version


async def test_a_message_is_not_handed_out_before_its_lease_runs_out(harness: Harness) -> None:
    """[G2] At most one unexpired lease on a message at any time."""
    queue = await harness.queue()
    await queue.enqueue("x")
    first = await claim_one(queue, visibility=0.3)
    other = await harness.elsewhere(queue)
    second = await claim_one(other, visibility=0.3)
    third = await claim_one(queue, visibility=60)
    assert second.lease.expires_at_ms - 300 >= first.lease.expires_at_ms
    assert third.lease.expires_at_ms - 60_000 >= second.lease.expires_at_ms


async def test_a_worker_that_dies_counts_as_an_attempt(harness: Harness) -> None:
    """[G4] Attempts are counted when a message is claimed."""
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    for attempt in (1, 2, 3):
        message = await claim_one(queue, visibility=SHORT)
        assert message.attempt == attempt
        assert (await queue.get(receipt.id)).attempts == attempt


async def test_a_message_that_kills_its_workers_is_dead_lettered(harness: Harness) -> None:
    """[G4] [seed 002: Jobs are retried at most MaxRetries times before being permanently failed]"""
    letters = harness.name("dead")
    queue = await harness.queue(at_once("hybrid", 2, letters))
    receipt = await queue.enqueue("poison")
    for _ in range(3):
        await claim_one(queue, visibility=SHORT)

    async def given_up() -> bool:
        assert await queue.claim() == []
        return (await queue.get(receipt.id)).state is State.FAILED

    await eventually(given_up)
    dead = await claim_one(await (await harness.hub()).queue(letters))
    assert dead.data == "poison"
    assert dead.failure is not None
    assert (dead.failure.reason, dead.failure.attempts) == ("lease expired", 3)


async def test_a_message_that_kills_its_workers_fails_where_there_is_no_dead_letter_queue(
    harness: Harness,
) -> None:
    """[G4] With mode `retry` it is parked as failed."""
    queue = await harness.queue(at_once("retry", 1))
    await queue.enqueue("poison")
    for _ in range(2):
        await claim_one(queue, visibility=SHORT)

    async def parked() -> bool:
        assert await queue.claim() == []
        return len(await queue.failed()) == 1

    await eventually(parked)
    (failed,) = await queue.failed()
    assert (failed.reason, failed.attempts) == ("lease expired", 2)


async def test_no_work_is_lost_when_a_worker_dies_with_a_batch(harness: Harness) -> None:
    """[G1] [seed 002: No in-flight work is lost]"""
    queue = await harness.queue()
    await queue.enqueue_many(range(20))
    dying = await harness.elsewhere(queue)
    taken = await claim_all(dying, 15, visibility=SHORT)
    await dying.ack_many(taken[:5])
    rest = await drain(queue, 15)
    assert sorted(values(rest)) == list(range(5, 20))


async def test_a_waiting_claim_gets_a_message_when_its_lease_runs_out(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    await claim_one(queue, visibility=0.3)
    assert values([await claim_one(await harness.elsewhere(queue))]) == ["x"]


async def test_two_workers_that_take_over_one_expired_message_have_one_winner(harness: Harness) -> None:
    """[G2] Taking over is as exclusive as claiming."""
    queue = await harness.queue()
    await queue.enqueue("x")
    lost = await claim_one(queue, visibility=SHORT)
    workers = [await harness.elsewhere(queue) for _ in range(6)]
    await passed(lost)
    answers = await asyncio.gather(*(worker.claim(visibility=60) for worker in workers))
    assert sum(map(len, answers)) == 1


async def test_an_expired_message_stays_in_flight_until_it_is_taken(harness: Harness) -> None:
    """[seed 002: Job remains in `InFlight` state in store]"""
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    await passed(await claim_one(queue, visibility=SHORT))
    assert (await queue.get(receipt.id)).state is State.IN_FLIGHT
    assert (await queue.stats()).in_flight == 1
