"""Other queues that live on a local disk, in the same run: one process, 200 bytes a message.

One message a call, by one caller and by several threads at once, each with a line of its own where the queue wants
that; by one caller in hundreds, where the queue has a call for that; and by one caller who makes a long line, and takes
from it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import brigade
from bench.measure import MESSAGE, Ground

__all__ = ["THREADS", "Peer", "PeerResult", "missing", "run_peers"]


class Line(Protocol):
    """A queue as the comparison uses it."""

    def put(self) -> object: ...

    def take(self) -> object:
        """Claim one message and ack it; for a queue without acks, take it away."""
        ...


@runtime_checkable
class RichLine(Line, Protocol):
    """A queue that has calls for many messages."""

    def put_many(self) -> object: ...

    def take_many(self) -> object: ...


Lines = Callable[[], Line]
"""Makes a line for the thread that calls it."""

THREADS = 16
BATCH = 100
LONG = 10_000
"""Messages in a long line."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue under one durability setting."""

    name: str
    package: str
    durable: bool
    setting: str
    acks: bool
    open: Callable[[Path], contextlib.AbstractContextManager[Lines]]


@dataclass(frozen=True, slots=True)
class PeerResult:
    """Messages a second, best of the rounds."""

    name: str
    version: str
    durable: bool
    setting: str
    acks: bool
    enqueue: float
    consume: float
    enqueue_threads: float
    consume_threads: float
    enqueue_many: float | None
    consume_many: float | None
    enqueue_long: float
    consume_long: float


class _Pair:
    """A line made of two functions."""

    def __init__(self, put: Callable[[], object], take: Callable[[], object]) -> None:
        self.put = put
        self.take = take


class _Ours(_Pair):
    """Brigade, which has calls for many messages."""

    def __init__(self, queue: brigade.Queue) -> None:
        super().__init__(lambda: queue.enqueue(MESSAGE), self._take)
        self._queue = queue

    def _take(self) -> None:
        self._queue.ack(self._claimed(1)[0])

    def put_many(self) -> None:
        self._queue.enqueue_many([MESSAGE] * BATCH)

    def take_many(self) -> None:
        self._queue.ack_many(self._claimed(BATCH))

    def _claimed(self, count: int) -> list[brigade.Message]:
        messages = self._queue.claim(count)
        while not messages:
            messages = self._queue.claim(count)
        return messages


def _brigade(scheme: str, fsync: bool) -> Callable[[Path], contextlib.AbstractContextManager[Lines]]:
    @contextlib.contextmanager
    def opened(path: Path) -> Generator[Lines, None, None]:
        with brigade.connect(f"{scheme}://{path}/jobs", fsync=fsync) as hub:
            line = _Ours(hub.queue("bench"))
            yield lambda: line

    return opened


def _huey_sqlite(fsync: bool) -> Callable[[Path], contextlib.AbstractContextManager[Lines]]:
    @contextlib.contextmanager
    def opened(path: Path) -> Generator[Lines, None, None]:
        from huey.storage import SqliteStorage

        storage: Any = SqliteStorage("bench", filename=str(path / "huey.db"), fsync=fsync)
        line = _Pair(lambda: storage.enqueue(MESSAGE), storage.dequeue)
        yield lambda: line
        storage.close()

    return opened


@contextlib.contextmanager
def _huey_files(path: Path) -> Generator[Lines, None, None]:
    from huey.storage import FileStorage

    storage: Any = FileStorage("bench", path=str(path / "huey"))
    line = _Pair(lambda: storage.enqueue(MESSAGE), storage.dequeue)
    yield lambda: line


def _litequeue(synchronous: str) -> Callable[[Path], contextlib.AbstractContextManager[Lines]]:
    @contextlib.contextmanager
    def opened(path: Path) -> Generator[Lines, None, None]:
        from litequeue import LiteQueue

        text = MESSAGE.decode()
        queues: list[Any] = []

        def line() -> Line:
            queue: Any = LiteQueue(str(path / "lite.db"), timeout=60)
            queue.conn.execute(f"PRAGMA synchronous = {synchronous}")
            queues.append(queue)
            return _Pair(lambda: queue.put(text), lambda: queue.done(queue.pop().message_id))

        yield line
        for queue in queues:
            queue.close()

    return opened


