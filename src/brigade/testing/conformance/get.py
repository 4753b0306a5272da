"""Get: any message by its id, in whatever state."""

from __future__ import annotations

import pytest

from brigade import MessageNotFound, QueuePolicy, State
from brigade.testing.conformance.harness import Harness, at_once, claim_one, drain, eventually


async def test_get_follows_a_message_through_its_life(harness: Harness) -> None:
    """[seed 002: A job is always in exactly one state] ready, in flight, ready again, in flight, succeeded."""
    queue = await harness.queue(at_once())
    other = await harness.elsewhere(queue)
    receipt = await queue.enqueue("x", attributes={"k": 1})
    seen = [await other.get(receipt.id)]
    message = await claim_one(queue, owner="w")
    seen.append(await other.get(receipt.id))
    await queue.nack(message, error="no")
    seen.append(await other.get(receipt.id))
    message = await claim_one(queue)
    seen.append(await other.get(receipt.id))
    await queue.ack(message, result=[1, 2])
    seen.append(await other.get(receipt.id))
    assert [info.state for info in seen] == [
        State.READY,
        State.IN_FLIGHT,
        State.READY,
        State.IN_FLIGHT,
        State.SUCCEEDED,
    ]
    assert [info.attempts for info in seen] == [0, 1, 1, 2, 2]
    assert [info.outcome for info in seen] == [None] * 4 + ["processed"]
    assert seen[1].owner == "w"
    assert seen[4].result == [1, 2]
    assert all(info.id == receipt.id and info.queue == queue.name for info in seen)
    assert all(dict(info.attributes) == {"k": 1} for info in seen)


async def test_get_finds_a_failed_message(harness: Harness) -> None:
    hub = await harness.hub()
    queue = await hub.queue(harness.name(), at_once("retry", 0))
    receipt = await queue.enqueue("x")
    await queue.nack(await claim_one(queue), error="boom")
    info = await queue.get(receipt.id)
    assert (info.state, info.outcome, info.error) == (State.FAILED, "failed", "boom")
    await hub.close()
    info = await (await (await harness.hub()).queue(queue.name)).get(receipt.id)
    assert (info.state, info.outcome, info.error) == (State.FAILED, "failed", "boom")


async def test_get_finds_a_message_after_it_was_cleaned_up(harness: Harness) -> None:
    """History is the durable record of finished messages."""
    queue = await harness.queue()
    receipts = await queue.enqueue_many(range(5))
    await drain(queue, 5)
    for receipt in receipts:
        assert (await queue.get(receipt.id)).state is State.SUCCEEDED

    async def in_history() -> bool:
        infos = [await queue.get(receipt.id) for receipt in receipts]
        return all(info.state is State.SUCCEEDED and info.finished_at is not None for info in infos)

    await eventually(in_history)


async def test_get_finds_messages_of_strict_queues_and_groups(harness: Harness) -> None:
    for policy, group in ((QueuePolicy(ordering_guarantee=True), None), (None, "g")):
        queue = await harness.queue(policy)
        receipts = await queue.enqueue_many(range(2), group=group)
        assert [(await queue.get(receipt.id)).state for receipt in receipts] == [State.READY] * 2
        message = await claim_one(queue)
        assert (await queue.get(receipts[0].id)).state is State.IN_FLIGHT
        await queue.ack(message)
        assert (await queue.get(receipts[0].id)).state is State.SUCCEEDED
        assert (await queue.get(receipts[1].id)).group == group


@pytest.mark.parametrize(
    "id", ["nobody", "", "5-00000000000000-0000000000000000fp-1-0", "a/b", "..", "-", "5-1-1-1-1", "\x00"]
)
async def test_an_id_that_nobody_has_is_not_found(harness: Harness, id: str) -> None:
    queue = await harness.queue()
    with pytest.raises(MessageNotFound):
        await queue.get(id)


async def test_an_id_of_another_queue_is_not_found(harness: Harness) -> None:
    hub = await harness.hub()
    queue, other = await harness.queue(hub=hub), await harness.queue(hub=hub)
    receipt = await queue.enqueue("x")
    with pytest.raises(MessageNotFound):
        await other.get(receipt.id)


async def test_the_error_of_one_message_is_not_told_of_another(harness: Harness) -> None:
    queue = await harness.queue(at_once())
    first, second = await queue.enqueue_many(["bad", "good"])
    await queue.nack(await claim_one(queue), error="boom")
    assert (await queue.get(second.id)).error is None
    assert (await queue.get(first.id)).attempts == 1
