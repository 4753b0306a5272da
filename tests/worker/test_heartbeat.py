"""The heartbeat: leases are kept as long as handlers run, whatever these do, and with few writes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import worker_handlers
from worker_support import AT_ONCE, PATIENT, Faults, ended, named, until

import brigade
from brigade import AsyncContext, Context, Event, Extend, Hub, Message, QueuePolicy, Worker

LEASE = 1.0
SHORT = QueuePolicy(visibility_timeout=LEASE, backoff=AT_ONCE)
LONGER = 2.5 * LEASE


def sleeping(message: Message) -> str:
    time.sleep(LONGER)
    return "kept"


async def sleeping_async(message: Message) -> str:
    await asyncio.sleep(LONGER)
    return "kept"


async def blocking_its_loop(message: Message) -> str:
    time.sleep(LONGER)
    return "kept"


def computing(message: Message) -> str:
    """Pure Python, which lets other threads in now and then only."""
    end = time.monotonic() + LONGER
    while time.monotonic() < end:
        sum(range(1000))
    return "kept"


@pytest.mark.parametrize(
    "handler", [sleeping, sleeping_async, blocking_its_loop, computing], ids=lambda one: one.__name__
)
def test_a_handler_longer_than_its_lease_keeps_it(memory: Hub, handler: Callable[..., Any]) -> None:
    queue = memory.queue("tasks", SHORT)
    heard: list[Event] = []
    memory.on("*", heard.append)
    receipt = queue.enqueue("x")
    with Worker(queue, handler, concurrency=2) as worker:
        until(lambda: ended(queue))
    info = queue.get(receipt.id)
    assert (info.result, info.attempts) == ("kept", 1)
    assert named(heard, "lease-lost") == []
    assert worker.status().lost == 0


async def test_an_async_program_whose_loop_is_blocked_keeps_its_leases() -> None:
    """The handler blocks the very loop that the program's hub lives on."""
    async with brigade.connect_async("memory://") as hub:
        queue = await hub.queue("tasks", SHORT)
        receipt = await queue.enqueue("x")
        await Worker(queue, blocking_its_loop).serve(until_empty=True)
        info = await queue.get(receipt.id)
        assert (info.result, info.attempts) == ("kept", 1)


def test_a_process_that_holds_its_interpreter_longer_than_the_lease_keeps_it(hub: Hub) -> None:
    queue = hub.queue("tasks", SHORT)
    receipt = queue.enqueue({"seconds": LONGER})
    with Worker(queue, worker_handlers.hold_the_gil, executor="process", concurrency=1) as worker:
        until(lambda: ended(queue))
    assert queue.get(receipt.id).attempts == 1
    assert worker.status().lost == 0


def test_one_write_extends_all_leases_of_a_grant(memory: Hub, faults: Faults) -> None:
    """Fifty messages of one segment in one hand: each heartbeat is one swap, not fifty."""
    queue = memory.queue("tasks", SHORT)
    beats: list[int] = []

    def rule(name: str, settlements: list[Any]) -> None:
        if isinstance(settlements[0], Extend):
            beats.append(len(settlements))

    faults.on("settle", rule)
    free = threading.Event()
    queue.enqueue_many(range(50))
    with Worker(queue, lambda message: free.wait(30), concurrency=50):
        until(lambda: beats)
        before, counted = memory.requests(), len(beats)
        until(lambda: len(beats) >= counted + 4)
        after, passed = memory.requests(), len(beats) - counted
        free.set()
        until(lambda: ended(queue))
    assert set(beats) == {50}
    assert after["swap"] - before["swap"] <= passed + 1
    assert sum(after.values()) - sum(before.values()) <= passed + 3, "a heartbeat made other requests as well"


def test_what_waits_for_a_slot_is_kept_as_well(memory: Hub) -> None:
    """Handlers were fast, then one is slow: what was claimed ahead stays claimed, once."""
    queue = memory.queue("tasks", SHORT)
    attempts: list[int] = []

    def handler(message: Message) -> None:
        attempts.append(message.attempt)
        if message.data == "slow":
            time.sleep(LONGER)

    queue.enqueue_many([*range(50), "slow", *range(10)])
    with Worker(queue, handler, concurrency=1):
        until(lambda: ended(queue))
    assert attempts == [1] * 61


def test_results_that_wait_to_be_settled_keep_their_leases(memory: Hub, faults: Faults) -> None:
    """The store refuses acks for longer than the lease, while it takes extensions: nobody else gets the message."""
    queue = memory.queue("tasks", SHORT)
    since = time.monotonic()

    def rule(name: str, settlements: list[Any]) -> None:
        if not isinstance(settlements[0], Extend) and time.monotonic() - since < LONGER:
            raise brigade.StoreUnavailable("no acks now; try again later")

    faults.on("settle", rule)
    receipt = queue.enqueue("x")
    runs: list[int] = []
    with Worker(queue, lambda message: runs.append(message.attempt), concurrency=2):
        until(lambda: ended(queue))
    assert runs == [1]
    assert queue.get(receipt.id).attempts == 1


def test_a_handler_may_extend_its_lease_itself(memory: Hub) -> None:
    """And the heartbeat doesn't take back what the handler asked for."""
    queue = memory.queue("tasks", SHORT)
    asked: list[int] = []
    free = threading.Event()

    def handler(message: Message, context: Context) -> None:
        asked.append(context.extend(600).expires_at_ms)
        free.wait(30)

    receipt = queue.enqueue("x")
    with Worker(queue, handler):
        until(lambda: asked)
        end = time.monotonic() + LEASE
        until(lambda: time.monotonic() > end)
        assert queue.get(receipt.id).lease_expires_at_ms == asked[0]
        free.set()
        until(lambda: ended(queue))


async def test_an_async_handler_may_extend_its_lease_itself() -> None:
    async with brigade.connect_async("memory://") as hub:
        queue = await hub.queue("tasks", PATIENT)

        async def handler(message: Message, context: AsyncContext) -> int:
            before = message.lease.expires_at_ms
            return (await context.extend(600)).expires_at_ms - before

        receipt = await queue.enqueue("x")
        await Worker(queue, handler).serve(until_empty=True)
        assert (await queue.get(receipt.id)).result > 500_000


def test_a_handler_in_a_process_may_extend_its_lease_itself(hub: Hub) -> None:
    queue = hub.queue("tasks", QueuePolicy(visibility_timeout=30))
    receipt = queue.enqueue("x")
    with Worker(queue, worker_handlers.extend, executor="process", concurrency=1):
        until(lambda: ended(queue))
    info = queue.get(receipt.id)
    assert info.result - info.enqueued_at_ms > 500_000


def test_a_handler_is_told_who_it_is(memory: Hub) -> None:
    queue = memory.queue("tasks", QueuePolicy(backoff=AT_ONCE))
    told: list[dict[str, Any]] = []

    def handler(message: Message, context: Context) -> None:
        told.append({name: getattr(context, name) for name in dir(context) if not name.startswith("_")})
        if message.attempt == 1:
            raise ValueError("again")

    receipt = queue.enqueue("x", correlation_id="c", max_attempts=5)
    with Worker(queue, handler, worker_id="me"):
        until(lambda: ended(queue))
    common = {
        "worker_id": "me",
        "queue": "tasks",
        "message_id": receipt.id,
        "max_attempts": 5,
        "correlation_id": "c",
        "cancelled": False,
    }
    assert [common.items() <= one.items() for one in told] == [True, True]
    assert [one["attempt"] for one in told] == [1, 2]
    assert told[0]["lease_version"] < told[1]["lease_version"]
