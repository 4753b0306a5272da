"""Operators: browse, see attempts and leases, and decide over single messages without holding them."""

from __future__ import annotations

import pytest

from brigade import MessageNotFound, Nack, QueuePolicy, StaleLease
from brigade.operator import Operator
from brigade.policy import Backoff
from brigade.queue import AsyncQueue
from brigade.testing.conformance.harness import Harness, at_once, claim_all, claim_one, drain, eventually, values


async def _operated(harness: Harness, policy: QueuePolicy | None = None) -> tuple[AsyncQueue, Operator]:
    harness.needs("operator")
    queue = await harness.queue(policy)
    return queue, Operator(await harness.elsewhere(queue))


async def test_browsing_goes_through_every_message_once(harness: Harness) -> None:
    queue, operator = await _operated(harness)
    await queue.enqueue_many(range(7))
    await queue.enqueue("urgent", priority=0)
    await queue.enqueue("later", delay=3600)
    await queue.enqueue_many(["a", "b"], group="g")
    await claim_all(queue, 3)
    seen, after = list[object](), None
    while True:
        page = await operator.browse(limit=4, after=after)
        seen += [message.data for message in page.messages]
        after = page.after
        if after is None:
            break
    assert sorted(map(str, seen)) == sorted(map(str, [*range(7), "urgent", "later", "a", "b"]))


async def test_browsing_filters_by_state_text_and_attempts(harness: Harness) -> None:
    queue, operator = await _operated(harness, at_once())
    await queue.enqueue_many([{"to": "Ada"}, {"to": "Grace"}, {"to": "Alan"}])
    await queue.enqueue("later", delay=3600)
    held = await claim_one(queue, owner="ada's machine")
    await queue.nack(await claim_one(queue), error="no")
    assert values((await operator.browse(state="in_flight")).messages) == values([held])
    assert values((await operator.browse(state="delayed")).messages) == ["later"]
    assert len((await operator.browse(state="ready")).messages) == 2
    assert values((await operator.browse(text="alan")).messages) == [{"to": "Alan"}]
    assert len((await operator.browse(attempts=1)).messages) == 2
    assert (await operator.browse(older_than=3600)).messages == []


async def test_a_message_has_a_story(harness: Harness) -> None:
    queue, operator = await _operated(harness, at_once())
    receipt = await queue.enqueue("x")
    await queue.nack(await claim_one(queue, owner="first"), error="not today")
    held = await claim_one(queue, owner="second")
    story = await operator.story(receipt.id)
    assert [(one.owner, one.how, one.error) for one in story.attempts] == [
        ("first", "nacked", "not today"),
        ("second", None, None),
    ]
    assert story.attempts[1].version == held.lease.version > story.attempts[0].version
    await queue.ack(held, result={"done": 1})
    await queue.clear_queue_cache()
    ended = await operator.story(receipt.id)
    assert (ended.message.outcome, ended.message.result) == ("processed", {"done": 1})
    assert [(one.owner, one.how) for one in ended.attempts] == [("first", "nacked"), ("second", "acked")]
    with pytest.raises(MessageNotFound):
        await operator.story("nothing")


async def test_leases_say_who_holds_what(harness: Harness) -> None:
    queue, operator = await _operated(harness)
    await queue.enqueue_many(range(3))
    await queue.enqueue("lane", group="g")
    held = [*await queue.claim(2, owner="a", visibility=60), *await queue.claim(2, owner="b", visibility=60)]
    leases = await operator.leases()
    assert sorted((one.ref, one.owner) for one in leases) == sorted((one.ref, one.lease.owner) for one in held)
    assert all(one.claimed_at_ms < one.expires_at_ms and one.attempt == 1 for one in leases)


async def test_groups_say_how_many_wait_and_who_holds_the_head(harness: Harness) -> None:
    queue, operator = await _operated(harness)
    await queue.enqueue_many(range(3), group="long")
    await queue.enqueue("only", group="short")
    for message in await claim_all(queue, 2):
        if message.group == "long":
            await queue.release(message)
    groups = [(one.name, one.waiting, one.owner is not None) for one in await operator.groups()]
    assert groups == [("long", 3, False), ("short", 0, True)]


async def test_an_operator_takes_a_message_back_from_its_holder(harness: Harness) -> None:
    """[G2] The lease has ended, so the old token is stale."""
    queue, operator = await _operated(harness)
    await queue.enqueue_many(["x", "grouped"], group="g")
    await queue.enqueue("y")
    held = await claim_all(queue, 2)
    assert await operator.take_back([message.id for message in held]) == 2
    assert await operator.take_back([message.id for message in held]) == 0
    for message in held:
        with pytest.raises(StaleLease):
            await queue.ack(message)
    again = await claim_all(queue, 2)
    assert sorted(values(again)) == sorted(values(held))
    assert [message.attempt for message in again] == [1, 1]


async def test_an_operator_makes_a_retry_due(harness: Harness) -> None:
    queue, operator = await _operated(harness, QueuePolicy(backoff=Backoff(base=3600, maximum=7200, jitter=None)))
    receipt = await queue.enqueue("x")
    await queue.nack(await claim_one(queue), error="later")
    assert await queue.claim() == []
    assert await operator.retry_now([receipt.id]) == 1
    assert values(await drain(queue, 1)) == ["x"]


async def test_an_operator_discards_single_messages(harness: Harness) -> None:
    """[G1] What is in flight stays, and so does everything that was not named."""
    queue, operator = await _operated(harness)
    receipts = await queue.enqueue_many(range(4))
    held = await claim_one(queue)
    own = await queue.enqueue("own", id="mine")
    lane = await queue.enqueue_many(["first", "second"], group="g")
    ids = [receipts[1].id, own.id, lane[0].id, held.id, "unknown"]
    assert await operator.discard(ids) == 3
    await queue.ack(held)
    left = ["second", *(one for one in range(4) if one not in (held.data, 1))]
    assert sorted(map(str, values(await drain(queue, 3)))) == sorted(map(str, left))


async def test_an_operator_discards_and_retries_parked_failures(harness: Harness) -> None:
    queue, operator = await _operated(harness, at_once("retry", 0))
    receipts = await queue.enqueue_many(range(3))
    await queue.settle([Nack(message, "no") for message in await claim_all(queue, 3)])
    assert await operator.discard([receipts[0].id]) == 1
    assert await operator.retry_now([receipts[1].id]) == 1
    assert values(await drain(queue, 1)) == [1]
    assert values(await queue.failed()) == [2]


async def test_history_is_told_as_it_grows_and_by_day(harness: Harness) -> None:
    queue, operator = await _operated(harness, at_once("retry", 0))
    await queue.enqueue_many(range(3))
    messages = await claim_all(queue, 3)
    await queue.ack_many(messages[:2])
    await queue.nack(messages[2], error="no")
    await queue.clear_queue_cache()

    async def told() -> bool:
        return len((await operator.tail()).ended) == 3

    await eventually(told)
    tail = await operator.tail()
    assert sorted(one.outcome for one in tail.ended) == ["failed", "processed", "processed"]
    assert all(one.waited is not None and one.ran is not None for one in tail.ended)
    assert (await operator.tail(tail.after)).ended == []
    *_, today = await operator.outcomes(2, sample=2)
    assert (today.processed, today.failed, today.dead_lettered, len(today.sample)) == (2, 1, 0, 2)
