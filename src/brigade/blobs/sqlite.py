"""Blobs in one SQLite database, shared by any number of processes of one machine.

A row is kept by its key. Every write gives it an etag that begins with the time in nanoseconds, and ends with what only
its writer has. Writes go through `Writer`, which lets those that come together share a transaction; reads have a
connection of their own and are never in a writer's way. Streams are kept as rows of chunks, and become an object when
they have ended. A file beside the database tells who listens which keys were written.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

from brigade.blobs import Blob, Copy, Create, Delete, DeleteIf, Gathering, Get, Item, List, Op, Page, Swap
from brigade.blobs.sqlite_file import connect, explained, is_busy, patiently
from brigade.blobs.sqlite_pledges import machine_life
from brigade.blobs.sqlite_streams import Piece, Seal, Swept
from brigade.blobs.sqlite_watch import NewsWatch, remove_if_unused
from brigade.blobs.sqlite_writer import CLOSED, Write, Writer, modified_of
from brigade.blobs.threads import Threads
from brigade.clock import Clock
from brigade.errors import MessageNotFound, StoreUnavailable

__all__ = ["SqliteBlobs"]

T = TypeVar("T")
THREADS = 2
LARGE = 256 * 1024
FEW = 100
CHUNK = 1024 * 1024
_LAST = chr(0x10FFFF)
_GET = """
SELECT etag, size, stream, iif(apart IS NULL, body, (SELECT bodies.body FROM bodies WHERE id = apart))
FROM objects WHERE key = ?
"""
_NAMES: dict[type, str] = {kind: kind.__name__.lower() for kind in (Get, Create, Swap, List, Delete, DeleteIf, Copy)}


class SqliteBlobs(Gathering):
    """A database file as a bucket."""

    poll_interval = 6.0
    patience = 0.0

    def __init__(self, path: str, *, fsync: bool = True, watch: bool = True) -> None:
        self._path = os.path.abspath(path)
        self._fsync = fsync
        self.immediate = not fsync
        self.prompt = True
        self.pledges = fsync and bool(machine_life())
        self._counts: Counter[str] = Counter()
        self._writer = Writer(self._path, fsync=fsync)
        self._reading = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._closed = False
        self._loop_thread: int | None = None
        self._watch = NewsWatch(self._path) if watch else None
        self._threads = Threads(THREADS, "brigade-sqlite-read")
        with _forking:
            _open.add(self)

    async def open(self, clock: Clock) -> None:
        """The database is there since this object was made; this machine's clock is the store's."""
        self._loop_thread = threading.get_ident()

    @property
    def listing_ttl(self) -> float:
        """Longer while nobody else writes: then what there is was written here."""
        return 1.0 if self._writer.undisturbed() else 0.1

    def try_now(self, op: Op) -> object:
        """Reads, which touch the page cache alone, and writes where nobody minds how long the disk takes.

        That is without fsync, or outside the loop's thread. What would have to wait for somebody is left undone.
        """
        if self._closed:
            return NotImplemented
        if isinstance(op, Get):
            answer = self._writer.try_reading(op.key, self._small)
            if answer is NotImplemented:
                answer = self._try_reading(op)
        elif isinstance(op, List):
            answer = self._try_reading(op)
        else:
            elsewhere = self._elsewhere()
            if self._must_wait(op, elsewhere):
                return NotImplemented
            answer = self._writer.try_now(op, waiting=elsewhere)
        if answer is not NotImplemented:
            self._counts[_NAMES[type(op)]] += 1
        return answer

    def _must_wait(self, op: Write, elsewhere: bool) -> bool:
        """Whether a write is not for this thread, or so large that the loop had better not wait for it."""
        if self._fsync and not elsewhere:
            return True
        if type(op) is Create or type(op) is Swap:
            return len(op.body) > LARGE
        return type(op) is not DeleteIf and not (type(op) is Delete and len(op.keys) <= FEW)

    def _elsewhere(self) -> bool:
        """Whether this thread is another than the loop's, so that nobody minds if it waits a little."""
        return self._loop_thread != threading.get_ident() and self._loop_thread is not None

    def try_all(self, ops: Sequence[Op]) -> Sequence[object]:
        """All writes are one transaction."""
        if len(ops) == 1 or self._closed:
            return super().try_all(ops)
        answers: list[object] = [NotImplemented] * len(ops)
        elsewhere = self._elsewhere()
        writes: list[tuple[int, Write]] = []
        for place, op in enumerate(ops):
            if isinstance(op, Get | List):
                answers[place] = self._tried(op)
            elif not self._must_wait(op, elsewhere):
                writes.append((place, op))
        done: Sequence[object] = self._writer.try_all([op for _, op in writes], waiting=elsewhere) if writes else ()
        for (place, op), answer in zip(writes, done, strict=True):
            answers[place] = answer
            self._counts[_NAMES[type(op)]] += answer is not NotImplemented
        return answers

    async def perform(self, op: Op) -> object:
        if self._closed:
            raise StoreUnavailable(CLOSED)
        self._counts[_NAMES[type(op)]] += 1
        if isinstance(op, Get | List):
            return await self._threads.run(self._read, self._answer, op)
        return await self._writer.submit(op)

    async def put_stream(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        self._counts["create"] += 1
        gathered, size, place, stream = bytearray(), 0, 0, 0
        try:
            async for chunk in chunks:
                size += len(chunk)
                gathered += chunk
                while len(gathered) > CHUNK:
                    answer: Any = await self._writer.submit(Piece(stream, place, bytes(gathered[:CHUNK])))
                    stream, place = answer, place + 1
                    del gathered[:CHUNK]
            if stream:
                await self._writer.submit(Piece(stream, place, bytes(gathered)))
                await self._writer.submit(Seal(stream, key, size))
            else:
                await self._writer.submit(Create(key, bytes(gathered)))
        except BaseException:
            if stream:
                with contextlib.suppress(Exception):
                    await asyncio.shield(self._writer.submit(Swept(stream)))
            raise
        return size

    async def get_stream(self, key: str, *, chunk: int = CHUNK) -> AsyncGenerator[bytes]:
        self._counts["get"] += 1
        gone = f"payload {key!r} is gone: its message has ended"
        found = await self._threads.run(self._read, self._row, key)
        if found is None:
            raise MessageNotFound(gone)
        _, size, stream, body = found
        gathered, place, read = bytearray(body or b""), 0, len(body or b"")
        while read < size or gathered:
            while len(gathered) < chunk and read < size:
                part = await self._threads.run(self._read, self._chunk, stream, place)
                if part is None:
                    raise MessageNotFound(gone)
                gathered += part
                read, place = read + len(part), place + 1
            yield bytes(gathered[:chunk])
            del gathered[:chunk]

    def watch(self, prefix: str, wake: Callable[[str], None]) -> Callable[[], None] | None:
        return None if self._watch is None else self._watch.subscribe(prefix, wake)

    def requests(self) -> dict[str, int]:
        return dict(self._counts)

    @property
    def commits(self) -> int:
        """How many transactions have written."""
        return self._writer.commits

    async def close(self) -> None:
        self._closed = True
        await self._threads.close()
        await asyncio.to_thread(self._let_go)

    def _let_go(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._writer.stop()
        self._disconnect()
        remove_if_unused(self._path)
        with _forking:
            _open.discard(self)

    def _try_reading(self, op: Get | List) -> object:
        if not self._reading.acquire(blocking=False):
            return NotImplemented
        try:
            return self._answer(self._connected(), op, whole=False)
        except sqlite3.Error as error:
            if is_busy(error):
                return NotImplemented
            raise explained(self._path, "read", error) from error
        finally:
            self._reading.release()

    def _read(self, look: Callable[..., T], *args: Any) -> T:
        """What `look` finds, however long others are in the way."""

        def locked() -> T:
            with self._reading:
                return look(self._connected(), *args)

        try:
            return patiently(self._path, locked)
        except sqlite3.Error as error:
            raise explained(self._path, "read", error) from error

    def _connected(self) -> sqlite3.Connection:
        if self._reader is None:
            if self._closed:
                raise StoreUnavailable(CLOSED)
            self._reader = connect(self._path, fsync=self._fsync)
        return self._reader

    def _small(self, connection: sqlite3.Connection, key: str) -> object:
        """An object of one row; NotImplemented where it has more."""
        found = self._row(connection, key)
        if found is None:
            return None
        etag, size, stream, body = found
        if stream is not None or len(body) != size:
            return NotImplemented
        return Blob(body, etag, modified_of(etag))

    def _answer(self, connection: sqlite3.Connection, op: Get | List, *, whole: bool = True) -> object:
        """An object or a page. Without `whole` an object of many chunks is NotImplemented."""
        if isinstance(op, List):
            return self._page(connection, op)
        before = None
        while True:
            found = self._row(connection, op.key)
            if found is None:
                return None
            etag, size, stream, body = found
            if etag == before:
                raise StoreUnavailable(
                    f"{op.key!r} in {self._path!r} lacks bytes; the file is damaged: restore it from a backup"
                )
            before = etag
            if stream is not None:
                if not whole:
                    return NotImplemented
                rows = connection.execute("SELECT body FROM chunks WHERE stream = ? ORDER BY place", (stream,))
                body = b"".join(part for (part,) in rows.fetchall())
            if len(body) == size:
                return Blob(body, etag, modified_of(etag))

    def _row(self, connection: sqlite3.Connection, key: str) -> Any:
        rows = connection.execute(_GET, (key,)).fetchall()
        return rows[0] if rows else None

    def _chunk(self, connection: sqlite3.Connection, stream: int, place: int) -> bytes | None:
        found = connection.execute("SELECT body FROM chunks WHERE stream = ? AND place = ?", (stream, place))
        rows = found.fetchall()
        return rows[0][0] if rows else None

    def _page(self, connection: sqlite3.Connection, op: List) -> Page:
        start = f"{op.after}\0" if op.after >= op.prefix else op.prefix
        rows = connection.execute(
            "SELECT key, etag, size FROM objects WHERE key >= ? AND key < ? ORDER BY key LIMIT ?",
            (start, _behind(op.prefix), op.limit + 1),
        ).fetchall()
        items = [Item(key, etag, size, modified_of(etag)) for key, etag, size in rows[: op.limit]]
        return Page(items, len(rows) > op.limit)

    def _disconnect(self) -> None:
        with self._reading:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def hold(self) -> None:
        """Keep every other thread out, so that this one may fork."""
        for lock in (self._writer.upkeep.tending, self._writer.lock, self._reading):
            lock.acquire()

    def release(self) -> None:
        for lock in (self._writer.upkeep.tending, self._writer.lock, self._reading):
            lock.release()

    def forked(self) -> None:
        """In a child process: close what was the parent's, before anything is opened that would share its locks."""
        self._disconnect()
        self._writer.forked()
        if self._watch is not None:
            self._watch.forked()
        self._threads = Threads(THREADS, "brigade-sqlite-read")
        self._loop_thread = None
        self.pledges = False  # What the parent pledged is its own, and may be replaced.


def _behind(prefix: str) -> str | bytes:
    """The first text after all that start with the prefix, or bytes, which SQLite sorts after every text."""
    prefix = prefix.rstrip(_LAST)
    if not prefix:
        return b""
    following = ord(prefix[-1]) + 1
    return prefix[:-1] + chr(0xE000 if 0xD800 <= following < 0xE000 else following)


_open: WeakSet[SqliteBlobs] = WeakSet()
_held: list[SqliteBlobs] = []
_forking = threading.Lock()


def _before_fork() -> None:
    """A child must not inherit a transaction, nor SQLite's idea of who holds which lock: nobody is inside."""
    _forking.acquire()
    _held[:] = sorted(_open, key=id)
    for blobs in _held:
        blobs.hold()


def _after_fork_in_parent() -> None:
    for blobs in _held:
        blobs.release()
    _held.clear()
    _forking.release()


def _after_fork_in_child() -> None:
    for blobs in _held:
        blobs.release()
        blobs.forked()
    _held.clear()
    _forking.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
