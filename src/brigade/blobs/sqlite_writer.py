"""The side of sqlite:// that writes: operations that come together share a transaction, and so its fsync.

One thread takes what is waiting, carries it out between `BEGIN IMMEDIATE` and `COMMIT`, and then answers. The same
thread tends the database: it copies the write-ahead log into the file, sweeps the chunks of streams that nobody
refers to, and gives free pages back to the disk, a slice at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from brigade.blobs import CONFLICT, UNKNOWN, Copy, Create, Delete, DeleteIf, Swap
from brigade.blobs.sqlite_file import PAGE, connect, explained, is_busy, outcome_unknown, patiently, prepare
from brigade.blobs.sqlite_upkeep import SLICE, forget_changes, is_untidy, lengthen, roll_back, tidy
from brigade.clock import wall_ns
from brigade.errors import BrigadeError, StoreUnavailable

__all__ = ["CLOSED", "Piece", "Seal", "Swept", "Write", "Writer", "etag_of"]

T = TypeVar("T")
CLOSED = "the hub was closed while this call was under way; open another one to go on"
CHECKPOINT_AFTER = 4 * 1024 * 1024
"""Bytes written since the last checkpoint that make the next one due.

The log is then written over from its start, which the disk syncs faster than a file that grows.
"""
LENGTHEN_AFTER = CHECKPOINT_AFTER // 64
LOG_SIZE = CHECKPOINT_AFTER + CHECKPOINT_AFTER // 2
"""How long the log is made, with room for what comes during a checkpoint, once so many bytes were written."""
PAUSE, PAUSES = 0.0003, 15
"""Seconds between two tries to write while another process does, and how many there are: a commit takes as long."""
CHECKED_FOR = 10_000_000
"""Nanoseconds for which a file that had its name is taken to have it still, and to be written by nobody else."""
QUIET_AFTER = 100_000_000
"""Nanoseconds without a write of anybody else, after which none is expected soon."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Write a chunk of a stream; `stream` is 0 for the first. The answer is the stream's number."""

    stream: int
    place: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Seal:
    """Make a stream an object, all at once. False where the key was taken."""

    stream: int
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class Swept:
    """Give a stream up: its chunks may go."""

    stream: int


_LATEST = "SELECT max(ifnull((SELECT max(id) FROM objects), 0), ifnull((SELECT max(id) FROM changes), 0))"
_CREATE = "INSERT INTO objects VALUES (?1, ?2, ?1, ?3, NULL, ?4) ON CONFLICT (key) DO NOTHING"
_SWAP = "UPDATE objects SET etag = ?1, size = ?2, stream = NULL, body = ?3 WHERE key = ?4 AND etag = ?5"
_IF_LATEST = "?1 > ifnull((SELECT max(id) FROM objects), 0) AND ?1 > ifnull((SELECT max(id) FROM changes), 0)"
_CREATE_IF_LATEST = (
    f"INSERT INTO objects SELECT ?1, ?2, ?1, ?3, NULL, ?4 WHERE {_IF_LATEST} ON CONFLICT (key) DO NOTHING"
)
_SWAP_IF_LATEST = f"{_SWAP} AND {_IF_LATEST}"
DELETED_AT_ONCE = 64
_DELETE = f"DELETE FROM objects WHERE key IN ({', '.join('?' * DELETED_AT_ONCE)})"  # noqa: S608

Write = Create | Swap | Delete | DeleteIf | Copy | Piece | Seal | Swept
Waiting = tuple[Write, asyncio.AbstractEventLoop, "asyncio.Future[object]"]


