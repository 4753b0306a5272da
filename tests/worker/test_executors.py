"""Slots and the engine decide at the same time: whoever is first, no slot is lost and none is made too much."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pytest
from worker_support import AT_ONCE, ended, until

import brigade
from brigade import Failure, Hub, Message, QueuePolicy, Worker
from brigade.worker.engine import Engine
from brigade.worker.executors import LoopSlots
from brigade.worker.jobs import Backlog, Job

POLICY = QueuePolicy(backoff=AT_ONCE, failure=Failure("retry", 0), visibility_timeout=30)


def slots() -> int:
    return sum(one.name.startswith("brigade-slot") for one in threading.enumerate())


def test_a_timeout_that_comes_as_the_handler_ends_adds_no_thread(memory: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine ends a job whose slot is through with it, before it has heard so."""
    queue = memory.queue("tasks", POLICY)
    real = Engine.report

    def report(engine: Engine, job: Job, outcome: Any) -> None:
        assert engine.executor is not None
        engine.executor.end(job)
        real(engine, job, outcome)

    monkeypatch.setattr(Engine, "report", report)
    queue.enqueue_many(range(30))
    with Worker(queue, lambda message: None, concurrency=3):
        until(lambda: ended(queue))
        assert slots() == 3


def test_a_task_that_is_cancelled_before_it_begins_frees_its_slot(memory: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = memory.queue("tasks", POLICY)
    taken: list[Any] = []
    real = Engine._began

    def began(engine: Engine, job: Job) -> None:
        real(engine, job)
        taken.append(job)
        if len(taken) == 1:
            assert isinstance(engine.executor, LoopSlots)
            engine.executor.end(job)

    async def handler(message: Message) -> str:
        return "ran"

    monkeypatch.setattr(Engine, "_began", began)
    queue.enqueue_many(range(3))
    with Worker(queue, handler, concurrency=1) as worker:
        until(lambda: ended(queue))
        until(lambda: worker.status().running == 0)
    assert queue.stats().failed == 1
    assert queue.stats().succeeded == 2


def test_timeouts_and_ends_at_the_same_moment_lose_nothing(memory: Hub) -> None:
    """Handlers take about as long as they may: each message ends exactly once, and all slots stay."""
    queue = memory.queue("tasks", QueuePolicy(backoff=AT_ONCE, failure=Failure("retry", 0), execution_timeout=0.05))
    queue.enqueue_many(range(120))
    told: list[str] = []
    memory.on("message-outcome", lambda event: told.append(event.id or ""))

    def handler(message: Message) -> None:
        time.sleep(0.04 + (message.data % 20) / 1000)

    with Worker(queue, handler, concurrency=4) as worker:
        until(lambda: ended(queue))
        until(lambda: len(told) == 120)
        until(lambda: slots() == 4)
        assert worker.status().processed + worker.status().failed == 120
    assert len(set(told)) == 120
    stats = queue.stats()
    assert stats.succeeded + stats.failed == 120


def test_stop_in_the_middle_of_anything_loses_nothing(memory: Hub) -> None:
    """[G1] Start and stop again and again under load: each message is handled to its end, attempts stay true."""
    queue = memory.queue("tasks", QueuePolicy(backoff=AT_ONCE, failure=Failure("retry", 0), visibility_timeout=600))
    receipts = queue.enqueue_many(range(400))
    runs: list[int] = []

    async def handler(message: Message) -> int:
        await asyncio.sleep(0.005)
        runs.append(message.data)
        return message.data

    turns = 0
    while not ended(queue):
        turns += 1
        with Worker(queue, handler, concurrency=4, grace=0 if turns % 2 else 5):
            time.sleep(0.02 * (turns % 5))
    assert turns > 1
    infos = [queue.get(one.id) for one in receipts]
    assert [info.result for info in infos] == list(range(400))
    assert {info.attempts for info in infos} == {1}


def test_a_handler_may_stop_its_own_worker(memory: Hub) -> None:
    """From inside a handler: what runs is let finish as far as it can, and the worker ends."""
    queue = memory.queue("tasks", POLICY)
    stopped = threading.Event()

    def handler(message: Message) -> None:
        if message.data == "last":
            threading.Thread(target=lambda: (worker.stop(), stopped.set())).start()

    worker = Worker(queue, handler, concurrency=1)
    worker.start()
    queue.enqueue_many(["first", "last", "later", "later"])
    assert stopped.wait(30)
    assert worker.status().running == 0
    assert queue.stats().in_flight == 0


def test_interrupting_stop_leaves_no_slot_behind(memory: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of `stop()`: threads end all the same."""
    queue = memory.queue("tasks", POLICY)
    worker = Worker(queue, lambda message: None, concurrency=3)
    worker.start()
    until(lambda: slots() == 3)

    real = brigade.Hub.call

    def call(hub: brigade.Hub, work: Any) -> Any:
        if work.__qualname__ == "Engine.stop":
            work.close()
            raise KeyboardInterrupt
        return real(hub, work)

    monkeypatch.setattr(brigade.Hub, "call", call)
    with pytest.raises(KeyboardInterrupt):
        worker.stop()
    until(lambda: slots() == 0)


def test_a_hub_closes_while_a_time_limit_of_somebody_runs_out() -> None:
    """Who waits with a time limit looks cancelled for a moment when it is over: a close is not to wait for them."""
    hub = brigade.connect("memory://")
    closing: list[asyncio.Task[None]] = []

    async def wait_on() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await asyncio.Event().wait()
        await asyncio.Event().wait()

    limits: list[asyncio.Timeout] = []
    hub.submit(wait_on())
    until(lambda: limits)

    def go() -> None:
        loop = asyncio.get_running_loop()
        limits[0].reschedule(loop.time())
        closing.append(loop.create_task(hub._settle_down()))

    hub.soon(go)
    until(lambda: closing and closing[0].done())
    hub._stop_loop()


def test_a_slot_that_was_woken_alone_gets_help_when_handlers_turn_slow(
    memory: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of very fast handlers one thread does most. Four that wait for each other need four threads."""
    monkeypatch.setattr("brigade.worker.jobs.QUICK", 1.0)
    alone: list[bool] = []
    real = Backlog.put

    def put(backlog: Backlog, *given: Any) -> bool:
        alone.append(real(backlog, *given))
        return alone[-1]

    monkeypatch.setattr(Backlog, "put", put)
    queue = memory.queue("tasks", POLICY)
    together = threading.Barrier(4)

    def handler(message: Message) -> None:
        if message.data == "together":
            together.wait(30)

    queue.enqueue_many(range(2000))
    with Worker(queue, handler, concurrency=4):
        until(lambda: ended(queue))
        alone.clear()
        queue.enqueue_many(["together"] * 4)
        until(lambda: ended(queue))
    assert alone[0]
    assert queue.stats().succeeded == 2004
