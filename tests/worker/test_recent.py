"""What a worker has just processed isn't processed again because its ack was lost."""

from __future__ import annotations

from typing import Any

import pytest
from worker_support import AT_ONCE, Faults, ended, named, until

import brigade
from brigade import Ack, Event, Extend, Failure, Hub, Message, Queue, QueuePolicy, Worker
from brigade.recent import MOST, Recent

SHORT = QueuePolicy(visibility_timeout=0.5, backoff=AT_ONCE, failure=Failure("retry", 1000))


class LostAcks:
    """Acks and extensions don't get through until a message has been claimed so many times."""

    def __init__(self, hub: Hub, faults: Faults) -> None:
        self.claims: list[str | None] = []
        self.events: list[Event] = []
        hub.on("*", self.events.append)
        hub.on("message-claimed", lambda event: self.claims.append(event.id))
        self._faults = faults

    def until_claimed(self, count: int) -> None:
        def rule(name: str, settlements: list[Any]) -> None:
            if len(self.claims) < count and any(isinstance(one, Ack | Extend) for one in settlements):
                raise brigade.StoreUnavailable("no answer; try again later")

        self._faults.on("settle", rule)


@pytest.fixture
def lost(memory: Hub, faults: Faults) -> LostAcks:
    return LostAcks(memory, faults)


@pytest.fixture
def queue(memory: Hub) -> Queue:
    return memory.queue("tasks", SHORT)


def test_a_message_whose_ack_was_lost_is_acked_again_not_handled_again(queue: Queue, lost: LostAcks) -> None:
    runs: list[int] = []

    def handler(message: Message) -> dict[str, int]:
        runs.append(message.attempt)
        return {"attempt": message.attempt}

    lost.until_claimed(2)
    receipt = queue.enqueue("x")
    with Worker(queue, handler, concurrency=2) as worker:
        until(lambda: ended(queue))
        until(lambda: worker.status().processed == 1)
    assert runs == [1]
    info = queue.get(receipt.id)
    assert info.attempts == 2
    assert info.result == {"attempt": 1}, "the result of the run that there was"
    assert [event.fields["status"] for event in named(lost.events, "message-outcome")] == ["processed"]


def test_another_worker_of_the_hub_knows_it_too(queue: Queue, lost: LostAcks) -> None:
    """What a process has processed is known to all its workers, also to those that start later."""
    runs: list[int] = []
    lost.until_claimed(2)
    queue.enqueue("x")
    first = Worker(queue, lambda message: runs.append(message.attempt), concurrency=1)
    first.start()
    until(lambda: runs)
    with Worker(queue, lambda message: runs.append(message.attempt), concurrency=1):
        until(lambda: ended(queue))
    first.stop()
    assert runs == [1]


@pytest.mark.parametrize("how", ["no cache", "cleared"])
def test_without_the_memory_it_is_handled_again(queue: Queue, lost: LostAcks, how: str) -> None:
    runs: list[int] = []
    lost.until_claimed(2)
    queue.enqueue("x")
    ttl = 0 if how == "no cache" else 300
    with Worker(queue, lambda message: runs.append(message.attempt), concurrency=2, processed_cache_ttl=ttl):
        if how == "cleared":
            until(lambda: _remembered(queue))
            queue.clear_queue_cache()
        until(lambda: ended(queue))
    assert runs == [1, 2]


def _remembered(queue: Queue) -> int:
    return len(queue.asynchronous.hub.processed._done)


def test_a_failed_attempt_is_not_remembered(queue: Queue) -> None:
    runs: list[int] = []

    def handler(message: Message) -> None:
        runs.append(message.attempt)
        if message.attempt < 3:
            raise ValueError("again")

    queue.enqueue("x")
    with Worker(queue, handler):
        until(lambda: ended(queue))
    assert runs == [1, 2, 3]


def test_a_redriven_message_is_handled_anew(memory: Hub) -> None:
    queue = memory.queue("tasks", QueuePolicy(failure=Failure("retry", 0)))
    runs: list[str] = []

    def handler(message: Message) -> str:
        runs.append("run")
        if len(runs) == 1:
            raise ValueError("no")
        return "yes"

    queue.enqueue("x", id="mine")
    with Worker(queue, handler):
        until(lambda: len(queue.failed()) == 1)  # It counts as failed a moment before it is kept as that.
        assert queue.redrive() == 1
        until(lambda: queue.stats().succeeded == 1)
    assert len(runs) == 2


def test_what_is_remembered_is_bounded_and_runs_out() -> None:
    recent = Recent()
    for number in range(MOST + 500):
        recent.remember("tasks", str(number), number, now=0.0, ttl=10.0)
    assert recent.known("tasks", "0", 5.0) is None
    assert recent.known("tasks", "499", 5.0) is None
    assert recent.known("tasks", "500", 5.0) == (500,)
    assert recent.known("tasks", str(MOST), 10.5) is None
    recent.remember("other", "1", None, now=4.0, ttl=10.0)
    recent.forget("tasks")
    assert recent.known("tasks", "600", 5.0) is None
    assert recent.known("other", "1", 5.0) == (None,)


def test_what_has_run_out_makes_room_for_what_is_new() -> None:
    recent = Recent()
    for second in range(1000):
        recent.remember("tasks", str(second), None, now=second, ttl=10.0)
    assert len(recent) <= 12
    recent.remember("tasks", "995", None, now=1000.0, ttl=10.0)
    recent.remember("tasks", "late", None, now=1007.0, ttl=10.0)
    assert recent.known("tasks", "995", 1007.0) == (None,), "handled again, remembered anew"
