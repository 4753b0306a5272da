"""`execution_timeout` ends a handler for real: what can be ended is ended, what can't is left behind and fenced."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
import worker_handlers
from worker_support import AT_ONCE, Running, alive, ended, named, until

from brigade import AsyncContext, Context, Event, Failure, Hub, Message, Queue, QueuePolicy, State, Worker

LIMIT = 0.3


def limited(max_retries: int = 1, limit: float | None = LIMIT) -> QueuePolicy:
    failure = Failure("retry", max_retries)
    return QueuePolicy(execution_timeout=limit, backoff=AT_ONCE, failure=failure, visibility_timeout=30)


def failed_in_time(queue: Queue, heard: list[Event]) -> None:
    """One message, two attempts, both ended by the limit."""
    (parked,) = until(queue.failed)
    assert parked.attempts == 2
    assert "execution_timeout" in str(parked.error)
    until(lambda: len(named(heard, "message-outcome")) == 2)
    assert [event.fields["status"] for event in named(heard, "message-outcome")] == ["retrying", "failed"]
    assert [event.fields["attempt"] for event in named(heard, "message-outcome")] == [1, 2]


@pytest.fixture
def heard(memory: Hub) -> list[Event]:
    events: list[Event] = []
    memory.on("*", events.append)
    return events


def test_an_async_handler_is_cancelled(memory: Hub, heard: list[Event]) -> None:
    queue = memory.queue("tasks", limited())
    how: list[bool] = []

    async def handler(message: Message, context: AsyncContext) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            how.append(context.cancelled)

    queue.enqueue("x")
    with Worker(queue, handler, concurrency=1) as worker:
        failed_in_time(queue, heard)
        until(lambda: how == [True, True])
        until(lambda: worker.status().running == 0)
        assert worker.status().failed == 2


def test_a_thread_is_told_left_behind_and_replaced(memory: Hub, heard: list[Event]) -> None:
    """With one slot: the message comes back and the next one runs, while the first thread still hangs."""
    queue = memory.queue("tasks", limited())
    free, told = threading.Event(), []

    def handler(message: Message, context: Context) -> str:
        if message.data == "fine":
            return "ran"
        told.append(context.wait_cancelled(30))
        free.wait(30)
        return "too late"

    receipt = queue.enqueue("hangs")
    try:
        with Worker(queue, handler, concurrency=1, grace=0) as worker:
            failed_in_time(queue, heard)
            assert told == [True, True]
    finally:
        free.set()
    assert queue.get(receipt.id).state is State.FAILED
    with Worker(queue, handler, concurrency=1, grace=0) as worker:
        fine = queue.enqueue("fine")
        until(lambda: queue.get(fine.id).result == "ran")
        until(lambda: worker.status().processed == 1)


def test_threads_that_hang_are_bounded(memory: Hub) -> None:
    """However many handlers hang, there are never more than twice as many threads as slots."""
    queue = memory.queue("tasks", limited(max_retries=0))
    free = threading.Event()
    most = 0

    def threads() -> int:
        return sum(one.name.startswith("brigade-slot") for one in threading.enumerate())

    def handler(message: Message) -> None:
        nonlocal most
        most = max(most, threads())
        free.wait(30)

    queue.enqueue_many(range(10))
    with Worker(queue, handler, concurrency=2, grace=0) as worker:
        until(lambda: queue.stats().failed == 4)
        assert threads() <= 4
        until(lambda: worker.status().running == 2)
        free.set()
        until(lambda: ended(queue))
        fine = queue.enqueue("fine")
        until(lambda: queue.get(fine.id).state is State.SUCCEEDED)
    assert most <= 4
    until(lambda: threads() == 0)


def test_a_process_is_killed_and_replaced(hub: Hub, tmp_path: Path) -> None:
    queue = hub.queue("tasks", limited(limit=1.0))
    place = tmp_path / "pid"
    receipt = queue.enqueue({"path": str(place)})
    with Worker(queue, worker_handlers.hang, executor="process", concurrency=1):
        until(lambda: queue.get(receipt.id).attempts >= 1 and place.exists() and place.read_text())
        first = int(place.read_text())
        until(lambda: ended(queue))
        assert queue.get(receipt.id).state is State.SUCCEEDED
        assert int(place.read_text()) != first
        until(lambda: not alive(first))
    assert queue.get(receipt.id).attempts == 2


def test_the_workers_limit_stands_before_the_policys(memory: Hub) -> None:
    queue = memory.queue("tasks", limited(max_retries=0, limit=600))
    queue.enqueue("x")
    with Worker(queue, lambda message: threading.Event().wait(5), execution_timeout=LIMIT, grace=0):
        until(lambda: queue.stats().failed == 1)


def test_a_handler_that_ends_in_time_is_not_touched(memory: Hub) -> None:
    queue = memory.queue("tasks", limited(limit=20))
    receipts = queue.enqueue_many(range(50))
    with Worker(queue, lambda message: message.data):
        until(lambda: ended(queue))
    assert [queue.get(one.id).result for one in receipts] == list(range(50))


def test_time_in_the_backlog_doesnt_count(memory: Hub) -> None:
    """Messages that were claimed ahead wait longer than the limit before they begin."""
    queue = memory.queue("tasks", limited(max_retries=0, limit=1.0))
    runs: list[Any] = []

    def handler(message: Message, context: Context) -> None:
        runs.append(message.data)
        context.wait_cancelled(0.05)

    queue.enqueue_many(range(40))
    with Worker(queue, handler, concurrency=1):
        until(lambda: ended(queue))
    assert queue.stats().succeeded == 40
    assert runs == list(range(40))


def test_results_of_a_handler_that_ignores_its_end_are_discarded(memory: Hub, running: list[Running]) -> None:
    """An async handler that swallows its cancellation and returns: the attempt has failed all the same."""
    queue = memory.queue("tasks", limited(max_retries=0))

    async def stubborn(message: Message) -> str:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            return "I was faster"
        return "never"

    receipt = queue.enqueue("x")
    with Worker(queue, stubborn, concurrency=1) as worker:
        until(lambda: queue.stats().failed == 1)
        until(lambda: worker.status().running == 0)
    assert queue.get(receipt.id).state is State.FAILED
    assert worker.status().processed == 0
