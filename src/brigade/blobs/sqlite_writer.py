"""The side of sqlite:// that writes: operations that come together share a transaction, and so its fsync.

One thread takes what is waiting, carries it out between `BEGIN IMMEDIATE` and `COMMIT`, tells who listens, and then
answers. The same thread does the upkeep.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from brigade.blobs import CONFLICT, UNKNOWN, Copy, Create, Delete, DeleteIf, Pledge, Refused, Swap
from brigade.blobs import sqlite_pledges as pledges
from brigade.blobs.sqlite_file import PAGE, SMALL, connect, explained, is_busy, outcome_unknown, patiently, prepare
from brigade.blobs.sqlite_streams import Piece, Seal, Swept, add_piece, give_up, seal
from brigade.blobs.sqlite_upkeep import Upkeep, is_untidy, roll_back, undone_alone
from brigade.blobs.sqlite_watch import News
from brigade.clock import wall_ns
from brigade.errors import BrigadeError, StoreUnavailable
from brigade.ids import secret_bytes

__all__ = ["CLOSED", "Write", "Writer", "modified_of"]

T = TypeVar("T")
CLOSED = "the hub was closed while this call was under way; open another one to go on"
PAUSE, PAUSES = 0.0003, 15
"""Seconds between two tries to write while another process does, and how many there are: a commit takes as long."""
CHECKED_FOR = 10_000_000
"""Nanoseconds for which a file that had its name is taken to have it still, and to be written by nobody else."""
WRITTEN = PAGE + PAGE // 2
"""Bytes that a small object adds to the log, on the average: its page, and now and then the neighbours of that."""
QUIET_AFTER = 100_000_000
"""Nanoseconds without a write of anybody else, after which none is expected soon."""
_CREATE = "INSERT INTO objects VALUES (?, ?, ?, NULL, ?, NULL) ON CONFLICT (key) DO NOTHING"
_SWAP = "UPDATE objects SET etag = ?, size = ?, stream = NULL, body = ?, apart = NULL WHERE key = ? AND etag = ?"
_CREATE_APART = "INSERT INTO objects VALUES (?, ?, ?, NULL, NULL, ?) ON CONFLICT (key) DO NOTHING"
_SWAP_APART = "UPDATE objects SET etag = ?, size = ?, stream = NULL, body = NULL, apart = ? WHERE key = ? AND etag = ?"
_SYNC_LATER, _SYNC = "PRAGMA synchronous = NORMAL", "PRAGMA synchronous = FULL"
"""Scripts: `execute` would take a statement that it has prepared before, which does nothing a second time."""
_COPY = """
INSERT INTO objects SELECT ?1, ?2, size, stream, body, iif(apart IS NULL, NULL, ?4) FROM objects WHERE key = ?3
ON CONFLICT (key) DO UPDATE
    SET etag = excluded.etag, size = excluded.size, stream = excluded.stream, body = excluded.body,
        apart = excluded.apart
