"""Delete: the queue and everything in it are gone."""

from __future__ import annotations

import pytest

from brigade import Failure, QueueNotFound, QueuePolicy
from brigade.testing.conformance.harness import Harness, at_once, claim_one, eventually


async def test_a_deleted_queue_is_gone(harness: Harness) -> None:
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    await queue.enqueue("x")
    assert queue.name in await hub.queues()
    await queue.delete()
    assert queue.name not in await hub.queues()
    with pytest.raises(QueueNotFound, match=queue.name):
        await hub.queue(queue.name, create=False)
    with pytest.raises(QueueNotFound):
        await queue.enqueue("y")
    with pytest.raises(QueueNotFound):
        await queue.stats()


async def test_other_processes_find_a_deleted_queue_gone(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.delete()
    with pytest.raises(QueueNotFound):
        await (await harness.hub()).queue(queue.name, create=False)


async def test_a_queue_of_the_same_name_starts_empty(harness: Harness) -> None:
    hub = await harness.hub()
    queue = await hub.queue(harness.name(), at_once("retry", 0))
    receipt = await queue.enqueue("x", id="mine")
    await queue.nack(await claim_one(queue))
    await queue.enqueue("y", group="g")
    await queue.pause()
    await queue.delete()
    again = await hub.queue(queue.name, QueuePolicy(failure=Failure("retry", 9)))
    assert again.policy.failure.max_retries == 9
    stats = await again.stats()
    assert (stats.total, stats.failed, stats.paused) == (0, 0, False)
    assert await again.claim() == []
    assert not (await again.enqueue("new", id=receipt.id)).duplicate
    assert (await claim_one(again)).data == "new"


async def test_deleting_one_queue_leaves_those_with_similar_names(harness: Harness) -> None:
    hub = await harness.hub()
    name = harness.name()
    queue = await hub.queue(name)
    neighbours = [await hub.queue(f"{name}{end}") for end in ("-b", ".b", "_", "0")]
    for neighbour in neighbours:
        await neighbour.enqueue(neighbour.name)
    await queue.delete()
    for neighbour in neighbours:
        assert (await claim_one(neighbour)).data == neighbour.name
    listed = await (await harness.hub()).queues()
    assert {neighbour.name for neighbour in neighbours} <= set(listed)
    assert name not in listed


async def test_queues_lists_every_queue_once(harness: Harness) -> None:
    hub = await harness.hub()
    prefix = harness.name("list")
    names = [f"{prefix}{end}" for end in ("", "-", "-a", ".", "0", "_", "a", "aa", "A")]
    for name in names:
        await (await hub.queue(name)).enqueue("x")

    async def listed() -> bool:
        found = [name for name in await (await harness.hub()).queues() if name.startswith(prefix)]
        assert sorted(found) == sorted(names)
        return True

    await eventually(listed)


async def test_a_claim_on_a_deleted_queue_says_so(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.delete()
    with pytest.raises(QueueNotFound, match="creates it"):
        await queue.claim()
