"""Every crash point of every verb: a process dies before or after each of its storage operations, others clean up.

The simulation does this at random and at scale; here it is done exhaustively and small, so that a failure names the
very operation. Time is the test's own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from brigade import (
    AsyncHub,
    AsyncQueue,
    Backoff,
    Failure,
    Message,
    Nack,
    NewMessage,
    QueuePolicy,
    StaleLease,
)
from brigade.blobs import Get, List, Op
from brigade.blobs.memory import Bucket, MemoryBlobs
from brigade.ids import Ids
from brigade.payload import outgoing
from brigade.stores import StagingStore
from brigade.stores.bucket.history import read_records
from brigade.stores.bucket.store import BucketStore
from brigade.stores.bucket.wire import BULK

HOUR = 3_600_000
AT_ONCE = Backoff(base=0, maximum=0, jitter=None)
PLAIN = QueuePolicy(backoff=AT_ONCE)
STRICT = QueuePolicy(backoff=AT_ONCE, ordering_guarantee=True)
PARKING = QueuePolicy(backoff=AT_ONCE, failure=Failure("retry", 0))
LETTERS = QueuePolicy(backoff=AT_ONCE, failure=Failure("dead-letter", 0, "letters"))
STRICT_LETTERS = QueuePolicy(backoff=AT_ONCE, failure=LETTERS.failure, ordering_guarantee=True)


class Clock:
    def __init__(self) -> None:
        self.moment = 1_800_000_000_000

    def now(self) -> int:
        return self.moment

    def monotonic(self) -> float:
        return self.moment / 1000


class Crash(BaseException):
    """The process is dead: nothing catches this."""


class Mortal(MemoryBlobs):
    """Dies at its `last` operation, before or after it was applied; nothing it does later has any effect."""

    def __init__(self, bucket: Bucket, last: int, *, applied: bool) -> None:
        super().__init__(bucket=bucket)
        self._left = last
        self._applied = applied
        self.dead = False
        self.last_op: Op | None = None

    def try_now(self, op: Op) -> object:
        if self.dead:
            raise Crash
        if self._left == 0:
            self.dead, self.last_op = True, op
            if self._applied:
                super().try_now(op)
            raise Crash
        self._left -= 1
        return super().try_now(op)


class World:
    """A bucket, a clock, and what the dead process had been told before it died."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.bucket = Bucket(self.clock)
        self.durable: set[Any] = set()
        self.acked: set[Any] = set()
        self.purged = False
        self.jobs: list[set[Any]] = []
        self._seed = 0

    def hub(self, blobs: MemoryBlobs | None = None) -> AsyncHub:
        self._seed += 1
        hub = AsyncHub("memory://")
        hub.owner = "cleaner" if blobs is None else "mortal"
        hub._store = BucketStore(blobs or MemoryBlobs(bucket=self.bucket), clock=self.clock, ids=Ids(self._seed))
        return hub

    async def enqueue(self, queue: AsyncQueue, *payloads: Any, **options: Any) -> None:
        messages = [one if isinstance(one, NewMessage) else NewMessage(payload=one, **options) for one in payloads]
        await queue.enqueue_many([replace(one, correlation_id=str(one.payload)) for one in messages])
        self.durable.update(one.payload for one in messages)

    async def ack(self, queue: AsyncQueue, messages: list[Message]) -> None:
        answers = await queue.ack_many(messages)
        self.acked.update(
            message.data
            for message, answer in zip(messages, answers, strict=True)
            if not isinstance(answer, StaleLease)
        )

    async def bulk(self, hub: AsyncHub, queue: AsyncQueue, *parts: list[NewMessage], epoch: int | None = None) -> None:
        """A bulk job of several tasks: all of it, or nothing."""
        store = hub.store
        assert isinstance(store, StagingStore)
        payloads = {one.payload for part in parts for one in part}
        self.jobs.append(payloads)
        staged = [
            await store.stage(
                queue.name, "job", [outgoing(replace(one, correlation_id=str(one.payload))) for one in part]
            )
            for part in parts
        ]
        assert await store.publish(queue.name, "job", staged, epoch=epoch) == len(payloads)
        self.durable.update(payloads)
        assert await store.publish(queue.name, "job", staged, epoch=epoch) == 0
        await store.discard(queue.name, "job", staged)


Scenario = Callable[[World, AsyncHub], Awaitable[None]]


