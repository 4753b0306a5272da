"""Nack: a failed attempt, retried after the backoff until the attempts are spent."""

from __future__ import annotations

import pytest

from brigade import Backoff, Nack, QueuePolicy, StaleLease, State
from brigade.testing.conformance.harness import Harness, at_once, claim_all, claim_one, now_ms, values


async def test_a_reported_failure_clears_the_lease(harness: Harness) -> None:
    """[seed 000: Release lock on failure] The message is ready again, without an owner; the old token is stale."""
    queue = await harness.queue(at_once())
    receipt = await queue.enqueue("x")
    message = await claim_one(queue)
    assert await queue.nack(message, error="boom") is State.READY
    info = await queue.get(receipt.id)
    assert (info.state, info.owner, info.lease_expires_at_ms) == (State.READY, None, None)
    with pytest.raises(StaleLease):
        await queue.ack(message)


async def test_a_failure_with_retries_left_goes_back_to_its_queue(harness: Harness) -> None:
    """[seed 000: Retry to original queue] The retry counter grows, and the next claim has a new lease."""
    queue = await harness.queue(at_once("retry", 5))
    receipt = await queue.enqueue("x")
    first = await claim_one(queue, visibility=60)
    assert await queue.nack(first) is State.READY
    assert (await queue.get(receipt.id)).attempts == 1
    second = await claim_one(queue, visibility=60)
    assert (second.id, first.attempt, second.attempt) == (receipt.id, 1, 2)
    assert second.lease.token != first.lease.token
    assert second.lease.version > first.lease.version
    assert (await queue.get(receipt.id)).lease_expires_at_ms == second.lease.expires_at_ms


async def test_a_retried_message_waits_for_its_delay(harness: Harness) -> None:
    """[seed 002: Failed jobs become visible again after retry_at time] Ready, but not claimable until then."""
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    before = now_ms()
    await queue.nack(await claim_one(queue), delay=0.4)
    info = await queue.get(receipt.id)
    assert info.state is State.READY
    assert info.due_at_ms >= before + 398
    again = await claim_one(queue)
    assert again.id == receipt.id
    assert now_ms() >= info.due_at_ms


async def test_a_long_delay_keeps_a_retry_away_from_everybody(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    await queue.nack(await claim_one(queue), delay=3600)
    assert await queue.claim() == []
    assert await (await harness.elsewhere(queue)).claim() == []
    assert (await queue.stats()).delayed == 1


@pytest.mark.parametrize("retry,expected", [(0, 100), (1, 200), (2, 350)])
async def test_without_a_delay_the_backoff_of_the_policy_applies(harness: Harness, retry: int, expected: int) -> None:
    """[seed 002: Exponential backoff] Without jitter it is base * 2**retry, at most the maximum."""
    queue = await harness.queue(QueuePolicy(backoff=Backoff(base=100, maximum=350, jitter=None)))
    receipt = await queue.enqueue("x")
    for _ in range(retry):
        await queue.nack(await claim_one(queue), delay=0)
    before = now_ms()
    await queue.nack(await claim_one(queue))
    waits = (await queue.get(receipt.id)).due_at_ms - before
    assert expected * 1000 - 500 <= waits <= expected * 1000 + 10_000


async def test_full_jitter_spreads_retries_between_nothing_and_the_ceiling(harness: Harness) -> None:
    """[seed 002: delay = random(0, min(base * 2^attempt, max))] Draws are spread and never out of range."""
    queue = await harness.queue(QueuePolicy(backoff=Backoff(base=1000, maximum=1000)))
    await queue.enqueue_many(range(200))
    messages = await claim_all(queue, 200)
    before = now_ms()
    await queue.settle([Nack(message) for message in messages])
    after = now_ms()
    waits = [(await queue.get(message.id)).due_at_ms for message in messages]
    assert min(waits) >= before
    assert max(waits) <= after + 1_000_000
    assert max(waits) - min(waits) > 400_000


async def test_the_error_is_kept(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue("x")
    assert await queue.nack(await claim_one(queue), error=ValueError("no such user")) is State.FAILED
    (failed,) = await queue.failed()
    assert failed.error == "ValueError: no such user"


async def test_a_huge_error_is_cut(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue("x")
    await queue.nack(await claim_one(queue), error="é" * 100_000)
    (failed,) = await queue.failed()
    assert failed.error is not None
    assert failed.error.startswith("ééé")
    assert len(failed.error) <= 4096


async def test_a_nack_without_penalty_gives_the_attempt_back(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 1))
    await queue.enqueue("x")
    for _ in range(5):
        message = await claim_one(queue)
        assert message.attempt == 1
        assert await queue.nack(message, penalize=False) is State.READY
    assert (await claim_one(queue)).attempt == 1


async def test_a_nack_without_penalty_can_be_delayed(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    await queue.nack(await claim_one(queue), penalize=False, delay=3600)
    assert await queue.claim() == []


async def test_a_rejected_message_fails_at_once(harness: Harness) -> None:
    """Nack(reject=True) says that no retry can help."""
    queue = await harness.queue(at_once("retry", 5))
    await queue.enqueue("x")
    assert await queue.settle([Nack(await claim_one(queue), "bad format", reject=True)]) == [State.FAILED]
    (failed,) = await queue.failed()
    assert (failed.reason, failed.error, failed.attempts) == ("rejected", "bad format", 1)


async def test_a_message_that_is_retried_does_not_hold_up_the_others(harness: Harness) -> None:
    """[seed 002: Strict FIFO is not maintained across retries]"""
    queue = await harness.queue()
    await queue.enqueue_many(["bad", "good"])
    bad = await claim_one(queue)
    await queue.nack(bad, delay=3600)
    assert values(await queue.claim(2)) == ["good"]
