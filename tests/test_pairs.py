"""An ack and the claim that follows it, made in one call: one commit where commits are dear, and nothing in between."""

from __future__ import annotations

import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade import StaleLease, State
from brigade.blobs import UNKNOWN, Op, Swap, sqlite
from brigade.blobs.sqlite import SqliteBlobs
from brigade.stores.bucket import prompt
from brigade.stores.bucket.store import BucketStore

COUNT = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def hub(path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[brigade.Hub, None, None]:
    """On a system that doesn't tell when the machine was started, so that claims can't be pledged."""
    monkeypatch.setattr(sqlite, "machine_life", lambda: "")
    with brigade.connect(f"sqlite://{path}") as hub:
        yield hub


@pytest.fixture
def queue(hub: brigade.Hub, monkeypatch: pytest.MonkeyPatch) -> brigade.Queue:
    """Filled, listed, and with nothing to tidy up meanwhile."""
    monkeypatch.setattr(SqliteBlobs, "listing_ttl", 60.0)
    queue = hub.queue("tasks")
    for number in range(COUNT):
        queue.enqueue(number)
    queue.ack(queue.claim()[0])
    return queue


def blobs_of(queue: brigade.Queue) -> SqliteBlobs:
    store = queue.asynchronous.hub.store
    assert isinstance(store, BucketStore)
    assert isinstance(store.blobs, SqliteBlobs)
    return store.blobs


def test_are_one_commit(queue: brigade.Queue) -> None:
    (held,) = queue.claim()
    blobs = blobs_of(queue)
    before, requests = blobs.commits, Counter(blobs.requests())
    for number in range(2, COUNT):
        (held,) = queue.claim(ack=held)
        assert (held.data, held.attempt) == (number, 1)
    # Now and then the hub's own thread is awake, to write history: then they are two.
    assert COUNT - 2 <= blobs.commits - before <= COUNT + 8
    made = Counter(blobs.requests()) - requests
    assert (made["swap"], made["get"]) == (COUNT - 2, COUNT - 2)


def test_where_nothing_is_left_the_ack_is_made_alone(queue: brigade.Queue) -> None:
    held = queue.claim()[0]
    for _ in range(2, COUNT):
        (held,) = queue.claim(ack=held)
    assert queue.claim(ack=held) == []
    assert queue.get(held.id).state is State.SUCCEEDED
    with pytest.raises(StaleLease):
        queue.claim(ack=held)


def test_who_may_not_ack_holds_nothing(queue: brigade.Queue, path: Path) -> None:
    """The store of this process still takes the lease for its own: both writes go out, and one is taken back."""
    (late,) = queue.claim(visibility=0.001)
    with brigade.connect(f"sqlite://{path}") as other:
        (current,) = other.queue("tasks").claim(wait=5)
        assert current.id == late.id
        with pytest.raises(StaleLease):
            queue.claim(ack=late)
        (following,) = queue.claim(wait=5)
        assert (following.data, following.attempt) == (2, 1)
        other.queue("tasks").ack(current)


@pytest.mark.parametrize("applied", [True, False])
def test_an_ack_in_doubt_is_looked_into(queue: brigade.Queue, monkeypatch: pytest.MonkeyPatch, applied: bool) -> None:
    """[G3] Whether it was carried out or not, in the end it was; and one message is held."""
    (held,) = queue.claim()
    real, doubts = SqliteBlobs.try_all, [UNKNOWN]

    def doubtful(self: SqliteBlobs, ops: list[Op]) -> list[object]:
        if not doubts or not isinstance(ops[0], Swap):
            return list(real(self, ops))
        answers = list(real(self, ops if applied else ops[1:]))
        return [doubts.pop(), *answers[applied:]]

    monkeypatch.setattr(SqliteBlobs, "try_all", doubtful)
    (following,) = queue.claim(ack=held)
    assert not doubts
    assert following.data == 2
    assert queue.get(held.id).state is State.SUCCEEDED
    assert queue.stats().in_flight == 1


def test_another_process_that_writes_is_waited_for(queue: brigade.Queue, path: Path) -> None:
    (held,) = queue.claim()
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        going_on = pool.submit(queue.claim, ack=held)
        threading.Event().wait(0.05)
        assert not going_on.done()
        other.execute("ROLLBACK")
        (following,) = going_on.result(60)
    other.close()
    assert following.data == 2
    assert queue.get(held.id).state is State.SUCCEEDED


def test_an_interrupt_leaves_the_ack_and_gives_the_claim_back(
    queue: brigade.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    (held,) = queue.claim()
    real = prompt.first_message

    def interrupted(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(prompt, "first_message", interrupted)
    with suppress(KeyboardInterrupt):
        queue.claim(ack=held)
        pytest.fail("the interrupt went unnoticed")
    monkeypatch.undo()
    assert queue.get(held.id).state is State.SUCCEEDED
    while queue.stats().in_flight:
        pass
    (following,) = queue.claim()
    assert (following.data, following.attempt) == (2, 1)


@pytest.mark.parametrize("kind", ["memory", "file", "sqlite"])
def test_threads_lose_nothing_and_get_nothing_twice(kind: str, tmp_path: Path) -> None:
    threads, count = 6, 200
    with brigade.connect("memory://" if kind == "memory" else f"{kind}://{tmp_path}/jobs?fsync=false") as hub:
        queue = hub.queue("tasks")
        for number in range(count):
            queue.enqueue(number)
        taken: list[int] = []

        def work() -> None:
            held: brigade.Message | None = None
            while messages := queue.claim(ack=held):
                (held,) = messages
                taken.append(held.data)

        with ThreadPoolExecutor(threads) as pool:
            for one in [pool.submit(work) for _ in range(threads)]:
                one.result(60)
        assert sorted(taken) == list(range(count))
        stats = queue.stats()
        assert (stats.succeeded, stats.ready, stats.in_flight) == (count, 0, 0)
