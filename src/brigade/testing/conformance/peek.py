"""Peek: see what a claim would get, without taking it."""

from __future__ import annotations

from brigade import QueuePolicy, State
from brigade.testing.conformance.harness import SHORT, Harness, claim_all, claim_one, passed, values


async def test_peek_shows_what_comes_next_in_order(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(4))
    await queue.enqueue("urgent", priority=0)
    assert values(await queue.peek()) == ["urgent", 0, 1, 2, 3]
    assert values(await queue.peek(2)) == ["urgent", 0]


async def test_peek_takes_nothing(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(2))
    for _ in range(3):
        assert values(await queue.peek()) == [0, 1]
    messages = await claim_all(queue, 2)
    assert [message.attempt for message in messages] == [1, 1]


async def test_peek_leaves_out_what_cannot_be_claimed(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(3))
    await queue.enqueue("later", delay=3600)
    first = await claim_one(queue)
    second = await claim_one(queue)
    await queue.nack(second, delay=3600)
    assert values(await queue.peek()) == [2]
    await queue.release(first)
    assert values(await queue.peek()) == [0, 2]


async def test_peek_shows_messages_whose_lease_ran_out(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    await passed(await claim_one(queue, visibility=SHORT))
    assert values(await queue.peek()) == ["x"]


async def test_peek_tells_about_each_message(harness: Harness) -> None:
    queue = await harness.queue()
    receipt = await queue.enqueue({"a": 1}, priority=2, attributes={"k": 1}, correlation_id="c")
    (info,) = await queue.peek()
    assert (info.id, info.state, info.data, info.priority) == (receipt.id, State.READY, {"a": 1}, 2)
    assert (dict(info.attributes), info.correlation_id, info.attempts) == ({"k": 1}, "c", 0)


async def test_peek_works_from_another_process(harness: Harness) -> None:
    queue = await harness.queue()
    other = await harness.elsewhere(queue)
    await queue.enqueue("x")
    assert values(await other.peek()) == ["x"]
    await claim_one(queue)
    assert await other.peek() == []


async def test_peek_shows_the_newest_first_with_lifo(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(ordering="lifo"))
    await queue.enqueue_many(range(3))
    await queue.enqueue(3)
    assert values(await queue.peek()) == [3, 2, 1, 0]


async def test_peek_shows_the_head_of_each_lane(harness: Harness) -> None:
    queue = await harness.queue()
    for n in range(4):
        await queue.enqueue(n, group=f"g{n % 2}")
    assert sorted(values(await queue.peek())) == [0, 1]
    await claim_all(queue, 2)
    assert await queue.peek() == []


async def test_peek_at_an_empty_queue_is_an_empty_list(harness: Harness) -> None:
    assert await (await harness.queue()).peek() == []
