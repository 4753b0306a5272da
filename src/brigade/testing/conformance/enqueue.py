"""Enqueue: what returns is durable, whole and deliverable."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brigade import NewMessage, State
from brigade.testing.conformance.harness import Harness, claim_all, claim_one, drain, now_ms, values

PAYLOADS: list[Any] = [
    b"",
    b"\x00\xff bytes",
    "",
    "text, ünïcode and 🪣",
    {"nested": {"list": [1, 2.5, None, True, "x"]}},
    [],
    {},
    17,
    1.5,
    None,
    True,
]


async def test_a_message_that_enqueue_returned_for_is_delivered(harness: Harness) -> None:
    """[G1] A message that enqueue returned for is never lost: it is there, and another process gets it."""
    queue = await harness.queue()
    receipt = await queue.enqueue({"type": "email"})
    assert (await queue.get(receipt.id)).state is State.READY
    message = await claim_one(await harness.elsewhere(queue))
    assert (message.id, message.data) == (receipt.id, {"type": "email"})


async def test_messages_survive_the_process_that_enqueued_them(harness: Harness) -> None:
    """[G1] [seed 002: Successfully enqueued jobs survive process restarts]"""
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    await queue.enqueue_many(range(25))
    await hub.close()
    reopened = await (await harness.hub()).queue(queue.name, create=False)
    assert values(await drain(reopened, 25)) == list(range(25))


async def test_every_message_ends_or_is_still_there(harness: Harness) -> None:
    """[G1] It ends succeeded, failed or dead-lettered, or it is still there."""
    queue = await harness.queue()
    receipts = await queue.enqueue_many(["ack", "reject", "hold", "leave"], max_attempts=1)
    acked, failed, _ = await claim_all(queue, 3)
    await queue.ack(acked)
    await queue.nack(failed)
    states = [(await queue.get(receipt.id)).state for receipt in receipts]
    assert states == [State.SUCCEEDED, State.FAILED, State.IN_FLIGHT, State.READY]


@pytest.mark.parametrize("payload", PAYLOADS, ids=repr)
async def test_a_payload_comes_back_as_it_went_in(harness: Harness, payload: Any) -> None:
    """Bytes, text and JSON values arrive unchanged."""
    queue = await harness.queue()
    await queue.enqueue(payload)
    message = await claim_one(queue)
    assert message.data == payload
    assert type(message.data) is type(payload)
    assert message.size == len(message.payload)


async def test_bytearrays_and_views_arrive_as_bytes(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many([bytearray(b"one"), memoryview(b"two")])
    assert values(await claim_all(queue, 2)) == [b"one", b"two"]


async def test_a_message_carries_what_it_was_given(harness: Harness) -> None:
    """Attributes, correlation id, priority, content type and enqueue time arrive with the message."""
    queue = await harness.queue()
    before = now_ms()
    receipt = await queue.enqueue(
        b"<x/>",
        priority=3,
        attributes={"tenant": "a", "n": 1, "list": [1]},
        correlation_id="order-7",
        content_type="application/xml",
    )
    message = await claim_one(queue)
    assert receipt.correlation_id == message.correlation_id == "order-7"
    assert dict(message.attributes) == {"tenant": "a", "n": 1, "list": [1]}
    assert (message.priority, message.content_type, message.queue) == (3, "application/xml", queue.name)
    assert before - 2000 <= message.enqueued_at_ms <= now_ms() + 2000
    assert message.enqueued_at.tzinfo is not None
    assert message.group is None
    assert message.failure is None


async def test_content_types_follow_the_payload(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many([b"b", "t", {"j": 1}])
    assert [m.content_type for m in await claim_all(queue, 3)] == [
        "application/octet-stream",
        "text/plain",
        "application/json",
    ]


async def test_a_correlation_id_is_the_message_id_unless_given(harness: Harness) -> None:
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    assert receipt.correlation_id == receipt.id
    assert (await claim_one(queue)).correlation_id == receipt.id


async def test_a_receipt_names_the_queue_and_is_no_duplicate(harness: Harness) -> None:
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    assert (receipt.queue, receipt.duplicate) == (queue.name, False)


async def test_enqueue_many_gives_a_receipt_for_each_in_order(harness: Harness) -> None:
    queue = await harness.queue()
    receipts = await queue.enqueue_many(range(50))
    messages = await claim_all(queue, 50)
    assert [message.id for message in messages] == [receipt.id for receipt in receipts]
    assert len({receipt.id for receipt in receipts}) == 50


async def test_enqueue_many_of_nothing_is_nothing(harness: Harness) -> None:
    queue = await harness.queue()
    assert await queue.enqueue_many([]) == []
    assert await queue.claim() == []


async def test_enqueue_many_takes_messages_with_options_of_their_own(harness: Harness) -> None:
    queue = await harness.queue()
    receipts = await queue.enqueue_many(
        [
            NewMessage(payload="own", priority=1, id="mine", attributes={"a": 1}, correlation_id="c"),
            "common",
        ],
        priority=4,
        attributes={"b": 2},
    )
    assert receipts[0].id == "mine"
    own, common = await claim_all(queue, 2)
    assert (own.id, own.priority, dict(own.attributes), own.correlation_id) == ("mine", 1, {"a": 1}, "c")
    assert (common.data, common.priority, dict(common.attributes)) == ("common", 4, {"b": 2})


async def test_concurrent_enqueues_all_arrive_once(harness: Harness) -> None:
    """[G1] Calls made at the same time may share a write; each message still has its own id and arrives."""
    queue = await harness.queue()
    receipts = await asyncio.gather(*(queue.enqueue(n) for n in range(64)))
    assert len({receipt.id for receipt in receipts}) == 64
    messages = await drain(queue, 64)
    assert sorted(values(messages)) == list(range(64))
    by_id = {message.id: message.data for message in messages}
    assert [by_id[receipt.id] for receipt in receipts] == list(range(64))


async def test_more_messages_than_fit_one_segment_arrive_in_order(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(2500))
    assert values(await drain(queue, 2500, limit=1000)) == list(range(2500))


async def test_one_bad_message_keeps_the_whole_batch_out(harness: Harness) -> None:
    """enqueue_many checks everything before it writes anything."""
    queue = await harness.queue()
    with pytest.raises(ValueError, match="JSON"):
        await queue.enqueue_many(["fine", object()])
    assert (await queue.stats()).total == 0


async def test_an_enqueue_that_is_cancelled_does_not_harm_the_others(harness: Harness) -> None:
    queue = await harness.queue()
    tasks = [asyncio.ensure_future(queue.enqueue(n)) for n in range(20)]
    await asyncio.sleep(0)
    tasks[7].cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    durable = [n for n, answer in enumerate(answers) if not isinstance(answer, BaseException)]
    assert len(durable) >= 19
    found = await drain(queue, len(durable))
    assert set(durable) <= set(values(found))


async def test_attributes_of_many_messages_come_back_whole(harness: Harness) -> None:
    """However many are enqueued together: a store may write many in another way than a few."""
    queue = await harness.queue()
    await queue.enqueue_many(range(60), attributes={"tenant": "a", "list": [1]})
    assert [dict(message.attributes) for message in await queue.claim(60)] == [{"tenant": "a", "list": [1]}] * 60
