"""Extend: hold a lease for longer. The token is the fence, not the clock."""

from __future__ import annotations

import pytest

from brigade import Extend, Lease, QueuePolicy, StaleLease
from brigade.testing.conformance.harness import SHORT, Harness, claim_all, claim_one, now_ms, passed, values


async def test_a_lease_renewed_before_its_timeout_keeps_the_message_hidden(harness: Harness) -> None:
    """[seed 000: Renew lock before timeout] Hidden from the others beyond the first expiry."""
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    message = await claim_one(queue, visibility=0.5)
    lease = await queue.extend(message, 60)
    assert lease.expires_at_ms > message.lease.expires_at_ms
    await passed(message)
    other = await harness.elsewhere(queue)
    assert await other.claim() == []
    assert (await other.get(receipt.id)).lease_expires_at_ms == lease.expires_at_ms
    await queue.ack(message)


async def test_an_extended_lease_is_the_same_lease(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue, owner="a")
    lease = await queue.extend(message, 90)
    assert (lease.token, lease.version, lease.owner) == (message.lease.token, message.lease.version, "a")


async def test_extend_counts_from_now(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue, visibility=1000)
    before = now_ms()
    lease = await queue.extend(message, 20)
    assert before + 19_000 <= lease.expires_at_ms <= now_ms() + 21_000


async def test_extend_without_seconds_takes_the_length_of_the_policy(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(visibility_timeout=500))
    await queue.enqueue("x")
    message = await claim_one(queue, visibility=1)
    before = now_ms()
    lease = await queue.extend(message)
    assert before + 499_000 <= lease.expires_at_ms <= now_ms() + 501_000


async def test_a_lease_cannot_be_renewed_after_ack(harness: Harness) -> None:
    """[seed 000: Prevent renewal after release] The lease no longer exists."""
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue)
    await queue.ack(message)
    with pytest.raises(StaleLease):
        await queue.extend(message, 60)


async def test_a_lease_cannot_be_renewed_after_nack_or_release(harness: Harness) -> None:
    """[G2] Whatever ended the lease ended its token."""
    queue = await harness.queue()
    await queue.enqueue_many(range(2))
    first, second = await claim_all(queue, 2)
    await queue.nack(first, delay=100)
    await queue.release(second, delay=100)
    for message in (first, second):
        with pytest.raises(StaleLease):
            await queue.extend(message)


async def test_an_expired_lease_that_nobody_took_over_may_be_extended(harness: Harness) -> None:
    """[G5] It is then hidden again."""
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue, visibility=SHORT)
    await passed(message)
    await queue.extend(message, 60)
    assert await (await harness.elsewhere(queue)).claim() == []
    await queue.ack(message)


async def test_a_lease_that_was_taken_over_cannot_be_extended(harness: Harness) -> None:
    """[G5] Once somebody else has claimed the message, the old token is stale."""
    queue = await harness.queue()
    await queue.enqueue("x")
    old = await claim_one(queue, visibility=SHORT)
    new = await claim_one(await harness.elsewhere(queue), visibility=60)
    with pytest.raises(StaleLease):
        await queue.extend(old, 600)
    assert (await queue.get(new.id)).lease_expires_at_ms == new.lease.expires_at_ms


async def test_extending_one_message_of_a_claim_leaves_the_others(harness: Harness) -> None:
    """[G2] Messages that were claimed together have leases of their own."""
    queue = await harness.queue()
    await queue.enqueue_many(["kept", "dropped"])
    kept, dropped = await claim_all(queue, 2, visibility=0.5)
    await queue.extend(kept, 60)
    await passed(dropped)
    other = await harness.elsewhere(queue)
    assert values(await other.claim(2)) == ["dropped"]
    with pytest.raises(StaleLease):
        await queue.ack(dropped)
    await queue.ack(kept)


async def test_all_messages_of_a_claim_are_extended_together(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(5))
    messages = await claim_all(queue, 5, visibility=0.5)
    answers = await queue.settle([Extend(message, 60) for message in messages])
    assert all(isinstance(answer, Lease) for answer in answers)
    await passed(messages[0])
    assert await (await harness.elsewhere(queue)).claim(5) == []


async def test_a_lease_may_be_shortened(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue, visibility=600)
    await queue.extend(message, SHORT)
    assert values([await claim_one(await harness.elsewhere(queue))]) == ["x"]