async def enqueue_plain(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", PLAIN)
    await world.enqueue(queue, 1, 2)
    await world.enqueue(queue, 3, priority=0)


async def enqueue_own_ids(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", PLAIN)
    await world.enqueue(queue, NewMessage(payload=1, id="a"), NewMessage(payload=2, id="b"))
    await world.enqueue(queue, NewMessage(payload=3, id="c", group="g"))


async def enqueue_strict(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", STRICT)
    await world.enqueue(queue, 1)
    await world.enqueue(queue, 2, 3)


async def enqueue_large(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", PLAIN)
    await queue.enqueue(b"x" * 300_000)
    await queue.enqueue(b"y" * 300_001, group="g", id="large")


async def claim_and_ack(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", PLAIN)
    await world.enqueue(queue, 1, 2, 3)
    await world.ack(queue, await queue.claim(2))
    await world.ack(queue, await queue.claim(2))
    await hub.close()


async def claim_and_ack_strict(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", STRICT)
    await world.enqueue(queue, 1, 2)
    await world.ack(queue, await queue.claim(2))
    await world.ack(queue, await queue.claim(2))
    await hub.close()


async def ack_own_ids(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", PLAIN)
    await world.enqueue(queue, NewMessage(payload=1, id="a"))
    await world.ack(queue, await queue.claim())
    await hub.close()


async def nack_and_release(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", PLAIN)
    await world.enqueue(queue, 1, 2)
    first, second = await queue.claim(2)
    await queue.nack(first)
    await queue.release(second)
    await queue.extend((await queue.claim())[0], 60)
    await hub.close()


async def park_and_redrive(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", PARKING)
    await world.enqueue(queue, 1, NewMessage(payload=2, id="b"), NewMessage(payload=3, group="g"))
    await queue.settle([Nack(message) for message in await queue.claim(3)])
    await queue.redrive()
    await hub.close()


async def dead_letter_and_redrive(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", LETTERS)
    await world.enqueue(queue, 1, NewMessage(payload=2, id="b"))
    messages = await queue.claim(2)
    await queue.state(messages[0]).save({"step": 1})
    await queue.settle([Nack(message) for message in messages])
    await queue.redrive()
    await hub.close()


async def dead_letter_strict(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", STRICT_LETTERS)
    await world.enqueue(queue, 1, 2)
    await queue.settle([Nack(message) for message in await queue.claim()])
    await queue.redrive()
    await hub.close()


async def dead_letter_large(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", LETTERS)
    await queue.enqueue(b"x" * 300_000)
    await queue.settle([Nack(message) for message in await queue.claim()])
    await queue.redrive()
    await hub.close()


async def expire_by_ttl(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", LETTERS)
    await world.enqueue(queue, 1, 2, ttl=10)
    world.clock.moment += 20_000
    assert await queue.claim() == []
    await hub.close()


async def purge(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", PLAIN)
    await world.enqueue(queue, 1, 2)
    await world.enqueue(queue, NewMessage(payload=3, id="c"), NewMessage(payload=4, group="g"))
    world.purged = True
    await queue.purge()
    await hub.close()


async def bulk_plain(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", PLAIN)
    first = [NewMessage(payload=1), NewMessage(payload=2, priority=0)]
    await world.bulk(hub, queue, first, [NewMessage(payload=3), NewMessage(payload=4, ttl=10**6)])
    await world.ack(queue, await queue.claim(3))
    await hub.close()


async def bulk_strict(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", STRICT)
    await world.bulk(hub, queue, [NewMessage(payload=1), NewMessage(payload=2, id="b")], [NewMessage(payload=3)])
    await world.ack(queue, await queue.claim(3))
    await hub.close()


async def bulk_own_ids(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", PLAIN)
    first = [NewMessage(payload=1, id="a"), NewMessage(payload=2)]
    await world.bulk(hub, queue, first, [NewMessage(payload=3, id="c", group="g"), NewMessage(payload=4, group="g")])
    await hub.close()


async def bulk_stream(world: World, hub: AsyncHub) -> None:
    queue = await hub.queue("tasks", PLAIN)
    await world.bulk(hub, queue, [NewMessage(payload=1)], epoch=0)
    await world.bulk(hub, queue, [NewMessage(payload=2)], epoch=1)


SCENARIOS: list[Scenario] = [
    bulk_plain,
    bulk_strict,
    bulk_own_ids,
    bulk_stream,
    enqueue_plain,
    enqueue_own_ids,
    enqueue_strict,
    enqueue_large,
    claim_and_ack,
    claim_and_ack_strict,
    ack_own_ids,
    nack_and_release,
    park_and_redrive,
    dead_letter_and_redrive,
    dead_letter_strict,
    dead_letter_large,
    expire_by_ttl,
    purge,
]


async def live(world: World, scenario: Scenario, last: int, *, applied: bool) -> Mortal:
    """Run the scenario in a process that dies at its operation number `last`."""
    blobs = Mortal(world.bucket, last, applied=applied)
    hub = world.hub(blobs)
    with contextlib.suppress(Crash):
        await scenario(world, hub)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    return blobs


async def drained(queue: AsyncQueue) -> list[Message]:
    found: list[Message] = []
    while messages := await queue.claim(100, visibility=60):
        found += messages
        await queue.ack_many(messages)
    return found


async def cleaned_up(world: World) -> list[Any]:
    """What others find and finish, hours later, until nothing is left to do; returns what they were given."""
    given: list[Any] = []
    hub = world.hub()
    await hub.queue("tasks")
    quiet = 0
    for _ in range(12):
        world.clock.moment += 3 * HOUR
        found = 0
        for name in await hub.queues():
            queue = await hub.queue(name)
            await queue.sweep()
            found += await queue.redrive()
            messages = await drained(queue)
            given += [message.size if message.body is None else message.data for message in messages]
            found += len(messages) + len(await queue.failed())
        quiet = 0 if found else quiet + 1
        if quiet == 4:
            await hub.close()
            return given
    raise AssertionError("there is always something left to do")


ALWAYS = ("policy.json", "seg/!lanes")


async def points(scenario: Scenario, *, applied: bool) -> AsyncIterator[tuple[World, Mortal]]:
    """The world after each possible death, up to the run that died of old age."""
    for last in range(1000):
        world = World()
        blobs = await live(world, scenario, last, applied=applied)
        if blobs.last_op is not None and isinstance(blobs.last_op, Get | List) and applied:
            continue
        yield world, blobs
        if not blobs.dead:
            return
    raise AssertionError("the scenario never ends")


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_a_death_at_any_operation_loses_nothing_and_leaves_nothing(scenario: Scenario, applied: bool) -> None:
    """[G1] [G3] What was durable is delivered, what was acked is not, and the bucket ends clean."""
    count = 0
    async for world, blobs in points(scenario, applied=applied):
        count += 1
        where = f"died at operation {count} {blobs.last_op}"
        given = await cleaned_up(world)
        assert not set(given) & world.acked, f"{where}: delivered after its ack"
        assert len(given) == len(set(given)), f"{where}: delivered again after its ack: {given}"
        if not world.purged:
            assert world.durable - world.acked <= set(given) | finished(world), f"{where}: lost"
        seen = set(given) | world.acked | finished(world) | acked_by_the_dead(world)
        assert all(job <= seen or not job & seen for job in world.jobs), f"{where}: a job was published in part"
        left = [key for key in world.bucket.snapshot() if not key.endswith(ALWAYS)]
        kinds = {key.split("/")[2] for key in left}
        assert kinds <= {"hist", "ids", "job", "bulk"}, f"{where}: left {left}"
        await forgotten(world, where)
    assert count > 3


def finished(world: World) -> set[Any]:
    """Messages whose ack was applied although the dead process was not told: history says that it was the one."""
    found: set[str] = set()
    for key, body in world.bucket.snapshot().items():
        if "/hist/" in key:
            for record in read_records(body):
                if [attempt.owner for attempt in record.attempts if attempt.how == "acked"] == ["mortal"]:
                    found.add(record.correlation_id)
    return {payload for payload in world.durable if str(payload) in found}


def acked_by_the_dead(world: World) -> set[Any]:
    """What history says has been processed, of the messages of bulk jobs."""
    found = {
        record.correlation_id
        for key, body in world.bucket.snapshot().items()
        if "/hist/" in key
        for record in read_records(body)
    }
    return {payload for job in world.jobs for payload in job if str(payload) in found}


async def forgotten(world: World, where: str) -> None:
    """After the retention nothing is left but the queues themselves."""
    world.clock.moment += 8 * 24 * HOUR
    hub = world.hub()
    for _ in range(2):
        for name in await hub.queues():
            await (await hub.queue(name)).sweep()
        world.clock.moment += 2 * HOUR
    await hub.close()
    left = [key for key in world.bucket.snapshot() if not key.endswith(ALWAYS)]
    assert [key for key in left if not kept_for_a_stream(world, key)] == [], where


def kept_for_a_stream(world: World, key: str) -> bool:
    """The record of a stream's last epoch stays, so that no epoch is ever published twice."""
    return "/job/" in key and BULK.decode(world.bucket.snapshot()[key], key=key).keep


async def test_the_dead_do_not_write() -> None:
    """The harness itself: after its last operation a mortal's writes have no effect."""
    world = World()
    blobs = await live(world, enqueue_plain, 2, applied=False)
    assert blobs.dead
    before = world.bucket.snapshot()
    with pytest.raises(Crash):
        blobs.try_now(Get("q/tasks/policy.json"))
    assert world.bucket.snapshot() == before
