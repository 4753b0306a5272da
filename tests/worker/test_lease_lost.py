"""Leases that are lost: the handler is told, `lease-lost` is emitted, and its result counts for nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import worker_handlers
from worker_support import AT_ONCE, Faults, ended, named, until

import brigade
from brigade import AsyncContext, Context, Event, Extend, Failure, Hub, Message, Queue, QueuePolicy, Worker

LEASE = 0.6
SHORT = QueuePolicy(visibility_timeout=LEASE, backoff=AT_ONCE, failure=Failure("retry", 1000))


class Thief:
    """Keeps a worker from extending its leases until somebody else has its messages."""

    def __init__(self, faults: Faults, worker_id: str) -> None:
        self._faults = faults
        self._of = worker_id

    def _rule(self, name: str, settlements: list[Any]) -> None:
        if any(one.message.lease.owner == self._of for one in settlements):
            raise brigade.StoreUnavailable("no answer; try again later")

    def cut_off(self) -> None:
        self._faults.on("settle", self._rule)
        self._faults.on("claim", self._claim_rule)

    def _claim_rule(self, name: str, *, owner: str, **_: Any) -> None:
        if owner == self._of:
            raise brigade.StoreUnavailable("no answer; try again later")

    def leave(self) -> None:
        self._faults.off()

    def steal(self, queue: Queue, count: int = 1) -> list[Message]:
        """Claim what the worker can't hold on to, then let it speak to the store again."""
        taken: list[Message] = []
        until(lambda: taken.extend(queue.claim(count, owner="thief", visibility=600)) or len(taken) >= count)
        self._faults.off("settle")
        return taken


@pytest.fixture
def thief(faults: Faults) -> Thief:
    return Thief(faults, "victim")


def test_a_thread_is_told_and_its_result_is_discarded(memory: Hub, thief: Thief) -> None:
    """[G2] `context.cancelled` turns true; what the handler returns is refused; the slot is free again."""
    queue = memory.queue("tasks", SHORT)
    heard: list[Event] = []
    memory.on("*", heard.append)
    began, told = threading.Event(), threading.Event()

    def handler(message: Message, context: Context) -> str:
        if message.data == "next":
            return "next"
        began.set()
        if context.wait_cancelled(30) and context.cancelled:
            told.set()
        return "too late"

    receipt = queue.enqueue("x")
    with Worker(queue, handler, concurrency=1, worker_id="victim") as worker:
        began.wait(30)
        thief.cut_off()
        (message,) = thief.steal(queue)
        assert message.attempt == 2
        assert told.wait(20)
        thief.leave()
        following = queue.enqueue("next")
        until(lambda: queue.get(following.id).result == "next")
        assert worker.status().lost == 1
        queue.ack(message, result="stolen")
    (lost,) = named(heard, "lease-lost")
    assert lost.id == receipt.id
    assert lost.fields == {
        "worker_id": "victim",
        "attempt": 1,
        "correlation_id": receipt.correlation_id,
        "lease_version": message.lease.version - 1,
    }
    assert queue.get(receipt.id).result == "stolen"
    assert [event.fields["status"] for event in named(heard, "message-outcome") if event.id == receipt.id] == [
        "processed"
    ]


def test_an_async_handler_is_cancelled(memory: Hub, thief: Thief) -> None:
    queue = memory.queue("tasks", SHORT)
    began = threading.Event()
    how: list[object] = []

    async def handler(message: Message, context: AsyncContext) -> str:
        began.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            how.append(context.cancelled)
            raise
        return "too late"

    receipt = queue.enqueue("x")
    with Worker(queue, handler, concurrency=1, worker_id="victim") as worker:
        began.wait(30)
        thief.cut_off()
        (message,) = thief.steal(queue)
        until(lambda: how == [True])
        queue.ack(message, result="stolen")
        until(lambda: worker.status().running == 0)
    assert queue.get(receipt.id).result == "stolen"
    assert worker.status().lost == 1
    assert worker.status().failed == 0


@pytest.mark.parametrize("handler", [worker_handlers.until_cancelled, worker_handlers.until_cancelled_async])
def test_a_process_is_told_and_goes_on_to_the_next_message(
    handler: Any, hub: Hub, tmp_path: Path, thief: Thief
) -> None:
    """`def` handlers see `context.cancelled`, `async def` ones are cancelled; the process is used again."""
    queue = hub.queue("tasks", SHORT)
    place = tmp_path / "told"
    queue.enqueue({"path": str(place)})
    with Worker(queue, handler, executor="process", concurrency=1, worker_id="victim", grace=0) as worker:
        until(place.exists)
        thief.cut_off()
        (message,) = thief.steal(queue)
        until(lambda: "cancelled" in place.read_text())
        queue.ack(message)
        until(lambda: worker.status().running == 0)
        assert worker.status().lost == 1
        thief.leave()
        queue.enqueue({"path": str(tmp_path / "next")})
        until((tmp_path / "next").exists)
        pids = {line.split()[2] for one in ("told", "next") for line in (tmp_path / one).read_text().splitlines()}
        assert len(pids) == 1


