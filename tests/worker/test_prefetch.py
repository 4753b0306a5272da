"""Claiming ahead: fast handlers cost few requests, slow ones don't hoard, an idle worker is quiet."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from worker_support import AT_ONCE, ended, until

import brigade
from brigade import Hub, Message, QueuePolicy, Worker
from brigade.blobs.disk import DiskBlobs
from brigade.blobs.memory import MemoryBlobs
from brigade.stores.bucket import store

LONG = QueuePolicy(visibility_timeout=600, backoff=AT_ONCE)


def total(hub: Hub) -> int:
    return sum(hub.requests().values())


def test_fast_handlers_cost_a_fraction_of_a_request_a_message(hub: Hub) -> None:
    """3,000 messages in segments of a hundred, from claim to history."""
    queue = hub.queue("tasks", LONG)
    for _ in range(30):
        queue.enqueue_many(range(100))
    before = total(hub)
    with Worker(queue, lambda message: None):
        until(lambda: ended_quietly(hub, queue, 3000))
    spent = total(hub) - before
    assert queue.stats().succeeded == 3000
    assert spent / 3000 <= 0.2, f"{spent} requests"


def ended_quietly(hub: Hub, queue: brigade.Queue, count: int) -> bool:
    """Whether `count` messages are through, without a request that would be counted."""
    seen = getattr(hub, "_seen_by_test", None)
    if seen is None:
        seen = []
        hub.on("message-completed", lambda event: seen.append(event.id))
        hub._seen_by_test = seen  # pyright: ignore[reportAttributeAccessIssue]
    return len(seen) >= count


def test_a_long_handler_doesnt_keep_other_slots_from_working(memory: Hub) -> None:
    queue = memory.queue("tasks", LONG)
    free, began = threading.Event(), threading.Event()

    def handler(message: Message) -> object:
        if message.data == "long":
            began.set()
            free.wait(40)
        return message.data

    with Worker(queue, handler, concurrency=8):
        queue.enqueue("long")
        assert began.wait(30)
        try:
            for turn in range(3):
                short = queue.enqueue(turn)
                until(lambda short=short: queue.get(short.id).state is brigade.State.SUCCEEDED)
        finally:
            free.set()


def test_all_slots_are_filled_one_by_one(memory: Hub) -> None:
    """Messages come one after the other, each runs long: at the end all eight run at once."""
    queue = memory.queue("tasks", LONG)
    together = threading.Barrier(9)

    def handler(message: Message) -> None:
        together.wait(40)

    with Worker(queue, handler, concurrency=8) as worker:
        for count in range(1, 9):
            queue.enqueue(count)
            until(lambda count=count: worker.status().running == count)
        together.wait(40)
        until(lambda: ended(queue))


def test_slow_handlers_dont_hoard(memory: Hub) -> None:
    """A worker with four slots and slow handlers holds a few messages; a second worker gets the others."""
    queue = memory.queue("tasks", LONG)
    free = threading.Event()
    queue.enqueue_many(range(100))
    with Worker(queue, lambda message: free.wait(40), concurrency=4, worker_id="slow") as worker:
        until(lambda: worker.status().running == 4)
        assert queue.stats().in_flight <= 8
        with Worker(queue, lambda message: None, worker_id="fast") as fast:
            until(lambda: fast.status().processed >= 90)
        free.set()
        until(lambda: ended(queue))


def test_a_worker_whose_handlers_become_slow_gives_back_what_it_has_too_much_of(memory: Hub) -> None:
    queue = memory.queue("tasks", LONG)
    free = threading.Event()

    def handler(message: Message) -> None:
        if message.data >= 500:
            free.wait(40)

    queue.enqueue_many(range(1500))
    with Worker(queue, handler, concurrency=2, worker_id="slow") as worker:
        until(lambda: worker.status().running == 2 and worker.status().waiting > 0)
        until(lambda: worker.status().waiting <= 8)
        with Worker(queue, lambda message: None, worker_id="fast") as fast:
            until(lambda: fast.status().processed >= 900)
        free.set()
        until(lambda: ended(queue))
        assert worker.status().released > 0
    assert queue.stats().succeeded == 1500
    infos = {one.attempts for one in queue.peek(10)}
    assert infos == set()


def test_prefetch_can_be_turned_off(memory: Hub) -> None:
    queue = memory.queue("tasks", LONG)
    most = 0

    def handler(message: Message) -> None:
        nonlocal most
        most = max(most, worker.status().running + worker.status().waiting)

    queue.enqueue_many(range(200))
    worker = Worker(queue, handler, concurrency=2, prefetch=0)
    with worker:
        until(lambda: ended(queue))
    assert most <= 2


def test_max_prefetch_bounds_what_is_claimed_at_once(memory: Hub) -> None:
    queue = memory.queue("tasks", LONG)
    most = 0

    def handler(message: Message) -> None:
        nonlocal most
        most = max(most, worker.status().waiting)

    queue.enqueue_many(range(500))
    worker = Worker(queue, handler, concurrency=1, max_prefetch=5)
    with worker:
        until(lambda: ended(queue))
    assert most <= 10


FASTER = 60
"""How much faster than real time the idle worker's intervals run."""


@pytest.mark.parametrize("kind", ["memory", "file with watcher", "file, polling"])
def test_an_idle_worker_makes_at_most_twelve_requests_a_minute(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner in (DiskBlobs, MemoryBlobs):
        monkeypatch.setattr(owner, "poll_interval", owner.poll_interval / FASTER)
    for name in ("FIRST_POLL", "SAFETY_POLL"):
        monkeypatch.setattr(store, name, getattr(store, name) / FASTER)
    place = "memory://" if kind == "memory" else f"file://{tmp_path}/jobs?fsync=off&watch={'watcher' in kind}"
    with brigade.connect(place) as hub:
        queue = hub.queue("tasks")
        queue.enqueue_many(range(10))
        with Worker(queue, lambda message: None) as worker:
            until(lambda: worker.status().processed == 10)
            minute(FASTER)
            before = total(hub)
            minute(FASTER)
            spent = total(hub) - before
        assert spent <= 12, hub.requests()


def minute(faster: int) -> None:
    """A minute, in the time of a test that runs so much faster."""
    end = time.monotonic() + 60 / faster
    until(lambda: time.monotonic() > end)


def test_a_worker_that_idles_is_woken_by_an_enqueue(memory: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """No poll for an hour: what is enqueued through the same hub is told to its workers."""
    monkeypatch.setattr(MemoryBlobs, "poll_interval", 3600.0)
    for name in ("FIRST_POLL", "SAFETY_POLL"):
        monkeypatch.setattr(store, name, 3600.0)
    queue = memory.queue("tasks")
    seen: list[Any] = []
    with Worker(queue, lambda message: seen.append(message.data)):
        for turn in range(5):
            queue.enqueue(turn, group="g" if turn % 2 else None)
            until(lambda turn=turn: seen[-1:] == [turn])
