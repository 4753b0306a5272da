"""Release: give a message back as if it had not been claimed."""

from __future__ import annotations

import pytest

from brigade import StaleLease, State
from brigade.testing.conformance.harness import SHORT, Harness, at_once, claim_all, claim_one, now_ms


async def test_a_released_message_is_claimable_at_once(harness: Harness) -> None:
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    await queue.release(await claim_one(queue))
    assert (await queue.get(receipt.id)).state is State.READY
    assert (await claim_one(await harness.elsewhere(queue))).id == receipt.id


async def test_a_release_does_not_count_the_attempt(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue("x")
    for _ in range(4):
        message = await claim_one(queue)
        assert message.attempt == 1
        await queue.release(message)


async def test_versions_grow_even_over_releases(harness: Harness) -> None:
    """[G2] A version that only grows: the attempt is given back, the version is not."""
    queue = await harness.queue()
    await queue.enqueue("x")
    versions: list[int] = []
    for _ in range(4):
        message = await claim_one(queue)
        versions.append(message.lease.version)
        await queue.release(message)
    assert versions == sorted(set(versions))


async def test_a_release_can_be_delayed(harness: Harness) -> None:
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    before = now_ms()
    await queue.release(await claim_one(queue), delay=3600)
    assert await queue.claim() == []
    assert (await queue.get(receipt.id)).due_at_ms >= before + 3_599_000


async def test_a_released_message_cannot_be_settled_by_its_old_token(harness: Harness) -> None:
    """[G2] The old token is stale, before and after somebody else claims the message."""
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue)
    await queue.release(message)
    with pytest.raises(StaleLease):
        await queue.ack(message)
    await claim_one(queue)
    with pytest.raises(StaleLease):
        await queue.release(message)


async def test_a_lease_that_was_taken_over_cannot_be_released(harness: Harness) -> None:
    """[G5] The new holder keeps the message."""
    queue = await harness.queue()
    await queue.enqueue("x")
    old = await claim_one(queue, visibility=SHORT)
    other = await harness.elsewhere(queue)
    new = await claim_one(other, visibility=60)
    with pytest.raises(StaleLease):
        await queue.release(old)
    assert await queue.claim() == []
    await other.ack(new)


async def test_releasing_one_message_of_a_claim_leaves_the_others(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(3))
    first, second, third = await claim_all(queue, 3)
    await queue.release(second)
    again = await claim_one(await harness.elsewhere(queue))
    assert again.id == second.id
    assert await queue.ack_many([first, third]) == [State.SUCCEEDED] * 2
