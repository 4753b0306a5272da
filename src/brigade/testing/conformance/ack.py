"""Ack: the end of a message that was worked off."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from brigade import Failure, QueuePolicy, StaleLease, State
from brigade.testing.conformance.harness import SHORT, Harness, claim_all, claim_one, eventually, passed


async def test_an_acked_message_is_never_delivered_again(harness: Harness) -> None:
    """[G3] [seed 002: Successful jobs are never re-processed] Not after its lease would have run out, not elsewhere."""
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue, visibility=SHORT)
    await queue.ack(message)
    await passed(message)
    assert await queue.claim() == []
    assert await (await harness.elsewhere(queue)).claim(wait=0.05) == []


async def test_ack_removes_the_lease_and_ends_the_message_as_processed(harness: Harness) -> None:
    """[seed 000: Release lock on success] No owner, no expiry, outcome `processed`."""
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    await queue.ack(await claim_one(queue))
    info = await queue.get(receipt.id)
    assert (info.state, info.outcome) == (State.SUCCEEDED, "processed")
    assert (info.owner, info.lease_expires_at_ms) == (None, None)


async def test_history_tells_how_an_acked_message_ended(harness: Harness) -> None:
    """After its data is cleaned up a message can still be looked up, with its result."""
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    receipt = await queue.enqueue("x", attributes={"a": 1}, correlation_id="c")
    await queue.ack(await claim_one(queue), result={"rows": 3})
    await hub.close()
    info = await (await (await harness.hub()).queue(queue.name)).get(receipt.id)
    assert (info.state, info.outcome, info.result) == (State.SUCCEEDED, "processed", {"rows": 3})
    assert (info.attempts, info.correlation_id, dict(info.attributes)) == (1, "c", {"a": 1})
    assert info.finished_at is not None
    assert info.finished_at >= info.enqueued_at


async def test_a_large_result_does_not_stop_the_queue(harness: Harness) -> None:
    queue = await harness.queue()
    receipts = await queue.enqueue_many(range(3))
    for message in await claim_all(queue, 3):
        await queue.ack(message, result="r" * 50_000)
    for receipt in receipts:
        assert (await queue.get(receipt.id)).state is State.SUCCEEDED


async def test_a_second_ack_is_stale(harness: Harness) -> None:
    """[G2] The token ends with the lease."""
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue)
    await queue.ack(message)
    with pytest.raises(StaleLease, match="drop"):
        await queue.ack(message)
    with pytest.raises(StaleLease):
        await (await harness.elsewhere(queue)).ack(message)


async def test_a_made_up_token_is_stale_and_changes_nothing(harness: Harness) -> None:
    """[G2] [seed 002: Stale lease tokens are rejected] Anything but the current token gets StaleLease."""
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    message = await claim_one(queue)
    before = await queue.get(receipt.id)
    for token in ("", "0" * 32, message.lease.token + "0", message.lease.token[::-1], "ü.0"):
        forged = replace(message, lease=replace(message.lease, token=token))
        with pytest.raises(StaleLease):
            await queue.ack(forged)
        with pytest.raises(StaleLease):
            await queue.nack(forged)
        with pytest.raises(StaleLease):
            await queue.extend(forged)
        with pytest.raises(StaleLease):
            await queue.release(forged)
    assert await queue.get(receipt.id) == before
    await queue.ack(message)


async def test_a_token_of_another_message_is_stale(harness: Harness) -> None:
    """[G2] A token is bound to its message, even inside one claim."""
    queue = await harness.queue()
    await queue.enqueue_many(["a", "b"])
    first, second = await claim_all(queue, 2)
    with pytest.raises(StaleLease):
        await queue.ack(replace(first, lease=second.lease))
    assert (await queue.get(first.id)).state is State.IN_FLIGHT
    assert await queue.ack_many([first, second]) == [State.SUCCEEDED] * 2


async def test_an_expired_lease_that_nobody_took_over_may_be_acked(harness: Harness) -> None:
    """[G5] The token is the fence, not the clock."""
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    message = await claim_one(queue, visibility=SHORT)
    await passed(message)
    await queue.ack(message)
    assert (await queue.get(receipt.id)).state is State.SUCCEEDED
    assert await (await harness.elsewhere(queue)).claim() == []


async def test_an_expired_lease_that_somebody_took_over_is_stale(harness: Harness) -> None:
    """[G5] [seed 002: Old worker's commits are rejected (stale token)] The new holder is not disturbed."""
    queue = await harness.queue()
    other = await harness.elsewhere(queue)
    await queue.enqueue("x")
    old = await claim_one(queue, visibility=SHORT)
    new = await claim_one(other, visibility=60)
    assert new.id == old.id
    with pytest.raises(StaleLease):
        await queue.ack(old)
    with pytest.raises(StaleLease):
        await queue.nack(old)
    with pytest.raises(StaleLease):
        await queue.extend(old)
    with pytest.raises(StaleLease):
        await queue.release(old)
    assert (await other.get(new.id)).state is State.IN_FLIGHT
    await other.ack(new)


async def test_the_last_attempt_may_be_acked_after_expiry_too(harness: Harness) -> None:
    """[G5] Until somebody decides otherwise, the holder of a spent message may still finish it."""
    queue = await harness.queue(QueuePolicy(failure=Failure("retry", max_retries=0)))
    receipt = await queue.enqueue("x")
    message = await claim_one(queue, visibility=SHORT)
    await passed(message)
    await queue.ack(message)
    assert (await queue.get(receipt.id)).outcome == "processed"


async def test_any_process_with_the_message_may_ack_it(harness: Harness) -> None:
    """The token is the right to settle, wherever it is used."""
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    message = await claim_one(queue)
    await (await harness.elsewhere(queue)).ack(message)
    assert (await queue.get(receipt.id)).state is State.SUCCEEDED


async def test_ack_many_gives_one_result_each(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(4))
    messages = await claim_all(queue, 4)
    await queue.ack(messages[2])
    answers = await queue.ack_many(messages)
    assert [isinstance(answer, StaleLease) for answer in answers] == [False, False, True, False]
    assert [answer for answer in answers if not isinstance(answer, StaleLease)] == [State.SUCCEEDED] * 3
    assert await queue.ack_many([]) == []


async def test_acked_messages_are_counted_as_succeeded(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(7))
    await queue.ack_many(await claim_all(queue, 7))

    async def counted() -> bool:
        stats = await (await harness.elsewhere(queue)).stats()
        return (stats.succeeded, stats.ready, stats.in_flight) == (7, 0, 0)

    await eventually(counted)
