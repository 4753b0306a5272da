"""Sync calls that the calling thread carries out by itself: same results, same guarantees, no thread woken."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade.blobs import Create, Op, Swap
from brigade.blobs.memory import Bucket, MemoryBlobs
from brigade.errors import ConfigError
from brigade.heldsignals import HeldSignals

Seen = list[tuple[str, str]]


@pytest.fixture
def hub() -> Generator[brigade.Hub, None, None]:
    with brigade.connect("memory://") as hub:
        yield hub


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Every write, with the name of the thread that made it."""
    found: Seen = []
    real = MemoryBlobs.try_now

    def try_now(blobs: MemoryBlobs, op: Op) -> object:
        if isinstance(op, Create | Swap):
            found.append((type(op).__name__, threading.current_thread().name))
        return real(blobs, op)

    monkeypatch.setattr(MemoryBlobs, "try_now", try_now)
    return found


def drain(queue: brigade.Queue) -> list[Any]:
    got: list[Any] = []
    while messages := queue.claim(10):
        got += [message.data for message in messages]
        queue.ack_many(messages)
    return got


def test_a_lone_caller_works_in_its_own_thread(hub: brigade.Hub, seen: Seen) -> None:
    queue = hub.queue("tasks")
    time.sleep(0.05)  # the loop falls asleep
    seen.clear()
    queue.enqueue("a")
    (message,) = queue.claim()
    queue.extend(message, 60)
    queue.ack(message)
    here = threading.current_thread().name
    assert seen == [("Create", here), ("Create", here), ("Swap", here), ("Swap", here)]


def test_among_others_the_hubs_thread_does_what_is_not_plain(hub: brigade.Hub, seen: Seen) -> None:
    """There their writes go out together; a thread that is the only one again works for itself."""
    queue = hub.queue("tasks")
    queue.enqueue("before")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(queue.enqueue, "another").result()
        seen.clear()
        for number in range(10):
            queue.enqueue(number, ttl=60)
            pool.submit(queue.enqueue, number, ttl=60).result()
    assert {thread for _, thread in seen} == {"brigade-hub"}
    for number in range(100):
        queue.enqueue(number)
    assert seen[-1] == ("Create", threading.current_thread().name)


def test_with_a_listener_the_hubs_thread_does_it(hub: brigade.Hub) -> None:
    threads: list[str] = []
    hub.on("message-enqueued", lambda event: threads.append(threading.current_thread().name))
    hub.queue("tasks").enqueue("a")
    assert threads == ["brigade-hub"]


def test_a_claim_that_has_to_wait_is_woken(hub: brigade.Hub) -> None:
    queue = hub.queue("tasks")
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(queue.claim, wait=30) for _ in range(4)]
        for number in range(4):
            queue.enqueue(number)
        assert sorted(message.data for one in waiting for message in one.result(60)) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["memory", "file", "file, fsync", "sqlite", "sqlite, fsync"])
def test_many_threads_at_once(kind: str, tmp_path: Path) -> None:
    scheme = kind.partition(",")[0]
    url = "memory://" if kind == "memory" else f"{scheme}://{tmp_path}/jobs?fsync={str('fsync' in kind).lower()}"
    with brigade.connect(url) as hub:
        queue = hub.queue("tasks")
        taken: list[int] = []

        def work(thread: int) -> None:
            for number in range(20):
                queue.enqueue(thread * 100 + number)
                for message in queue.claim():
                    queue.ack(message)
                    taken.append(message.data)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        taken += drain(queue)
        assert sorted(taken) == sorted(thread * 100 + number for thread in range(8) for number in range(20))
        assert queue.stats().succeeded == 160


def test_a_busy_caller_lets_the_loop_work() -> None:
    """History is written and segments go while one thread never stops calling."""
    bucket = Bucket.named("busy")
    with brigade.connect("memory://busy") as hub:
        queue = hub.queue("tasks")
        most = 0
        for _ in range(2_000):
            queue.enqueue("x")
            queue.ack(queue.claim()[0])
            most = max(most, len(bucket.snapshot()))
    assert most < 2_000


