"""Priorities: 0 is the most urgent, 9 the least, 5 the default."""

from __future__ import annotations

from brigade import NewMessage, QueuePolicy
from brigade.testing.conformance.harness import Harness, claim_all, claim_one, values


async def test_the_most_urgent_message_comes_first(harness: Harness) -> None:
    """[seed 002: Priority settings may alter ordering within a queue]"""
    queue = await harness.queue()
    order = [7, 2, 9, 0, 5, 1, 8, 3, 6, 4]
    for priority in order:
        await queue.enqueue(priority, priority=priority)
    assert values(await claim_all(queue, 10)) == list(range(10))


async def test_priorities_inside_one_batch_count(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many([NewMessage(payload=n, priority=n % 10) for n in range(30)])
    messages = await claim_all(queue, 30)
    assert [message.priority for message in messages] == sorted(n % 10 for n in range(30))


async def test_a_message_has_priority_five_unless_told(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("less", priority=6)
    await queue.enqueue("default")
    await queue.enqueue("more", priority=4)
    messages = await claim_all(queue, 3)
    assert values(messages) == ["more", "default", "less"]
    assert messages[1].priority == 5


async def test_messages_of_one_priority_keep_their_order(harness: Harness) -> None:
    queue = await harness.queue()
    for n in range(12):
        await queue.enqueue(n, priority=n % 2)
    assert values(await claim_all(queue, 12)) == [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11]


async def test_priority_goes_before_lifo(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(ordering="lifo"))
    for n in range(4):
        await queue.enqueue(n, priority=5 if n % 2 else 1)
    assert values(await claim_all(queue, 4)) == [2, 0, 3, 1]


async def test_an_urgent_message_overtakes_those_that_wait(harness: Harness) -> None:
    """[seed 002: High-priority jobs may skip ahead]"""
    queue = await harness.queue()
    await queue.enqueue_many(range(5))
    assert values([await claim_one(queue)]) == [0]
    await queue.enqueue("urgent", priority=0)
    assert values([await claim_one(queue)]) == ["urgent"]


async def test_an_urgent_message_goes_before_less_urgent_groups(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("group", group="g", priority=9)
    await queue.enqueue("urgent", priority=0)
    assert values([await claim_one(queue)]) == ["urgent"]


async def test_an_urgent_group_goes_before_less_urgent_messages(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("less urgent", group="g", priority=9)
    await queue.enqueue("plain", priority=5)
    await queue.enqueue("urgent", group="h", priority=0)
    assert values([await claim_one(queue) for _ in range(3)]) == ["urgent", "plain", "less urgent"]


async def test_an_urgent_message_of_another_process_is_seen_by_a_new_claimer(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(3), priority=9)
    await (await harness.elsewhere(queue)).enqueue("urgent", priority=0)
    assert values([await claim_one(await harness.elsewhere(queue))]) == ["urgent"]
