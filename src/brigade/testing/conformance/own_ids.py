"""Ids of the user's own: a message is enqueued once under each."""

from __future__ import annotations

import asyncio

import pytest

from brigade import MessageNotFound, NewMessage, QueuePolicy, Receipt, State
from brigade.testing.conformance.harness import (
    Harness,
    at_once,
    claim_all,
    claim_one,
    drain,
    eventually,
    values,
)


async def test_an_id_is_enqueued_once(harness: Harness) -> None:
    """[seed 002: Job with unique ID does not exist] The second receipt is the first one's, marked as a duplicate."""
    queue = await harness.queue()
    first = await queue.enqueue("first", id="order-1", correlation_id="c1")
    second = await (await harness.elsewhere(queue)).enqueue("second", id="order-1", correlation_id="c2")
    assert (first.id, first.duplicate) == ("order-1", False)
    assert (second.id, second.duplicate, second.correlation_id) == ("order-1", True, "c1")
    assert values(await drain(queue, 1)) == ["first"]
    assert await queue.claim() == []


async def test_a_message_is_known_by_its_own_id_all_its_life(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x", id="mine")
    assert (await queue.get("mine")).state is State.READY
    message = await claim_one(queue)
    assert message.id == message.correlation_id == "mine"
    assert (await queue.get("mine")).state is State.IN_FLIGHT
    await queue.ack(message)
    assert (await queue.get("mine")).state is State.SUCCEEDED


async def test_an_id_stays_taken_while_and_after_its_message_is_worked_on(harness: Harness) -> None:
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    await queue.enqueue("x", id="mine")
    message = await claim_one(queue)
    assert (await queue.enqueue("y", id="mine")).duplicate
    await queue.ack(message)
    assert (await queue.enqueue("y", id="mine")).duplicate
    await hub.close()
    later = await (await harness.hub()).queue(queue.name)
    assert (await later.enqueue("y", id="mine")).duplicate
    assert await later.claim() == []
    assert (await later.get("mine")).outcome == "processed"


async def test_of_many_that_enqueue_one_id_one_succeeds(harness: Harness) -> None:
    queue = await harness.queue()
    hubs = [await harness.elsewhere(queue) for _ in range(4)]
    receipts: list[Receipt] = await asyncio.gather(*(hubs[n % 4].enqueue(n, id="mine") for n in range(24)))
    assert [receipt.duplicate for receipt in receipts].count(False) == 1
    (message,) = await drain(queue, 1)
    winner: int = message.data
    assert receipts[winner].duplicate is False
    assert await queue.claim() == []


async def test_a_batch_may_repeat_an_id(harness: Harness) -> None:
    queue = await harness.queue()
    receipts = await queue.enqueue_many([NewMessage(payload=n, id=f"id-{n % 3}") for n in range(6)])
    assert [receipt.duplicate for receipt in receipts] == [False] * 3 + [True] * 3
    assert sorted(values(await drain(queue, 3))) == [0, 1, 2]
    assert await queue.claim() == []


async def test_a_batch_may_mix_new_and_known_ids(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("old", id="b")
    receipts = await queue.enqueue_many([NewMessage(payload=key, id=key) for key in "abc"])
    assert [receipt.duplicate for receipt in receipts] == [False, True, False]
    assert sorted(values(await drain(queue, 3))) == ["a", "c", "old"]
    assert await queue.claim() == []


async def test_ids_belong_to_their_queue(harness: Harness) -> None:
    hub = await harness.hub()
    first, second = await harness.queue(hub=hub), await harness.queue(hub=hub)
    await first.enqueue("x", id="mine")
    assert not (await second.enqueue("y", id="mine")).duplicate


@pytest.mark.parametrize("id", ["a/b", "../up", "ünï 🪣", "x" * 512, "5-1", " ", "a\nb"])
async def test_an_id_is_any_text(harness: Harness, id: str) -> None:
    queue = await harness.queue()
    assert (await queue.enqueue("x", id=id)).id == id
    assert (await queue.enqueue("y", id=id)).duplicate
    message = await claim_one(queue)
    assert message.id == id
    await queue.ack(message)
    assert (await queue.get(id)).state is State.SUCCEEDED


async def test_an_id_that_looks_like_a_generated_one_is_kept_apart(harness: Harness) -> None:
    queue = await harness.queue()
    generated = await queue.enqueue("generated")
    own = await queue.enqueue("own", id=generated.id)
    assert not own.duplicate
    assert sorted(values(await claim_all(queue, 2))) == ["generated", "own"]


async def test_an_unknown_id_is_not_found(harness: Harness) -> None:
    queue = await harness.queue()
    with pytest.raises(MessageNotFound, match="nobody"):
        await queue.get("nobody")


async def test_own_ids_work_in_strict_queues_and_groups(harness: Harness) -> None:
    strict = await harness.queue(QueuePolicy(ordering_guarantee=True))
    for key in ("a", "b", "a", "c", "b"):
        await strict.enqueue(key, id=key)
    assert values(await drain(strict, 3)) == ["a", "b", "c"]
    grouped = await harness.queue()
    for key in ("a", "b", "a"):
        await grouped.enqueue(key, id=key, group="g")
    assert values(await drain(grouped, 2)) == ["a", "b"]
    assert await grouped.claim() == []


async def test_a_purged_id_is_free_again(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("first", id="mine")
    assert await queue.purge() == 1

    async def accepted() -> bool:
        return not (await queue.enqueue("second", id="mine")).duplicate

    await eventually(accepted)
    assert values(await drain(queue, 1)) == ["second"]


async def test_a_failed_id_is_still_taken_and_can_be_redriven(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue("x", id="mine")
    await queue.nack(await claim_one(queue))
    assert (await queue.enqueue("y", id="mine")).duplicate
    assert await queue.redrive(["mine"]) == 1
    message = await claim_one(queue)
    assert (message.id, message.data) == ("mine", "x")
    assert (await queue.get("mine")).state is State.IN_FLIGHT
    await queue.ack(message)
    assert (await queue.get("mine")).state is State.SUCCEEDED