class Writer:
    """The connection that writes, and the thread that shares its transactions out."""

    def __init__(self, path: str, *, fsync: bool) -> None:
        self._path = path
        self._fsync = fsync
        self._latest = 0
        self._written = 0
        self._tend_at = LENGTHEN_AFTER if fsync else CHECKPOINT_AFTER
        self.commits = 0
        self.lock = threading.Lock()
        self.tending = threading.Lock()
        self._starting = threading.Lock()
        self._waiting: SimpleQueue[Waiting | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._keeper: sqlite3.Connection | None = None
        self._connection: sqlite3.Connection | None = prepare(path, fsync=fsync)
        self._untidy = False
        with contextlib.suppress(sqlite3.Error):
            self._untidy = is_untidy(self._connection)
        self._file = _identity(path)
        self._checked = 0
        self._version = 0
        self._disturbed = wall_ns()

    async def submit(self, op: Write) -> object:
        """The operation's answer, once its transaction is durable."""
        if self._stop.is_set():
            raise StoreUnavailable(CLOSED)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()
        self._waiting.put((op, loop, future))
        if self._thread is None:
            self._start()
        return await future

    def try_now(self, op: Write, *, waiting: bool = False) -> object:
        """The answer at once, or NotImplemented where somebody else is writing.

        Who is `waiting` gives other processes some milliseconds for what they are at.
        """
        answer = self._try(lambda: self._one(op), waiting)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def try_all(self, ops: Sequence[Write], *, waiting: bool = False) -> Sequence[object]:
        """`try_now` for several, in one transaction. An operation that fails alone is answered with its error."""
        nothing = [NotImplemented] * len(ops)
        try:
            answers = self._try(lambda: self._transaction(ops), waiting)
        except BrigadeError:
            return nothing  # It came to nothing: one at a time tells why.
        return nothing if answers is NotImplemented else answers

    def _try(self, work: Callable[[], Any], waiting: bool) -> Any:
        if not (self.lock.acquire(timeout=PAUSE * PAUSES) if waiting else self.lock.acquire(False)):
            return NotImplemented
        try:
            for _ in range(PAUSES if waiting else 1):
                if self._stop.is_set():
                    return NotImplemented
                try:
                    answer = work()
                    break
                except sqlite3.Error as error:
                    if not is_busy(error):
                        raise explained(self._path, "write", error) from error
                if waiting:
                    self._stop.wait(PAUSE)
            else:
                return NotImplemented
        finally:
            self.lock.release()
        if self._due():
            self._tend_soon()
        return answer

    def _one(self, op: Write) -> object:
        answer = self._alone(op) if isinstance(op, Create | Swap) else NotImplemented
        return self._transaction([op])[0] if answer is NotImplemented else answer

    def try_reading(self, key: str, look: Callable[[sqlite3.Connection, str], object]) -> object:
        """Read through the connection that writes, which has at hand what it wrote. NotImplemented where it is busy."""
        if not self.lock.acquire(False):
            return NotImplemented
        try:
            return NotImplemented if self._connection is None else look(self._connection, key)
        except sqlite3.Error as error:
            if is_busy(error):
                return NotImplemented
            raise explained(self._path, "read", error) from error
        finally:
            self.lock.release()

    def _tend_soon(self) -> None:
        self._waiting.put(None)
        if self._thread is None:
            self._start()

    def stop(self) -> None:
        """Answer what is waiting, and end. Called from a thread that may block."""
        self._stop.set()
        self._waiting.put(None)
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        self._refuse()
        self.disconnect()

    def disconnect(self) -> None:
        with self.lock:
            connection, self._connection = self._connection, None
        for one in (connection, self._keeper):
            if one is not None:
                one.close()
        self._keeper = None

    def forked(self) -> None:
        """In a child process: let go of what is the parent's. The thread is started anew when it is needed."""
        self.disconnect()
        self._thread = None
        self._waiting = SimpleQueue()
        self._starting = threading.Lock()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name="brigade-sqlite", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            batch = [self._waiting.get(), *self._more()]
            found = [one for one in batch if one is not None]
            if found:
                _answer(found, self._together([op for op, _, _ in found]))
            while not self._stop.is_set() and self._due():
                with contextlib.suppress(sqlite3.Error, BrigadeError, OSError):
                    self._tend()
                if not self._waiting.empty():
                    break
            if self._stop.is_set() and self._waiting.empty():
                return

    def _more(self) -> list[Waiting | None]:
        found: list[Waiting | None] = []
        with contextlib.suppress(Empty):
            while True:
                found.append(self._waiting.get_nowait())
        return found

    def _refuse(self) -> None:
        left = [one for one in self._more() if one is not None]
        _answer(left, [StoreUnavailable(CLOSED)] * len(left))

    def _together(self, ops: Sequence[Write]) -> Sequence[object]:
        """Each operation's answer, or the error it ends with."""
        try:
            return patiently(self._path, lambda: self._locked(ops))
        except Exception as error:
            if len(ops) > 1 and isinstance(error, sqlite3.Error):
                return [self._together([op])[0] for op in ops]
            return [explained(self._path, "write", error) for _ in ops]

    def _locked(self, ops: Sequence[Write]) -> Sequence[object]:
        with self.lock:
            return self._transaction(ops)

    def _with_lock(self, work: Callable[..., T], *args: Any) -> T:
        with self.lock:
            return work(self._connected(), *args)

    def _transaction(self, ops: Sequence[Write]) -> Sequence[object]:
        """All of them in one transaction. Raises where that as a whole came to nothing."""
        connection = self._connected()
        connection.execute("BEGIN IMMEDIATE")
        try:
            self._check_file(wall_ns())
            ((latest,),) = connection.execute(_LATEST).fetchall()
            self._latest = max(self._latest, latest)
            answers = [self._guarded(connection, op) for op in ops]
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                if not outcome_unknown(error):
                    raise
                failed = explained(self._path, "write", error)
                return [UNKNOWN if isinstance(op, Create | Swap | DeleteIf) else failed for op in ops]
        finally:
            roll_back(connection)
        self.commits += 1
        return answers

    def _alone(self, op: Create | Swap) -> object:
        """A create or a swap as one statement, which is a transaction of its own.

        NotImplemented where it did nothing, for whatever reason: the long way tells.
        """
        new = wall_ns()
        if new <= self._latest:
            return NotImplemented
        connection = self._connection or self._connected()
        self._check_file(new)
        try:
            answer = self._put(connection, op, new, _CREATE_IF_LATEST, _SWAP_IF_LATEST)
        except sqlite3.Error as error:
            if not outcome_unknown(error):
                raise
            return UNKNOWN
        if answer is CONFLICT:
            return NotImplemented
        self._latest = new
        self.commits += 1
        return answer

    def _put(
        self, connection: sqlite3.Connection, op: Create | Swap, new: int, create: str = _CREATE, swap: str = _SWAP
    ) -> object:
        """Write an object under a number that is greater than all before."""
        self._written += len(op.body) + 2 * PAGE
        if isinstance(op, Create):
            done = connection.execute(create, (new, op.key, len(op.body), op.body))
        else:
            done = connection.execute(swap, (new, len(op.body), op.body, op.key, _number_of(op.etag)))
        return etag_of(new) if done.rowcount else CONFLICT

    def _guarded(self, connection: sqlite3.Connection, op: Write) -> object:
        """An operation that fails alone is undone alone: each is one statement, or raises before it writes."""
        try:
            return self._apply(connection, op)
        except Exception as error:
            if not connection.in_transaction:
                raise
            return explained(self._path, "write", error) if isinstance(error, sqlite3.Error) else error

    def _apply(self, connection: sqlite3.Connection, op: Write) -> object:
        match op:
            case Create() | Swap():
                return self._put(connection, op, self._new_number(connection))
            case Delete(keys):
                self._written += len(keys) * PAGE
                for start in range(0, len(keys), DELETED_AT_ONCE):
                    some = keys[start : start + DELETED_AT_ONCE]
                    connection.execute(_DELETE, (*some, *some[-1:] * (DELETED_AT_ONCE - len(some))))
                self._untidy = is_untidy(connection)
                return None
            case DeleteIf(key, etag):
                self._written += PAGE
                done = connection.execute("DELETE FROM objects WHERE key = ? AND etag = ?", (key, _number_of(etag)))
                return etag if done.rowcount else CONFLICT
            case Copy(source, target):
                return self._copy(connection, source, target)
            case Piece():
                return self._add_piece(connection, op)
            case Seal():
                return self._seal(connection, op)
            case Swept(stream):
                self._untidy = True
                return connection.execute("UPDATE leftovers SET since = 0 WHERE stream = ?", (stream,)).rowcount

    def _copy(self, connection: sqlite3.Connection, source: str, target: str) -> bool:
        found = connection.execute("SELECT size FROM objects WHERE key = ?", (source,)).fetchall()
        if not found:
            return False
        self._written += found[0][0] + 2 * PAGE
        connection.execute(
            "INSERT INTO objects SELECT ?1, ?2, ?1, size, stream, body FROM objects WHERE key = ?3 "
            "ON CONFLICT (key) DO UPDATE SET etag = excluded.etag, size = excluded.size, stream = excluded.stream, "
            "body = excluded.body",
            (self._new_number(connection), target, source),
        )
        return True

    def _add_piece(self, connection: sqlite3.Connection, op: Piece) -> int:
        """Until it is sealed a stream is a leftover that somebody still adds to."""
        self._written += len(op.body) + 2 * PAGE
        stream, now = op.stream, wall_ns()
        if stream:
            done = connection.execute("UPDATE leftovers SET since = ? WHERE stream = ?", (now, stream))
            self._still_ours(done.rowcount)
        else:
            stream = self._new_number(connection)
            connection.execute("INSERT INTO leftovers VALUES (?, ?)", (stream, now))
        connection.execute("INSERT INTO chunks VALUES (?, ?, ?)", (stream, op.place, op.body))
        return stream

    def _seal(self, connection: sqlite3.Connection, op: Seal) -> bool:
        self._still_ours(connection.execute("SELECT 1 FROM leftovers WHERE stream = ?", (op.stream,)).fetchall())
        done = connection.execute(
            "INSERT INTO objects VALUES (?1, ?2, ?1, ?3, ?4, NULL) ON CONFLICT (key) DO NOTHING",
            (self._new_number(connection), op.key, op.size, op.stream),
        )
        if done.rowcount:
            connection.execute("DELETE FROM leftovers WHERE stream = ?", (op.stream,))
        else:
            self._apply(connection, Swept(op.stream))
        return bool(done.rowcount)

    def _still_ours(self, found: object) -> None:
        if not found:
            raise StoreUnavailable(
                f"a stream into {self._path!r} stood still for an hour and was given up; send it again"
            )

    def _new_number(self, connection: sqlite3.Connection) -> int:
        """Greater than every one before, also where the clock was set back and what it had numbered is deleted."""
        new = wall_ns()
        if new <= self._latest:
            ((noted,),) = connection.execute("SELECT latest FROM clock").fetchall()
            new = max(self._latest, noted) + 1
            connection.execute("UPDATE clock SET latest = ?", (new,))
        self._latest = new
        return new

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._stop.is_set():
                raise StoreUnavailable(CLOSED)
            self._connection = connect(self._path, fsync=self._fsync)
        return self._connection

    def _check_file(self, now: int) -> None:
        """What is written to a file that has no name any more is lost with the process, like all that was in it.

        And see whether others write to it.
        """
        if 0 <= now - self._checked < CHECKED_FOR:
            return
        if _identity(self._path) != self._file:
            raise StoreUnavailable(
                f"{self._path!r} was removed or replaced while it was open; nothing was written, connect again"
            )
        ((version,),) = self._connected().execute("PRAGMA data_version").fetchall()
        if version != self._version:
            self._version, self._disturbed = version, now
        self._checked = now

    def undisturbed(self) -> bool:
        """Whether all that was written lately was written here, as far as was seen only a moment ago."""
        now = wall_ns()
        return 0 <= now - self._checked < 2 * CHECKED_FOR and now - self._disturbed > QUIET_AFTER

    def _due(self) -> bool:
        return self._untidy or self._written >= self._tend_at

    def _tend(self) -> None:
        """One slice of the upkeep."""
        if self._tend_at < CHECKPOINT_AFTER:
            self._tend_at = CHECKPOINT_AFTER
            self._lengthen_log()
        if self._written >= CHECKPOINT_AFTER:
            self._written = 0
            self._checkpoint()
            self._with_lock(forget_changes)
        if self._untidy:
            self._untidy = False
            self._untidy = self._with_lock(tidy)
            self._written += SLICE

    def _lengthen_log(self) -> None:
        """Where the disk has room for it."""
        disk = os.statvfs(os.path.dirname(self._path))
        if disk.f_bavail * disk.f_frsize < 16 * LOG_SIZE:
            return
        log = os.open(f"{self._path}-wal", os.O_WRONLY)
        try:
            patiently(self._path, lambda: self._with_lock(lengthen, log, LOG_SIZE))
            os.fsync(log)
        finally:
            os.close(log)

    def _checkpoint(self) -> None:
        """Others write meanwhile; only what they add is copied with writers kept out, so that the log begins anew."""
        with self.tending:
            if self._keeper is None:
                self._keeper = connect(self._path, fsync=self._fsync)
            ((_, frames, _),) = self._keeper.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            if frames * PAGE >= CHECKPOINT_AFTER:
                with self.lock:
                    self._keeper.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


def etag_of(number: int) -> str:
    return f"{number:x}"


def _number_of(etag: str) -> int:
    """The number of an etag; 0, which nothing has, for what never was one."""
    try:
        number = int(etag, 16)
    except ValueError:
        return 0
    return number if etag_of(number) == etag and number < 1 << 63 else 0


def _identity(path: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _answer(waiting: Sequence[Waiting], answers: Sequence[object]) -> None:
    """Hand the answers to the loops that wait for them, all of a loop in one go."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[object], object]]] = {}
    for (_, loop, future), answer in zip(waiting, answers, strict=True):
        loops.setdefault(loop, []).append((future, answer))
    for loop, pairs in loops.items():
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, pairs)


def _settle(pairs: list[tuple[asyncio.Future[object], object]]) -> None:
    for future, answer in pairs:
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)
