"""Message groups: strict within, parallel across."""

from __future__ import annotations

import asyncio
from typing import Any

from brigade import Ack, AsyncQueue, Message, Nack, NewMessage, Release
from brigade.testing.conformance.harness import (
    SHORT,
    Harness,
    at_once,
    claim_all,
    claim_one,
    drain,
    passed,
    values,
)


async def test_a_group_hands_out_one_message_at_a_time(harness: Harness) -> None:
    """[G6] Strict within a group."""
    queue = await harness.queue()
    await queue.enqueue_many(range(3), group="a")
    head = await claim_one(queue)
    assert (head.data, head.group) == (0, "a")
    assert await queue.claim(5) == []
    await queue.ack(head)
    assert values(await drain(queue, 2)) == [1, 2]


async def test_groups_run_side_by_side(harness: Harness) -> None:
    """[G6] Parallel across groups: one claim may hold the head of each."""
    queue = await harness.queue()
    for n in range(6):
        await queue.enqueue(n, group=f"g{n % 3}")
    heads = await claim_all(queue, 3)
    assert sorted(values(heads)) == [0, 1, 2]
    assert await queue.claim(5) == []
    await queue.ack_many(heads)
    assert sorted(values(await claim_all(queue, 3))) == [3, 4, 5]


async def test_messages_without_a_group_are_not_held_up(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("head", group="a")
    await queue.enqueue("behind", group="a")
    await queue.enqueue_many(["free", "free too"])
    got = await claim_all(queue, 3)
    assert sorted(values(got)) == ["free", "free too", "head"]
    assert await queue.claim() == []


async def test_a_group_keeps_its_order_across_retries_and_timeouts(harness: Harness) -> None:
    """[G6] A failed or abandoned head comes again before the next of its group."""
    queue = await harness.queue(at_once())
    await queue.enqueue_many(range(2), group="a")
    await queue.nack(await claim_one(queue))
    lost = await claim_one(queue, visibility=SHORT)
    assert lost.data == 0
    await passed(lost)
    assert values(await drain(await harness.elsewhere(queue), 2)) == [0, 1]


async def test_one_batch_may_hold_many_groups(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many([NewMessage(payload=[n % 5, n], group=f"g{n % 5}") for n in range(25)])
    found = values(await drain(queue, 25, limit=25))
    for group in range(5):
        assert [n for which, n in found if which == group] == list(range(group, 25, 5))


async def test_group_names_are_any_text(harness: Harness) -> None:
    queue = await harness.queue()
    names = ["a/b", "..", "", "ünï 🪣", "x" * 256, "\n", "a b"]
    for name in filter(None, names):
        await queue.enqueue(name, group=name)
    messages = await claim_all(queue, 6)
    assert sorted(values(messages)) == sorted(message.group or "" for message in messages)


async def test_groups_stay_in_order_among_many_workers(harness: Harness) -> None:
    """[G6] Ten groups, four workers that sometimes give up: each group ends in its own order."""
    queue = await harness.queue()
    await queue.enqueue_many([NewMessage(payload=[n % 10, n], group=str(n % 10)) for n in range(60)])
    ended: list[Any] = []

    async def work(worker: AsyncQueue, number: int) -> None:
        turn = 0
        while len(ended) < 60:
            for message in await worker.claim(3, wait=0.2):
                turn += 1
                if (turn + number) % 5 == 0:
                    await worker.release(message)
                else:
                    ended.append(message.data)
                    await worker.ack(message)

    await asyncio.gather(*[work(await harness.elsewhere(queue), number) for number in range(4)])
    for group in range(10):
        assert [n for which, n in ended if which == group] == list(range(group, 60, 10))


async def test_a_group_goes_on_when_its_head_is_settled_by_somebody_who_knows_only_the_lease(harness: Harness) -> None:
    """[G6] Id, ref and token are enough to settle with: as on the command line, or by a server."""
    queue = await harness.queue(at_once("retry", 1))
    await queue.enqueue_many(range(3), group="a")
    for kind, value in ((Nack, 0), (Release, 0), (Nack, 0), (Ack, 1), (Ack, 2)):
        message = await claim_one(queue, visibility=600)
        assert message.data == value
        known = Message.held(queue=queue.name, id=message.id, ref=message.ref, token=message.lease.token)
        await queue.settle([kind(known)])
