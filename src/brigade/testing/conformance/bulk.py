"""Bulk jobs: messages are staged out of sight, then all of them are there, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest

from brigade import AsyncQueue, NewMessage, PayloadTooLarge, QueuePolicy
from brigade.ids import Ids
from brigade.payload import outgoing
from brigade.stores import NotingStore, Payloads, Staged, StagingStore
from brigade.testing.conformance.harness import Harness, claim_one, drain, values
from brigade.testing.conformance.scan import rows


def staging(queue: AsyncQueue) -> StagingStore:
    store = queue.hub.store
    if not isinstance(store, StagingStore):
        pytest.skip("this store takes no bulk jobs")
    return store


async def staged(queue: AsyncQueue, job: str, *payloads: Any) -> Staged:
    """What one task of a job would stage."""
    messages = [one if isinstance(one, NewMessage) else NewMessage(payload=one) for one in payloads]
    made = [outgoing(one) for one in messages]
    for one, given in zip(made, messages, strict=True):
        if isinstance(given.payload, bytes):
            one.payload = given.payload
    return await staging(queue).stage(queue.name, job, made)


async def alike(queue: AsyncQueue, job: str, *payloads: bytes) -> Staged:
    """What a task of a job would stage that writes nothing but payloads."""
    bounds = [3, *accumulate(map(len, payloads), initial=3)][1:]
    data = memoryview(b"..." + b"".join(payloads) + b"...")
    return await staging(queue).stage(queue.name, job, Payloads(data, bounds, "text/plain"))


async def publish(queue: AsyncQueue, job: str, parts: Sequence[Staged], epoch: int | None = None) -> int:
    return await staging(queue).publish(queue.name, job, parts, epoch=epoch)


async def test_what_is_staged_is_not_there_until_it_is_published(harness: Harness) -> None:
    queue = await harness.queue()
    parts = [await staged(queue, "job", 1, 2), await staged(await harness.elsewhere(queue), "job", 3)]
    assert await queue.claim(10) == []
    assert (await queue.stats()).total == 0
    assert await queue.peek(10) == []
    assert await publish(await harness.elsewhere(queue), "job", parts) == 3
    assert (await queue.stats()).ready == 3
    assert sorted(values(await drain(queue, 3))) == [1, 2, 3]
    await queue.sweep()
    assert (await queue.stats()).succeeded == 3


async def test_a_job_is_published_once(harness: Harness) -> None:
    queue = await harness.queue()
    parts = [await staged(queue, "job", 1)]
    assert await publish(queue, "job", parts) == 1
    assert await publish(queue, "job", parts) == 0
    assert await publish(queue, "job", [await staged(queue, "job", 2)]) == 0
    await staging(queue).discard(queue.name, "job", parts)
    assert values(await drain(queue, 1)) == [1]
    assert await publish(queue, "job", parts) == 0
    assert await queue.claim(10) == []


async def test_what_is_discarded_never_comes(harness: Harness) -> None:
    queue = await harness.queue()
    await staging(queue).discard(queue.name, "job", [await staged(queue, "job", 1)])
    assert await queue.claim() == []
    assert (await queue.stats()).total == 0


async def test_each_batch_of_a_stream_is_published_once_and_none_after_a_later_one(harness: Harness) -> None:
    queue = await harness.queue()
    assert await publish(queue, "stream", [await staged(queue, "stream", 0)], 0) == 1
    assert await publish(queue, "stream", [await staged(queue, "stream", "again")], 0) == 0
    assert await publish(queue, "stream", [await staged(queue, "stream", 2)], 2) == 1
    assert await publish(queue, "stream", [await staged(queue, "stream", "late")], 1) == 0
    assert await publish(queue, "another", [await staged(queue, "another", 1)], 1) == 1
    assert sorted(values(await drain(queue, 3))) == [0, 1, 2]
    assert await queue.claim() == []


async def test_several_may_publish_a_job_at_once(harness: Harness) -> None:
    queue = await harness.queue()
    others = [await harness.elsewhere(queue) for _ in range(4)]
    parts = [await staged(queue, "job", one) for one in range(6)]
    counts = await asyncio.gather(*(publish(other, "job", parts) for other in others))
    assert sum(1 for count in counts if count) >= 1
    assert sorted(values(await drain(queue, 6))) == list(range(6))
    assert await queue.claim() == []


async def test_a_strict_queue_keeps_the_order_of_the_parts(harness: Harness) -> None:
    """[G6] In the order in which they are published, after what was there."""
    queue = await harness.queue(QueuePolicy(ordering_guarantee=True, segment_messages=2))
    await queue.enqueue("first")
    parts = [await staged(queue, "job", 3, 4, 5), await staged(queue, "job", 1, 2)]
    await publish(queue, "job", parts[::-1])
    await queue.enqueue("last")
    assert values(await drain(queue, 7)) == ["first", 1, 2, 3, 4, 5, "last"]


async def test_groups_are_strict_within(harness: Harness) -> None:
    queue = await harness.queue()
    messages = [NewMessage(payload=[group, place], group=group) for place in range(3) for group in "ab"]
    await publish(queue, "job", [await staged(queue, "job", *messages)])
    seen = values(await drain(queue, 6))
    for group in "ab":
        assert [place for one, place in seen if one == group] == [0, 1, 2]


async def test_payloads_alone_become_messages_like_any_other(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(segment_messages=3, segment_bytes=256 * 1024))
    payloads = [b"", b"a", b"bb", b"ccc", b"x" * 300_000, b"y" * 150_000, b"z" * 150_000]
    assert await publish(queue, "job", [await alike(queue, "job", *payloads)]) == 7
    shown = {row["payload"]: row for row in await rows(queue, "messages")}
    assert set(shown) == set(payloads)
    assert {(row["state"], row["priority"], row["content_type"]) for row in shown.values()} == {
        ("ready", 5, "text/plain")
    }
    assert all(row["size"] == len(payload) for payload, row in shown.items())
    first = await claim_one(queue)
    states = {row["id"]: row["state"] for row in await rows(queue, "messages")}
    assert (states.pop(first.id), set(states.values())) == ("in_flight", {"ready"})
    await queue.nack(first, delay=0)
    found = {message.body: message for message in await drain(queue, 7)}
    assert set(found) == set(payloads)
    assert {message.content_type for message in found.values()} == {"text/plain"}
    assert found[first.body].attempt == 2
    assert (await queue.stats()).succeeded == 7


async def test_payloads_alone_keep_their_order_in_a_strict_queue(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(ordering_guarantee=True, segment_messages=2))
    await publish(queue, "job", [await alike(queue, "job", b"1", b"2", b"3"), await alike(queue, "job", b"4")])
    assert [message.body for message in await drain(queue, 4)] == [b"1", b"2", b"3", b"4"]


async def test_a_payload_that_is_too_large_stages_none_of_its_batch(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(max_payload=10))
    with pytest.raises(PayloadTooLarge, match="11 bytes"):
        await alike(queue, "job", b"small", b"x" * 11)


async def test_own_ids_are_enqueued_once(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("before", id="b")
    parts = [
        await staged(queue, "job", NewMessage(payload=1, id="a"), NewMessage(payload=2, id="b")),
        await staged(queue, "job", NewMessage(payload=3, id="a"), NewMessage(payload=4, id="c", group="g"), 5),
    ]
    await publish(queue, "job", parts)
    found = {message.id: message.data for message in await drain(queue, 4)}
    assert (found["b"], found["c"]) == ("before", 4)
    assert found["a"] in (1, 3)
    assert (await queue.enqueue("after", id="c")).duplicate
    assert await queue.claim() == []


async def test_a_staged_message_keeps_its_options(harness: Harness) -> None:
    queue = await harness.queue()
    message = NewMessage(
        payload=b"x" * 300_000,
        priority=2,
        ttl=1000,
        max_attempts=7,
        attributes={"k": [1]},
        correlation_id="c",
        content_type="image/png",
    )
    later = NewMessage(payload="later", delay=3600)
    await publish(queue, "job", [await staged(queue, "job", message, later)])
    found = await claim_one(queue)
    assert found.payload == b"x" * 300_000
    assert (found.priority, found.max_attempts, found.attributes) == (2, 7, {"k": [1]})
    assert (found.correlation_id, found.content_type) == ("c", "image/png")
    assert (await queue.stats()).delayed == 1


async def test_what_is_too_large_is_refused_before_anything_is_staged(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(max_payload=10))
    with pytest.raises(PayloadTooLarge):
        await staged(queue, "job", b"small", b"x" * 11)


async def test_an_empty_job_is_published_as_well(harness: Harness) -> None:
    queue = await harness.queue()
    assert await publish(queue, Ids().token(), []) == 0
    assert await queue.claim() == []


async def test_a_note_is_written_once_and_read_by_others(harness: Harness) -> None:
    queue = await harness.queue()
    mine, other = queue.hub.store, (await harness.elsewhere(queue)).hub.store
    if not isinstance(mine, NotingStore) or not isinstance(other, NotingStore):
        pytest.skip("this store keeps no notes")
    assert await mine.read_note(queue.name, "n") is None
    assert await mine.write_note(queue.name, "n", b"first") == b"first"
    assert await other.write_note(queue.name, "n", b"second") == b"first"
    assert await other.read_note(queue.name, "n") == b"first"
    await other.drop_note(queue.name, "n")
    assert await mine.read_note(queue.name, "n") is None