def test_what_a_caller_never_gets_is_given_back(hub: brigade.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal in the middle of a claim: its handler runs when the books are in order, and the lease isn't kept."""
    queue = hub.queue("tasks")
    queue.enqueue("a")
    real = Bucket.apply

    def apply(bucket: Bucket, op: Op) -> object:
        if isinstance(op, Create | Swap):
            monkeypatch.setattr(Bucket, "apply", real)
            signal.raise_signal(signal.SIGINT)
        return real(bucket, op)

    monkeypatch.setattr(Bucket, "apply", apply)
    with pytest.raises(KeyboardInterrupt):
        queue.claim(visibility=3600)
    (message,) = queue.claim(wait=30)
    assert (message.data, message.attempt) == ("a", 1)


def test_a_signal_in_the_middle_of_an_ack_undoes_nothing(hub: brigade.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = hub.queue("tasks")
    queue.enqueue("a")
    (message,) = queue.claim()
    real = Bucket.apply

    def apply(bucket: Bucket, op: Op) -> object:
        if isinstance(op, Swap):
            signal.raise_signal(signal.SIGINT)
        return real(bucket, op)

    monkeypatch.setattr(Bucket, "apply", apply)
    with pytest.raises(KeyboardInterrupt):
        queue.ack(message)
    monkeypatch.undo()
    assert queue.stats().succeeded == 1
    queue.enqueue("b")
    assert drain(queue) == ["b"]


def test_a_payload_may_call_the_hub(hub: brigade.Hub) -> None:
    queue = hub.queue("tasks")

    def payload() -> Iterator[bytes]:
        yield b"x"
        queue.enqueue("from within")

    queue.enqueue(payload())
    payloads = [queue.claim()[0].payload for _ in range(2)]
    assert sorted(payloads) == [b"from within", b"x"]


def test_a_call_within_a_call_is_told_so(hub: brigade.Hub) -> None:
    """Both would wait for each other."""
    queue = hub.queue("tasks")

    async def work() -> None:
        queue.enqueue("from within")

    time.sleep(0.05)
    with pytest.raises(ConfigError, match="cannot wait"):
        hub.quick(work())
    queue.enqueue("after")
    assert drain(queue) == ["after"]


def test_errors_are_the_same(hub: brigade.Hub) -> None:
    queue = hub.queue("tasks")
    time.sleep(0.05)
    with pytest.raises(ConfigError, match="priority"):
        queue.enqueue("a", priority=12)
    queue.pause()
    with pytest.raises(brigade.QueuePaused):
        queue.claim()


def test_in_debug_mode_the_loop_does_everything(hub: brigade.Hub, seen: Seen) -> None:
    async def debug() -> None:
        asyncio.get_running_loop().set_debug(True)

    hub.call(debug())
    queue = hub.queue("tasks")
    queue.enqueue("a")
    assert drain(queue) == ["a"]
    assert {thread for _, thread in seen} == {"brigade-hub"}


def test_a_callers_context_is_seen_and_not_changed(hub: brigade.Hub) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="nothing")
    seen: list[str] = []

    async def work() -> None:
        seen.append(variable.get())
        variable.set("changed")

    variable.set("mine")
    time.sleep(0.05)
    hub.quick(work())
    assert (seen, variable.get()) == (["mine"], "mine")


class TestHeldSignals:
    """Signals that come while they are held are handled afterwards."""

    @pytest.fixture(autouse=True)
    def handlers(self) -> Generator[None, None, None]:
        kept = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
        self.came: list[str] = []
        signal.signal(signal.SIGUSR1, lambda number, frame: self.came.append("usr1"))
        yield
        for number, handler in kept:
            signal.signal(number, handler)

    def test_they_wait(self) -> None:
        before = signal.getsignal(signal.SIGUSR1)
        with HeldSignals():
            signal.raise_signal(signal.SIGUSR1)
            assert self.came == []
        assert self.came == ["usr1"]
        assert signal.getsignal(signal.SIGUSR1) is before

    def test_a_handler_that_raises_leaves_the_others_in_place(self) -> None:
        def end(number: int, frame: Any) -> None:
            raise SystemExit(143)

        signal.signal(signal.SIGTERM, end)
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)]
        with pytest.raises(SystemExit), HeldSignals():
            signal.raise_signal(signal.SIGTERM)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)] == before

    def test_one_inside_another(self) -> None:
        with HeldSignals():
            with HeldSignals():
                signal.raise_signal(signal.SIGUSR1)
            assert self.came == []
        assert self.came == ["usr1"]
