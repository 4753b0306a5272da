"""History read as a whole, in parts, from every kind of store."""

from __future__ import annotations

import uuid

import msgspec

import brigade
from brigade import Failure, QueuePolicy
from brigade.hub import AsyncHub
from brigade.stores.history import HistoryPart, HistoryStore, Record
from each_hub import hub, postgres, postgres_url

__all__ = ["hub", "postgres", "postgres_url"]


def queue_name() -> str:
    return f"h{uuid.uuid4().hex[:12]}"


async def read(hub: AsyncHub, queue: str, since: int = 0) -> list[Record]:
    store = hub.store
    assert isinstance(store, HistoryStore)
    await store.forget(queue)
    parts = await store.history_parts(queue, since)
    wired = [msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=HistoryPart) for part in parts]
    return [record for part in wired for record in await store.read_history(part)]


async def test_every_lease_of_a_message_is_told(hub: AsyncHub) -> None:
    policy = QueuePolicy(failure=Failure("retry", max_retries=2), backoff=brigade.Backoff(base=0, maximum=0))
    queue = await hub.queue(queue_name(), policy=policy)
    await queue.enqueue({"n": 1}, id="mine", attributes={"a": 1}, correlation_id="c")
    (first,) = await queue.claim(1, owner="first")
    await queue.release(first)
    (second,) = await queue.claim(1, owner="second")
    await queue.nack(second, error="no luck", delay=0)
    (third,) = await queue.claim(1, owner="third", wait=5)
    await queue.ack(third, result={"ok": True})

    (record,) = await read(hub, queue.name)
    assert (record.id, record.queue, record.outcome, record.counted) == ("mine", queue.name, "processed", 2)
    told = [(one.owner, one.how, one.error) for one in record.attempts]
    assert told == [("first", "released", None), ("second", "nacked", "no luck"), ("third", "acked", None)]
    versions = [one.version for one in record.attempts]
    assert versions == sorted(set(versions))
    assert all(one.claimed_at <= one.ended_at for one in record.attempts)
    assert msgspec.json.decode(record.result) == {"ok": True}
    assert (record.attributes, record.correlation_id, record.lane) == ({"a": 1}, "c", None)


async def test_failures_name_their_end(hub: AsyncHub) -> None:
    letters = queue_name()
    policy = QueuePolicy(failure=Failure("dead-letter", dead_letter_queue=letters))
    queue = await hub.queue(queue_name(), policy=policy)
    await queue.enqueue("bad")
    (message,) = await queue.claim(1, owner="w")
    await queue.nack(message, error="broken")
    (record,) = await read(hub, queue.name)
    assert (record.outcome, record.reason, record.error) == ("dead-lettered", "failed", "broken")
    assert record.dead_letter_queue == letters
    assert [(one.owner, one.how) for one in record.attempts] == [("w", "nacked")]


async def test_lanes_are_told_apart(hub: AsyncHub) -> None:
    queue = await hub.queue(queue_name())
    for group in ("a", "b", None):
        await queue.enqueue({"group": group}, group=group)
    done = 0
    while done < 3:
        messages = await queue.claim(3, owner="w", wait=5)
        await queue.ack_many(messages)
        done += len(messages)
    lanes = {record.group: record.lane for record in await read(hub, queue.name)}
    assert lanes[None] is None
    assert None not in (lanes["a"], lanes["b"])
    assert lanes["a"] != lanes["b"]


async def test_parts_are_those_written_since(hub: AsyncHub) -> None:
    queue = await hub.queue(queue_name())
    await queue.enqueue("x")
    await queue.ack_many(await queue.claim(1, owner="w"))
    assert len(await read(hub, queue.name)) == 1
    assert await read(hub, queue.name, hub.clock.now() + 60_000) == []


async def test_purged_messages_are_known_to_be_absent() -> None:
    async with brigade.connect_async("memory://") as hub:
        queue = await hub.queue("tasks")
        await queue.enqueue_many(["a", "b", "c"])
        (first,) = await queue.claim(1, owner="w")
        await queue.purge()
        await queue.ack(first)
        (record,) = await read(hub, "tasks")
        assert record.absent == [1, 2]
