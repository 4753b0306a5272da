"""A claim that waits hears of whatever it could have: nothing falls between its questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import brigade
from brigade.clock import FOREVER
from brigade.errors import QueueNotFound
from brigade.model import Message
from brigade.queue import AsyncQueue
from brigade.stores.postgres import claiming
from brigade.stores.postgres.store import PostgresStore
from brigade.testing.conformance.harness import values
from postgres_server import database, postgres

__all__ = ["database", "postgres"]
NEVER = 3600.0
"""Seconds between polls, so that what is not heard of is not found by chance."""
Step = Callable[..., Awaitable[Any]]


@pytest.fixture
async def queue(database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncQueue]:
    """A queue whose claims listen and have said so: from here on a wait ends by what is heard alone."""
    async with brigade.connect_async(database) as hub:
        queue = await hub.queue("tasks")
        store = store_of(queue)
        while not (store.link.requests["listen"] and store._queues["tasks"].expects_until):
            assert await queue.claim(wait=0.1) == []
        monkeypatch.setattr(claiming, "FIRST_POLL", NEVER)
        monkeypatch.setattr(claiming, "SAFETY_POLL", NEVER)
        yield queue


@pytest.fixture
async def sending(database: str) -> AsyncIterator[AsyncQueue]:
    """The same queue, as another process knows it."""
    async with brigade.connect_async(database) as hub:
        yield await hub.queue("tasks")


def store_of(queue: AsyncQueue) -> PostgresStore:
    assert isinstance(queue.hub.store, PostgresStore)
    return queue.hub.store


async def asleep(queue: AsyncQueue) -> asyncio.Future[list[Message]]:
    """A claim that waits. Only once its time is over, which it never is here, would it look by itself."""
    held = store_of(queue)._queues[queue.name]
    others = held.waiting
    claiming = asyncio.ensure_future(queue.claim(wait=NEVER))
    await until(lambda: held.waiting > others)
    return claiming


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not so():
            await asyncio.sleep(0.001)


async def won(claiming: asyncio.Future[list[Message]]) -> list[Any]:
    return values(await asyncio.wait_for(claiming, 20))


async def all_due(queue: AsyncQueue) -> None:
    """Until every message may be claimed by the server's clock."""
    conn = await store_of(queue).link.connect()
    async with conn:
        while True:
            found = await conn.execute("SELECT FROM brigade.messages WHERE due_at > brigade.now_ms()")
            if not await found.fetchall():
                return
            await asyncio.sleep(0.01)


async def test_a_message_that_comes_due_between_the_questions_of_a_claim_is_claimed(
    queue: AsyncQueue, sending: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not ready when ready messages were asked for, and not to come when it was asked what is to come."""
    monkeypatch.setattr(claiming, "LOOK_EVERY", NEVER)
    store = store_of(queue)
    look: Step = store._claim_overdue

    async def look_late(*args: Any, **more: Any) -> None:
        await all_due(queue)
        await look(*args, **more)

    monkeypatch.setattr(store, "_claim_overdue", look_late)
    waiting = await asleep(queue)
    await sending.enqueue("late", delay=0.5)
    assert await won(waiting) == ["late"]


async def test_a_message_that_comes_due_while_lanes_are_asked_for_is_claimed(
    queue: AsyncQueue, sending: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(queue)
    claim_both: Step = store._claim_both

    async def claim_and_dawdle(*args: Any) -> None:
        await claim_both(*args)
        await all_due(queue)

    monkeypatch.setattr(store, "_claim_both", claim_and_dawdle)
    await sending.enqueue("in a lane", group="g")
    await queue.claim(visibility=NEVER)
    waiting = await asleep(queue)
    await sending.enqueue("late", delay=0.5)
    assert await won(waiting) == ["late"]


async def test_what_is_due_is_claimed_by_whoever_waits_by_then(queue: AsyncQueue, sending: AsyncQueue) -> None:
    """One claim is woken, finds out when the message will be due, and is gone before that."""
    held = store_of(queue)._queues["tasks"]
    first, second = await asleep(queue), await asleep(queue)
    await sending.enqueue("late", delay=2)
    await until(lambda: held.outlook is not None and held.outlook.due < FOREVER and held.waiting == 2)
    first.cancel()
    assert await won(second) == ["late"]


async def test_a_claim_that_looked_too_early_hears_that_another_found_something(
    queue: AsyncQueue, sending: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two messages are told of once, while one claim sleeps and the answer to the other is on its way."""
    store = store_of(queue)
    claim: Step = store._claim
    asked, arrived = asyncio.Event(), asyncio.Event()

    async def claim_slowly(*args: Any) -> Any:
        answer = await claim(*args)
        asked.set()
        await arrived.wait()
        return answer

    first = await asleep(queue)
    with monkeypatch.context() as slow:
        slow.setattr(store, "_claim", claim_slowly)
        second = asyncio.ensure_future(queue.claim(wait=NEVER))
        await asked.wait()
    await sending.enqueue_many(["one", "another"])
    found = await won(first)
    arrived.set()
    assert sorted([*found, *await won(second)]) == ["another", "one"]


async def test_a_claim_does_not_wait_for_a_queue_that_was_deleted(queue: AsyncQueue) -> None:
    waiting = await asleep(queue)
    await queue.delete()
    with pytest.raises(QueueNotFound):
        await won(waiting)


async def test_news_of_this_process_is_heard_while_nobody_can_listen(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brigade.connect_async(database) as hub:
        queue = await hub.queue("tasks")
        monkeypatch.setattr(store_of(queue).link, "connect", asyncio.Event().wait)
        monkeypatch.setattr(claiming, "FIRST_POLL", NEVER)
        waiting = await asleep(queue)
        await queue.enqueue("from here")
        assert await won(waiting) == ["from here"]


@pytest.mark.parametrize("payload", ["", "news", "²", "9" * 5000])
async def test_what_others_say_on_the_channel_does_not_end_the_listening(
    queue: AsyncQueue, sending: AsyncQueue, payload: str
) -> None:
    store = store_of(queue)
    waiting = await asleep(queue)
    conn = await store.link.connect()
    async with conn:
        await conn.execute("SELECT pg_notify(%s, %s)", [store.channel, payload])
    await sending.enqueue("after it")
    assert await won(waiting) == ["after it"]


async def test_others_notify_for_as_long_as_a_wait_relies_on_it(queue: AsyncQueue) -> None:
    """Also where somebody else, who may be gone soon, has said before that somebody waits."""
    store = store_of(queue)
    held = store._queues["tasks"]
    conn = await store.link.connect()
    async with conn:
        await conn.execute("UPDATE brigade.queues SET waiting_until = brigade.now_ms() + 40000")
        held.expects_until = 0.0
        waiting = await asleep(queue)
        found = await conn.execute("SELECT waiting_until - brigade.now_ms() FROM brigade.queues")
        row = await found.fetchone()
    assert row is not None
    assert row[0] + 1 >= 1000 * (held.expects_until - store.clock.monotonic())
    waiting.cancel()