@contextlib.contextmanager
def _persist_queue(path: Path) -> Generator[Lines, None, None]:
    from persistqueue import SQLiteAckQueue

    queue: Any = SQLiteAckQueue(str(path / "persist"), auto_commit=True, multithreading=True)
    line = _Pair(lambda: queue.put(MESSAGE), lambda: queue.ack(queue.get(block=False)))
    yield lambda: line
    queue.close()


OURS = "bucket-brigade"
PEERS = (
    Peer("brigade", OURS, True, "SQLite WAL, FULL", True, _brigade("sqlite", True)),
    Peer("brigade", OURS, True, "files, fsync", True, _brigade("file", True)),
    Peer("huey", "huey", True, "SQLite WAL, FULL", False, _huey_sqlite(True)),
    Peer("litequeue", "litequeue", True, "SQLite WAL, FULL", True, _litequeue("FULL")),
    Peer("persist-queue", "persist-queue", True, "SQLite WAL, FULL", True, _persist_queue),
    Peer("brigade", OURS, False, "SQLite WAL, NORMAL", True, _brigade("sqlite", False)),
    Peer("brigade", OURS, False, "files, no fsync", True, _brigade("file", False)),
    Peer("huey", "huey", False, "SQLite WAL, OFF", False, _huey_sqlite(False)),
    Peer("huey", "huey", False, "files, no fsync", False, _huey_files),
    Peer("litequeue", "litequeue", False, "SQLite WAL, NORMAL", True, _litequeue("NORMAL")),
)


def missing() -> list[str]:
    """Packages that are not installed: their rows are left out."""
    return sorted({peer.package for peer in PEERS if _version(peer.package) is None})


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def runs(total: int) -> int:
    """How many runs `run_peers` makes, for the progress bar."""
    return total * sum(_version(peer.package) is not None for peer in PEERS)


def run_peers(ground: Ground) -> list[PeerResult]:
    """All that are installed, in turn, three times over."""
    present = [peer for peer in PEERS if _version(peer.package) is not None]
    rates: dict[Peer, list[list[float | None]]] = {peer: [] for peer in present}
    messages, batches = ground.messages(1_000), ground.messages(10_000, BATCH) // BATCH
    long = ground.messages(LONG)
    for _ in range(ground.rounds):
        for peer in present:
            ground.tick(f"on disk beside others · {peer.name}, {peer.setting}")
            with peer.open(ground.directory()) as lines:
                line = lines()
                alone = [messages / _timed(step, messages) for step in (line.put, line.take)]
                rich: list[float | None] = [None, None]
                threads = _in_threads(lines, messages)
                if isinstance(line, RichLine):
                    rich = [BATCH * batches / _timed(step, batches) for step in (line.put_many, line.take_many)]
                in_line = [long / _timed(line.put, long), messages / _timed(line.take, messages)]
                rates[peer].append([*alone, *threads, *rich, *in_line])
    return [
        PeerResult(
            peer.name,
            _version(peer.package) or "",
            peer.durable,
            peer.setting,
            peer.acks,
            *_best(rates[peer]),
        )
        for peer in present
    ]


def _best(rounds: list[list[float | None]]) -> list[Any]:
    """The best figure of each kind; None where there is no such call."""
    return [max((one for one in found if one is not None), default=None) for found in zip(*rounds, strict=True)]


def _timed(work: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - started


def _in_threads(lines: Lines, messages: int) -> tuple[float, float]:
    """Messages a second that several threads put together, and then take."""
    share = max(1, messages // THREADS)
    gate = threading.Barrier(THREADS + 1)

    def work() -> None:
        try:
            line = lines()
            for step in (line.put, line.take):
                gate.wait()
                for _ in range(share):
                    step()
                gate.wait()
        except BaseException:
            gate.abort()
            raise

    def round_of() -> float:
        gate.wait()
        started = time.perf_counter()
        gate.wait()
        return share * THREADS / (time.perf_counter() - started)

    with ThreadPoolExecutor(THREADS) as pool:
        done = [pool.submit(work) for _ in range(THREADS)]
        try:
            return round_of(), round_of()
        finally:
            for one in done:
                one.result()