def test_messages_ahead_that_others_took_are_not_run(memory: Hub, thief: Thief) -> None:
    queue = memory.queue("tasks", SHORT)
    ran: list[object] = []
    free = threading.Event()

    def handler(message: Message) -> None:
        ran.append(message.data)
        if message.data == "block":
            free.wait(30)

    queue.enqueue_many(range(50))
    with Worker(queue, handler, concurrency=1, prefetch=60, worker_id="victim") as worker:
        until(lambda: ended(queue))
        queue.enqueue_many(["block", *range(100, 110)])
        until(lambda: worker.status().waiting == 10)
        thief.cut_off()
        taken = thief.steal(queue, 11)
        until(lambda: worker.status().lost == 11)
        free.set()
        until(lambda: worker.status().running == 0)
        queue.ack_many(taken)
        thief.leave()
        queue.enqueue("after")
        until(lambda: "after" in ran)
    assert ran == [*range(50), "block", "after"]


def test_a_lost_handlers_time_is_limited_as_well(memory: Hub, thief: Thief) -> None:
    """A handler that doesn't listen keeps its slot no longer than `execution_timeout`."""
    queue = memory.queue("tasks", SHORT)
    began, free = threading.Event(), threading.Event()

    def deaf(message: Message) -> None:
        if message.data == "x":
            began.set()
            free.wait(40)

    queue.enqueue("x")
    with Worker(queue, deaf, concurrency=1, worker_id="victim", execution_timeout=3, grace=0) as worker:
        began.wait(30)
        thief.cut_off()
        (message,) = thief.steal(queue)
        queue.ack(message)
        until(lambda: worker.status().lost == 1)
        thief.leave()
        following = queue.enqueue("next")
        try:
            until(lambda: queue.get(following.id).state is brigade.State.SUCCEEDED)
        finally:
            free.set()


def test_a_worker_that_takes_its_own_expired_message_again_tells_the_first_handler(memory: Hub, faults: Faults) -> None:
    """Its heartbeats fail, its claims don't: it runs the message anew, and the run before counts for nothing."""
    queue = memory.queue("tasks", SHORT)
    heard: list[Event] = []
    memory.on("*", heard.append)
    told: list[tuple[int, bool]] = []
    free = threading.Event()

    def handler(message: Message, context: Context) -> int:
        if message.attempt == 1:
            told.append((1, context.wait_cancelled(20)))
        else:
            free.wait(30)
        return message.attempt

    def no_extensions(name: str, settlements: list[Any]) -> None:
        if any(isinstance(one, Extend) for one in settlements):
            raise brigade.StoreUnavailable("no extensions; try again later")

    receipt = queue.enqueue("x")
    faults.on("settle", no_extensions)
    with Worker(queue, handler, concurrency=2, worker_id="victim", grace=0):
        until(lambda: len(named(heard, "message-processing")) >= 2)
        faults.off()
        try:
            until(lambda: told == [(1, True)])
            assert len(named(heard, "lease-lost")) >= 1
            # The second run is held by heartbeats, whatever became of the first.
            for _ in range(3):
                version = queue.get(receipt.id).lease_expires_at_ms
                until(lambda version=version: queue.get(receipt.id).lease_expires_at_ms != version)
            assert queue.get(receipt.id).attempts == 2
        finally:
            free.set()
        until(lambda: ended(queue))
    assert queue.get(receipt.id).result == 2


def test_an_attempt_that_begins_while_the_one_before_is_being_settled_is_held(
    memory: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A retry comes back to the same worker while the batch that gave it back still waits for another segment."""
    queue = memory.queue("tasks", SHORT)
    released, free = threading.Event(), threading.Event()
    began: list[int] = []

    def handler(message: Message) -> None:
        began.append(message.attempt)
        if message.attempt == 1:
            raise ValueError("again, at once")
        free.wait(30)

    receipt = queue.enqueue("fails")
    real = brigade.AsyncQueue.settle_each

    async def slow_answer(self: brigade.AsyncQueue, settlements: Any) -> Any:
        wanted = list(settlements)
        answers = await real(self, wanted)
        if any(isinstance(one, brigade.Nack) for one in wanted):
            # Another segment of the same batch takes its time.
            while len(began) < 2:
                await asyncio.sleep(0.01)
            released.set()
        return answers

    monkeypatch.setattr(brigade.AsyncQueue, "settle_each", slow_answer)
    with Worker(queue, handler, concurrency=2, worker_id="victim", grace=0) as worker:
        until(lambda: len(began) >= 2)
        assert released.wait(20)
        end = time.monotonic() + 3 * LEASE
        until(lambda: time.monotonic() > end)
        free.set()
        until(lambda: ended(queue))
        assert worker.status().lost == 0
    assert began == [1, 2], "its lease ran out: nobody extended it"
    assert queue.get(receipt.id).attempts == 2


def test_a_queue_that_is_deleted_under_a_worker_is_a_lost_lease(memory: Hub) -> None:
    queue = memory.queue("tasks", SHORT)
    began = threading.Event()
    told: list[bool] = []

    def handler(message: Message, context: Context) -> None:
        began.set()
        told.append(context.wait_cancelled(30))

    queue.enqueue("x")
    with Worker(queue, handler, worker_id="victim", grace=0) as worker:
        began.wait(30)
        queue.delete()
        until(lambda: told == [True])
        until(lambda: worker.status().lost == 1)
        again = memory.queue("tasks", SHORT)
        again.enqueue("y")
        until(lambda: again.stats().in_flight)
