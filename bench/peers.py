"""Other queues that live on a local disk, in the same run: one process, one message at a time, 200 bytes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import brigade
from bench.measure import MESSAGE, Ground

__all__ = ["Peer", "PeerResult", "missing", "run_peers"]


class Line(Protocol):
    """A queue as the comparison uses it."""

    def put(self) -> object: ...

    def take(self) -> object:
        """Claim one message and ack it; for a queue without acks, take it away."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue under one durability setting."""

    name: str
    package: str
    durable: bool
    setting: str
    acks: bool
    open: Callable[[Path], contextlib.AbstractContextManager[Line]]


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


class _Pair:
    """A line made of two functions."""

    def __init__(self, put: Callable[[], object], take: Callable[[], object]) -> None:
        self.put = put
        self.take = take


def _brigade(fsync: bool) -> Callable[[Path], contextlib.AbstractContextManager[Line]]:
    @contextlib.contextmanager
    def opened(path: Path) -> Generator[Line, None, None]:
        with brigade.connect(f"file://{path}", fsync=fsync) as hub:
            queue = hub.queue("bench")

            def take() -> None:
                (message,) = queue.claim(1)
                queue.ack(message)

            yield _Pair(lambda: queue.enqueue(MESSAGE), take)

    return opened


def _huey_sqlite(fsync: bool) -> Callable[[Path], contextlib.AbstractContextManager[Line]]:
    @contextlib.contextmanager
    def opened(path: Path) -> Generator[Line, None, None]:
        from huey.storage import SqliteStorage

        storage: Any = SqliteStorage("bench", filename=str(path / "huey.db"), fsync=fsync)
        yield _Pair(lambda: storage.enqueue(MESSAGE), storage.dequeue)
        storage.close()

    return opened


@contextlib.contextmanager
def _huey_files(path: Path) -> Generator[Line, None, None]:
    from huey.storage import FileStorage

    storage: Any = FileStorage("bench", path=str(path / "huey"))
    yield _Pair(lambda: storage.enqueue(MESSAGE), storage.dequeue)


def _litequeue(synchronous: str) -> Callable[[Path], contextlib.AbstractContextManager[Line]]:
    @contextlib.contextmanager
    def opened(path: Path) -> Generator[Line, None, None]:
        from litequeue import LiteQueue

        queue: Any = LiteQueue(str(path / "lite.db"))
        queue.conn.execute(f"PRAGMA synchronous = {synchronous}")
        text = MESSAGE.decode()
        yield _Pair(lambda: queue.put(text), lambda: queue.done(queue.pop().message_id))
        queue.close()

    return opened


@contextlib.contextmanager
def _persist_queue(path: Path) -> Generator[Line, None, None]:
    from persistqueue import SQLiteAckQueue

    queue: Any = SQLiteAckQueue(str(path / "persist"), auto_commit=True)
    yield _Pair(lambda: queue.put(MESSAGE), lambda: queue.ack(queue.get(block=False)))
    queue.close()


OURS = "bucket-brigade"
PEERS = (
    Peer("brigade", OURS, True, "files, fsync", True, _brigade(True)),
    Peer("huey", "huey", True, "SQLite WAL, FULL", False, _huey_sqlite(True)),
    Peer("litequeue", "litequeue", True, "SQLite WAL, FULL", True, _litequeue("FULL")),
    Peer("persist-queue", "persist-queue", True, "SQLite WAL, FULL", True, _persist_queue),
    Peer("brigade", OURS, False, "files, no fsync", True, _brigade(False)),
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
    puts: dict[Peer, list[float]] = {peer: [] for peer in present}
    takes: dict[Peer, list[float]] = {peer: [] for peer in present}
    messages = ground.messages(1_000)
    for _ in range(ground.rounds):
        for peer in present:
            ground.tick(f"on disk beside others · {peer.name}, {peer.setting}")
            with peer.open(ground.directory()) as line:
                puts[peer].append(messages / _timed(line.put, messages))
                takes[peer].append(messages / _timed(line.take, messages))
    return [
        PeerResult(
            peer.name,
            _version(peer.package) or "",
            peer.durable,
            peer.setting,
            peer.acks,
            max(puts[peer]),
            max(takes[peer]),
        )
        for peer in present
    ]


def _timed(work: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        work()
    return time.perf_counter() - started
