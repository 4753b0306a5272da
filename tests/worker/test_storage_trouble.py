"""A store that fails for a while: the worker goes on, says so once, and loses nothing; its parts are restarted."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from worker_support import AT_ONCE, PATIENT, Faults, ended, named, until

import brigade
from brigade import Ack, Event, Extend, Failure, Hub, Message, QueuePolicy, Restart, StoreUnavailable, Worker
from brigade.blobs import Op, Swap
from brigade.blobs.memory import MemoryBlobs
from brigade.worker.heartbeat import Heartbeat
from brigade.worker.settling import Settler

QUICK = Restart(base=0.02, maximum=0.1)
LONG = QueuePolicy(visibility_timeout=600, backoff=AT_ONCE, failure=Failure("retry", 1000))


class Outage:
    """Lets every operation of memory stores in this process fail while it is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        self.failures = 0
        real = MemoryBlobs.try_now

        def try_now(blobs: MemoryBlobs, op: Op) -> object:
            if self.on:
                self.failures += 1
                raise StoreUnavailable("the store is away; try again later")
            return real(blobs, op)

        monkeypatch.setattr(MemoryBlobs, "try_now", try_now)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    return Outage(monkeypatch)


def said(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "brigade.worker" and what in one.getMessage()]


def test_an_outage_is_said_once_and_survived(memory: Hub, outage: Outage, caplog: pytest.LogCaptureFixture) -> None:
    """[G1] Claims, heartbeats and settlements all fail, many times; then everything goes on where it was."""
    queue = memory.queue("tasks", QueuePolicy(visibility_timeout=1, backoff=AT_ONCE, failure=Failure("retry", 1000)))
    receipts = queue.enqueue_many(range(40))
    began, free = threading.Event(), threading.Event()

    def handler(message: Message) -> int:
        if message.data == 0:
            began.set()
            free.wait(30)
        return message.data

    with caplog.at_level(logging.INFO), Worker(queue, handler, concurrency=4, restart=QUICK, linger=0):
        assert began.wait(30)
        outage.on = True
        free.set()
        until(lambda: outage.failures >= 30)
        outage.on = False
        until(lambda: ended(queue))
        more = queue.enqueue("after")
        until(lambda: queue.get(more.id).result == "after")
    assert [queue.get(one.id).result for one in receipts] == list(range(40))
    for part in ("claiming from", "settling in", "extending leases"):
        begins = [line for line in said(caplog, part) if "failed" in line]
        over = [line for line in said(caplog, part) if "works again" in line]
        assert len(over) <= len(begins) <= 1, (part, begins, over)
    assert said(caplog, "works again")
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a file system takes rights that this user lacks")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_disk_that_is_full_for_a_while(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """[G1] Acks can't be written until there is room again."""
    with brigade.connect(f"file://{small_disk}/jobs", fsync=False) as hub:
        queue = hub.queue("tasks", PATIENT)
        receipts = queue.enqueue_many(range(20))
        began, free = threading.Event(), threading.Event()

        def handler(message: Message) -> int:
            began.set()
            free.wait(30)
            return message.data

        with Worker(queue, handler, concurrency=2, restart=QUICK):
            assert began.wait(30)
            with (small_disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
                while ballast.write(b"x" * 4096):
                    pass
            free.set()
            until(lambda: said(caplog, "settling in queue tasks failed"))
            (small_disk / "ballast").unlink()
            until(lambda: ended(queue))
        assert [queue.get(one.id).result for one in receipts] == list(range(20))
        assert {queue.get(one.id).attempts for one in receipts} == {1}


def test_a_worker_that_cant_reach_the_store_stops_nevertheless(memory: Hub, outage: Outage, monkeypatch: Any) -> None:
    """Its messages come back when their leases run out."""
    from brigade.worker import engine

    monkeypatch.setattr(engine, "FLUSH_WITHIN", 0.3)
    queue = memory.queue("tasks", QueuePolicy(visibility_timeout=0.5, backoff=AT_ONCE, failure=Failure("retry", 10)))
    receipt = queue.enqueue("x")
    began = threading.Event()

    def handler(message: Message) -> str:
        began.set()
        until(lambda: outage.on)
        return "first"

    worker = Worker(queue, handler, restart=QUICK, processed_cache_ttl=0, grace=0.5)
    worker.start()
    assert began.wait(30)
    outage.on = True
    worker.stop()
    outage.on = False
    with Worker(queue, lambda message: "second", processed_cache_ttl=0):
        until(lambda: ended(queue))
    assert queue.get(receipt.id).result == "second"


def test_one_segment_that_fails_doesnt_spoil_the_others(memory: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch over several segments, one of whose swaps fails at first: each message ends once, and is told once."""
    queue = memory.queue("tasks", LONG)
    heard: list[Event] = []
    memory.on("*", heard.append)
    receipts = [queue.enqueue(n) for n in range(6)]
    together = threading.Barrier(6)
    troubled = receipts[3].ref.rpartition("-")[0]
    failed: list[str] = []
    real = MemoryBlobs.try_now
    armed = threading.Event()

    def try_now(blobs: MemoryBlobs, op: Op) -> object:
        if armed.is_set() and isinstance(op, Swap) and troubled.partition("-")[2] in op.key and len(failed) < 3:
            failed.append(op.key)
            raise StoreUnavailable("this one not; try again later")
        return real(blobs, op)

    def handler(message: Message) -> int:
        together.wait(30)
        armed.set()
        return message.data

    monkeypatch.setattr(MemoryBlobs, "try_now", try_now)
    with Worker(queue, handler, concurrency=6, restart=QUICK) as worker:
        until(lambda: ended(queue))
        until(lambda: worker.status().processed == 6)
    assert len(failed) == 3
    assert worker.status().lost == 0
    assert sorted(event.id or "" for event in named(heard, "message-completed")) == sorted(one.id for one in receipts)
    assert named(heard, "lease-lost") == []
    assert [queue.get(one.id).result for one in receipts] == list(range(6))


@pytest.mark.parametrize("operation", ["claim", "settle"])
def test_a_part_that_crashes_is_restarted(
    memory: Hub, faults: Faults, caplog: pytest.LogCaptureFixture, operation: str
) -> None:
    """[G1] Not an error of storage but a bug: the part starts again, with what it had in hand."""
    queue = memory.queue("tasks", LONG)
    crashes: list[str] = []

    def rule(*args: Any, **kwargs: Any) -> None:
        if len(crashes) < 3:
            crashes.append(operation)
            raise ZeroDivisionError("a bug")

    receipts = queue.enqueue_many(range(20))
    faults.on(operation, rule)
    with Worker(queue, lambda message: message.data, restart=QUICK) as worker:
        until(lambda: ended(queue))
        until(lambda: worker.status().processed == 20)
    assert len(crashes) == 3
    assert [queue.get(one.id).result for one in receipts] == list(range(20))
    assert len(said(caplog, "crashed (ZeroDivisionError); it is restarted")) == 3


def test_a_heartbeat_that_crashes_is_restarted(memory: Hub, faults: Faults) -> None:
    queue = memory.queue("tasks", QueuePolicy(visibility_timeout=1, backoff=AT_ONCE))
    crashes: list[int] = []

    def rule(name: str, settlements: list[Any]) -> None:
        if isinstance(settlements[0], Extend) and not crashes:
            crashes.append(1)
            raise ZeroDivisionError("a bug")

    faults.on("settle", rule)
    receipt = queue.enqueue("x")
    with Worker(queue, lambda message: threading.Event().wait(2.5), restart=QUICK, concurrency=2):
        until(lambda: ended(queue))
    assert crashes
    assert queue.get(receipt.id).attempts == 1


@pytest.mark.parametrize("part", ["claiming", "settling", "heartbeat"])
def test_run_ends_with_the_error_after_the_most_restarts(
    memory: Hub, monkeypatch: pytest.MonkeyPatch, faults: Faults, part: str
) -> None:
    queue = memory.queue("tasks", LONG)
    tries: list[int] = []

    async def broken(*_: Any, **__: Any) -> None:
        tries.append(1)
        raise ZeroDivisionError("for good")

    if part == "claiming":
        faults.on("claim", broken)
    else:
        monkeypatch.setattr(Settler if part == "settling" else Heartbeat, "run", broken)
    worker = Worker(queue, lambda message: None, restart=Restart(base=0, maximum=0, most=3), grace=0)
    monkeypatch.setattr("brigade.worker.engine.FLUSH_WITHIN", 0.2)
    with pytest.raises(ZeroDivisionError, match="for good"):
        worker.run()
    assert len(tries) == 4
    assert worker.status().running == 0


def test_a_batch_that_cant_be_settled_doesnt_hold_up_others(memory: Hub, faults: Faults) -> None:
    """One settlement of many is refused outright: it alone is given up."""
    queue = memory.queue("tasks", QueuePolicy(visibility_timeout=1, backoff=AT_ONCE, failure=Failure("retry", 1000)))

    def rule(name: str, settlements: list[Any]) -> None:
        if any(isinstance(one, Ack) and one.message.data == 7 and one.message.attempt == 1 for one in settlements):
            raise brigade.ConfigError("this one can't be settled")

    faults.on("settle", rule)
    receipts = queue.enqueue_many(range(20))
    with Worker(queue, lambda message: message.data, processed_cache_ttl=0):
        until(lambda: ended(queue))
    assert [queue.get(one.id).result for one in receipts] == list(range(20))
    assert [queue.get(one.id).attempts for one in receipts] == [2 if n == 7 else 1 for n in range(20)]


def test_a_paused_queue_is_waited_for(memory: Hub, caplog: pytest.LogCaptureFixture) -> None:
    queue = memory.queue("tasks", LONG)
    queue.pause()
    receipt = queue.enqueue("x")
    with caplog.at_level(logging.WARNING), Worker(queue, lambda message: "done"):
        time.sleep(0.3)
        assert queue.get(receipt.id).attempts == 0
        queue.resume()
        until(lambda: queue.get(receipt.id).result == "done")
    assert caplog.records == []


if os.geteuid() == 0:
    # Rights don't stop the administrator: what they refuse is tested where tests run as somebody else.
    _as_root: Callable[..., Any] = pytest.mark.skip(reason="root may write everywhere")
else:
    _as_root = lambda test: test  # noqa: E731


@_as_root
def test_rights_that_are_taken_away_for_a_while(hub: Hub, tmp_path: Path) -> None:
    queue = hub.queue("tasks", PATIENT)
    queue.enqueue_many(range(5))
    began, free = threading.Event(), threading.Event()

    def handler(message: Message) -> None:
        began.set()
        free.wait(30)

    place = tmp_path / "jobs" / "q" / "tasks"
    with Worker(queue, handler, concurrency=1, restart=QUICK):
        assert began.wait(30)
        place.chmod(0)
        free.set()
        time.sleep(0.3)
        place.chmod(0o700)
        until(lambda: ended(queue))
