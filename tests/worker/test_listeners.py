"""Listeners: whatever they do, the queue and its workers go on; they hear everything in order."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from worker_support import AT_ONCE, ended, named, until

import brigade
from brigade import Event, Failure, Hub, Message, QueuePolicy, Worker

POLICY = QueuePolicy(visibility_timeout=1, backoff=AT_ONCE, failure=Failure("retry", 1000))


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), asyncio.CancelledError()], ids=repr)
def test_a_listener_that_raises_harms_nothing(memory: Hub, error: BaseException) -> None:
    queue = memory.queue("tasks", POLICY)
    heard: list[Event] = []
    memory.on("*", lambda event: _raise(error))
    memory.on("*", heard.append)
    queue.enqueue_many(range(20))
    with Worker(queue, lambda message: None):
        until(lambda: ended(queue))
    until(lambda: len(named(heard, "message-completed")) == 20)


def test_a_listener_that_blocks_holds_up_neither_handlers_nor_heartbeats(memory: Hub) -> None:
    """It runs on the hub's own thread; workers have theirs. What it has missed it hears afterwards, in order."""
    queue = memory.queue("tasks", POLICY)
    stuck, free = threading.Event(), threading.Event()
    heard: list[Event] = []

    def listener(event: Event) -> None:
        heard.append(event)
        if event.name == "message-processing" and not stuck.is_set():
            stuck.set()
            free.wait(30)

    queue.enqueue_many(range(20))
    runs: list[int] = []

    def handler(message: Message) -> None:
        runs.append(message.attempt)
        if message.data == 19:
            # Longer than the lease: somebody must extend it.
            threading.Event().wait(2.5)

    memory.on("*", listener)
    with Worker(queue, handler, concurrency=2) as worker:
        assert stuck.wait(30)
        until(lambda: worker.status().processed == 20)
        assert not free.is_set()
        free.set()
    until(lambda: len(named(heard, "message-completed")) == 20)
    assert runs == [1] * 20
    for id in {event.id for event in heard if event.id}:
        names = [event.name for event in heard if event.id == id and event.name != "message-enqueued"]
        assert names == ["message-claimed", "message-processing", "message-completed", "message-outcome"]


def test_async_listeners_hear_everything_and_may_be_slow_or_fail(memory: Hub) -> None:
    queue = memory.queue("tasks", POLICY)
    heard: list[str] = []

    async def slow(event: Event) -> None:
        await asyncio.sleep(0.05)
        heard.append(event.name)

    async def failing(event: Event) -> None:
        raise ValueError("no")

    memory.on("message-completed", failing)
    memory.on("message-completed", slow)
    queue.enqueue_many(range(30))
    with Worker(queue, lambda message: None):
        until(lambda: ended(queue))
    until(lambda: heard == ["message-completed"] * 30)


async def test_async_listeners_run_on_the_programs_loop() -> None:
    async with brigade.connect_async("memory://") as hub:
        queue = await hub.queue("tasks", POLICY)
        loops: set[object] = set()
        names: list[str] = []

        async def listener(event: Event) -> None:
            loops.add(asyncio.get_running_loop())
            names.append(event.name)

        hub.on("*", listener)
        await queue.enqueue("x")
        await Worker(queue, lambda message: None).serve(until_empty=True)
        async with asyncio.timeout(20):
            while "workers-stopped" not in names:
                await asyncio.sleep(0.01)
        assert loops == {asyncio.get_running_loop()}
        assert names[-1] == "workers-stopped"
        assert names.count("message-completed") == 1


def test_a_listener_may_be_taken_away_while_a_worker_runs(memory: Hub) -> None:
    queue = memory.queue("tasks", POLICY)
    heard: list[Event] = []
    stop = memory.on("message-completed", heard.append)
    with Worker(queue, lambda message: None):
        queue.enqueue("x")
        until(lambda: heard)
        stop()
        queue.enqueue("y")
        until(lambda: ended(queue))
    assert len(heard) == 1


def test_a_listener_may_stop_a_worker(memory: Hub) -> None:
    """From the hub's own thread, on which it runs."""
    queue = memory.queue("tasks", POLICY)
    worker = Worker(queue, lambda message: None)
    done = threading.Event()

    def listener(event: Event) -> None:
        worker.stop(grace=5)
        done.set()

    memory.on("message-completed", listener)
    worker.start()
    queue.enqueue("x")
    assert done.wait(30)
    assert worker.status().processed == 1