"""
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
        self._mark = _new_mark()
        self.commits = 0
        self.lock = threading.Lock()
        self._starting = threading.Lock()
        self._waiting: SimpleQueue[Waiting | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._connection: sqlite3.Connection | None = prepare(path, fsync=fsync)
        self.upkeep = Upkeep(path, self._with_lock, fsync=fsync)
        with contextlib.suppress(sqlite3.Error):
            self.upkeep.untidy = is_untidy(self._connection)
        self._pledged = False
        self._file = _identity(path)
        self._news = News(path)
        self._news.open()
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
        if ((type(op) is Create and op.pledge is None) or type(op) is Swap) and len(op.body) <= SMALL:
            return self._try(self._alone, op, waiting)
        answer = self._try(self._one, op, waiting)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def try_all(self, ops: Sequence[Write], *, waiting: bool = False) -> Sequence[object]:
        """`try_now` for several, in one transaction. An operation that fails alone is answered with its error."""
        nothing = [NotImplemented] * len(ops)
        try:
            answers = self._try(self._transaction, ops, waiting)
        except BrigadeError:
            return nothing  # It came to nothing: one at a time tells why.
        return nothing if answers is NotImplemented else answers

    def _try(self, work: Callable[[Any], Any], what: object, waiting: bool) -> Any:
        """What `work` makes of it, or NotImplemented."""
        lock = self.lock
        if not (lock.acquire(False) or (waiting and lock.acquire(timeout=PAUSE * PAUSES))):
            return NotImplemented
        try:
            if self._stop.is_set():
                return NotImplemented
            answer = work(what)
        except sqlite3.Error as error:
            answer = self._try_again(work, what, error, PAUSES if waiting else 1)
        finally:
            lock.release()
        if self.upkeep.is_due():
            self._tend_soon()
        return answer

    def _try_again(self, work: Callable[[Any], Any], what: object, error: sqlite3.Error, times: int) -> Any:
        """After an error: where another process is in the way, up to so many tries in all."""
        while is_busy(error):
            times -= 1
            if not times or self._stop.wait(PAUSE):
                return NotImplemented
            try:
                return work(what)
            except sqlite3.Error as another:
                error = another
        raise explained(self._path, "write", error) from error

    def _one(self, op: Write) -> object:
        return self._transaction((op,))[0]

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
        if self._pledged:
            with contextlib.suppress(sqlite3.Error, BrigadeError):
                patiently(self._path, lambda: self._with_lock(pledges.withdraw, self._mark))
        self.disconnect()

    def disconnect(self) -> None:
        with self.lock:
            connection, self._connection = self._connection, None
            self._news.close()
        if connection is not None:
            connection.close()
        self.upkeep.disconnect()

    def forked(self) -> None:
        """In a child process: let go of what is the parent's. The thread is started anew when it is needed."""
        self._news.forked()
        self.disconnect()
        self._mark, self._pledged = _new_mark(), False
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
            while not self._stop.is_set() and self.upkeep.is_due():
                with contextlib.suppress(sqlite3.Error, BrigadeError, OSError):
                    self.upkeep.tend()
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
        if self._news.is_heard():
            self._news.tell(_written_keys(ops, answers))
        return answers

    def _alone(self, op: Create | Swap) -> object:
        """A create or a swap as one statement, which is a transaction of its own."""
        now = wall_ns()
        connection = self._connection or self._connected()
        if not 0 <= now - self._checked < CHECKED_FOR:
            self._check_file(now)
        later = self._fsync and type(op) is Create and op.later
        if later:
            connection.executescript(_SYNC_LATER)
        etag = self._new_etag(now)
        try:
            done = self._put_small(connection, op, etag)
        except sqlite3.Error as error:
            if not outcome_unknown(error):
                raise
            return UNKNOWN
        finally:
            if later:
                self._sync_again(connection)
        if not done:
            return CONFLICT
        self.commits += 1
        if self._news.is_heard():
            self._news.tell((op.key,))
        return etag

    def _sync_again(self, connection: sqlite3.Connection) -> None:
        """Every commit is synced again. A connection of which that isn't sure is not used any more."""
        try:
            connection.executescript(_SYNC)
        except sqlite3.Error:
            self._connection = None
            connection.close()
            raise

    def _put(self, connection: sqlite3.Connection, op: Create | Swap, now: int) -> str | Refused:
        etag = self._new_etag(now)
        if len(op.body) > SMALL:
            with undone_alone(connection):
                done = self._put_apart(connection, op, etag)
        else:
            done = self._put_small(connection, op, etag)
        return etag if done else CONFLICT

    def _put_small(self, connection: sqlite3.Connection, op: Create | Swap, etag: str) -> int:
        body = op.body
        size = len(body)
        self.upkeep.written += size + WRITTEN
        if isinstance(op, Create):
            return connection.execute(_CREATE, (op.key, etag, size, body)).rowcount
        return connection.execute(_SWAP, (etag, size, body, op.key, op.etag)).rowcount

    def _put_apart(self, connection: sqlite3.Connection, op: Create | Swap, etag: str) -> int:
        body, place = op.body, _unused(connection)
        self.upkeep.written += len(body) + WRITTEN
        if isinstance(op, Create):
            done = connection.execute(_CREATE_APART, (op.key, etag, len(body), place)).rowcount
        else:
            done = connection.execute(_SWAP_APART, (etag, len(body), place, op.key, op.etag)).rowcount
        if done:
            connection.execute("INSERT INTO bodies VALUES (?, ?)", (place, body))
        return done

    def _put_and_pledge(self, connection: sqlite3.Connection, op: Create, pledge: Pledge) -> str | Refused:
        with undone_alone(connection):
            answer = self._put(connection, op, wall_ns())
            if answer is not CONFLICT:
                pledges.keep(connection, self._mark, pledge)
                self._pledged = True
        return answer

    def _new_etag(self, now: int) -> str:
        """One that no object ever had: the time, or more than the last one, and what only this writer has."""
        self._latest = now = now if now > self._latest else self._latest + 1
        return f"{now:016x}{self._mark}"

    def _guarded(self, connection: sqlite3.Connection, op: Write) -> object:
        """An operation that fails alone is undone alone: each is one statement, or sees to that itself."""
        try:
            return self._apply(connection, op)
        except Exception as error:
            if not connection.in_transaction:
                raise
            return explained(self._path, "write", error) if isinstance(error, sqlite3.Error) else error

    def _apply(self, connection: sqlite3.Connection, op: Write) -> object:
        match op:
            case Create(pledge=Pledge() as pledge):
                return self._put_and_pledge(connection, op, pledge)
            case Create() | Swap():
                return self._put(connection, op, wall_ns())
            case Delete(keys):
                self.upkeep.written += len(keys) * PAGE // 4
                for start in range(0, len(keys), DELETED_AT_ONCE):
                    some = keys[start : start + DELETED_AT_ONCE]
                    connection.execute(_DELETE, (*some, *some[-1:] * (DELETED_AT_ONCE - len(some))))
                self.upkeep.untidy = is_untidy(connection)
                return None
            case DeleteIf(key, etag):
                self.upkeep.written += PAGE
                done = connection.execute("DELETE FROM objects WHERE key = ? AND etag = ?", (key, etag))
                return etag if done.rowcount else CONFLICT
            case Copy(source, target):
                return self._copy(connection, source, target)
            case Piece():
                self.upkeep.written += op.cost
                return self._still_ours(add_piece(connection, op))
            case Seal():
                done = self._still_ours(seal(connection, op, self._new_etag(wall_ns())))
                self.upkeep.untidy |= not done
                return done
            case Swept(stream):
                self.upkeep.untidy = True
                return give_up(connection, stream)

    def _copy(self, connection: sqlite3.Connection, source: str, target: str) -> bool:
        found = connection.execute("SELECT size, apart FROM objects WHERE key = ?", (source,)).fetchall()
        if not found:
            return False
        ((size, apart),) = found
        self.upkeep.written += size + WRITTEN
        place = _unused(connection)
        with undone_alone(connection):
            if apart is not None:
                connection.execute("INSERT INTO bodies SELECT ?, body FROM bodies WHERE id = ?", (place, apart))
            connection.execute(_COPY, (target, self._new_etag(wall_ns()), source, place))
        return True

    def _still_ours(self, answer: T | None) -> T:
        if answer is None:
            raise StoreUnavailable(
                f"a stream into {self._path!r} stood still for an hour and was given up; send it again"
            )
        return answer

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._stop.is_set():
                raise StoreUnavailable(CLOSED)
            self._connection = connect(self._path, fsync=self._fsync)
            self._news.open()
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
        self._news.refresh()
        self._checked = now

    def undisturbed(self) -> bool:
        """Whether all that was written lately was written here, as far as was seen only a moment ago."""
        now = wall_ns()
        return 0 <= now - self._checked < 2 * CHECKED_FOR and now - self._disturbed > QUIET_AFTER


def _unused(connection: sqlite3.Connection) -> int:
    """A place for a body that lies apart."""
    return connection.execute("SELECT ifnull(max(id), 0) + 1 FROM bodies").fetchall()[0][0]


def modified_of(etag: str) -> int:
    """When the object was written that has this etag, in milliseconds."""
    return int(etag[:16], 16) // 1_000_000


def _new_mark() -> str:
    """The end of a writer's etags, by which they differ from those that others make at the same moment."""
    return secret_bytes(4).hex()


def _written_keys(ops: Sequence[Write], answers: Sequence[object]) -> Iterator[str]:
    """What has other bytes now than it had."""
    for op, answer in zip(ops, answers, strict=True):
        match op:
            case Create(key) | Swap(key) if isinstance(answer, str):
                yield key
            case Copy(_, key) | Seal(_, key) if answer is True:
                yield key
            case _:
                pass


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
