"""What keeps the files of sqlite:// small: the log is emptied, streams are swept, and free pages given back.

Only streams that nobody refers to, that is. Each call does a slice, in a transaction of its own, so that writers never
wait long. And the log is lengthened, once.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar

from brigade.blobs.sqlite_file import PAGE, connect, patiently
from brigade.clock import wall_ns

__all__ = ["Upkeep", "is_untidy", "roll_back", "undone_alone"]

T = TypeVar("T")
CHECKPOINT_AFTER = 4 * 1024 * 1024
"""Bytes written since the last checkpoint that make the next one due.

The log is then written over from its start, which the disk syncs faster than a file that grows.
"""
LENGTHEN_AFTER = CHECKPOINT_AFTER // 64
LOG_SIZE = CHECKPOINT_AFTER + CHECKPOINT_AFTER // 2
"""How long the log is made, with room for what comes during a checkpoint, once so many bytes were written."""
FREE_PAGES = 1024
"""So much room is kept for what comes next; more goes back to the disk once half of the file is free."""
VACUUM_PAGES = 512
SWEEP_CHUNKS = 8
SLICE = VACUUM_PAGES * PAGE
"""About how many bytes a slice writes."""
PIECE = 256 * 1024
_ZEROS = bytes(PIECE)
LEFTOVER_AGE = 3600 * 10**9


class WithLock(Protocol):
    """How the connection that writes is had."""

    def __call__(self, work: Callable[..., T], *args: Any) -> T: ...


class Upkeep:
    """What is due, and doing it, a slice at a time. `with_lock` calls with the connection that writes, and its lock."""

    def __init__(self, path: str, with_lock: WithLock, *, fsync: bool) -> None:
        self._path = path
        self._with_lock = with_lock
        self._fsync = fsync
        self.written = 0
        self.untidy = False
        self.tending = threading.Lock()
        self._tend_at = LENGTHEN_AFTER
        self._keeper: sqlite3.Connection | None = None

    def disconnect(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()

    def is_due(self) -> bool:
        return self.untidy or self.written >= self._tend_at

    def tend(self) -> None:
        """One slice of the upkeep."""
        if self._tend_at < CHECKPOINT_AFTER:
            self._tend_at = CHECKPOINT_AFTER
            self._lengthen_log()
        if self.written >= CHECKPOINT_AFTER:
            self.written = 0
            self._checkpoint()
        if self.untidy:
            self.untidy = False
            self.untidy = self._with_lock(_tidy)
            self.written += SLICE

    def _lengthen_log(self) -> None:
        """Where the disk has room for it."""
        disk = os.statvfs(os.path.dirname(self._path))
        if disk.f_bavail * disk.f_frsize < 16 * LOG_SIZE:
            return
        log = os.open(f"{self._path}-wal", os.O_WRONLY)
        try:
            patiently(self._path, lambda: self._with_lock(_lengthen, log, LOG_SIZE))
            if self._fsync:
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
                self._with_lock(_restart, self._keeper)


def is_untidy(connection: sqlite3.Connection) -> bool:
    """Whether there is something to sweep or to give back."""
    return bool(_leftover(connection)) or _has_room_to_spare(connection)


def _tidy(connection: sqlite3.Connection) -> bool:
    """Do a slice of that; False where there was none left."""
    return _sweep(connection) or _shrink(connection)


def _restart(_: sqlite3.Connection, keeper: sqlite3.Connection) -> None:
    keeper.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


def _sweep(connection: sqlite3.Connection) -> bool:
    """Remove some chunks of a stream that was deleted or given up; False where there are none."""
    found = _leftover(connection)
    if not found:
        return False
    connection.execute("BEGIN IMMEDIATE")
    try:
        gone = connection.execute(
            "DELETE FROM chunks WHERE rowid IN (SELECT rowid FROM chunks WHERE stream = ? LIMIT ?)",
            (*found[0], SWEEP_CHUNKS),
        )
        if gone.rowcount < SWEEP_CHUNKS:
            connection.execute("DELETE FROM leftovers WHERE stream = ?", found[0])
        connection.execute("COMMIT")
    finally:
        roll_back(connection)
    return True


def _shrink(connection: sqlite3.Connection) -> bool:
    """Give some free pages back to the disk; False where few are free."""
    if not _has_room_to_spare(connection):
        return False
    connection.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")  # `execute` would stop after one page
    return True


def _lengthen(connection: sqlite3.Connection, log: int, size: int) -> None:
    """Make the write-ahead log so long.

    What is written over costs less than a file that grows, and a disk syncs it much faster. While we hold the lock for
    writing nobody else adds to the log, and what lies behind its last frame is room for the next ones: SQLite knows its
    frames by their checksums.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        for start in range(os.fstat(log).st_size, size, PIECE):
            os.pwrite(log, _ZEROS[: size - start], start)
    finally:
        roll_back(connection)


@contextlib.contextmanager
def undone_alone(connection: sqlite3.Connection) -> Generator[None]:
    """Several statements of a transaction that come to nothing together, and leave it as it was."""
    connection.execute("SAVEPOINT several")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK TO several")
            connection.execute("RELEASE several")
        raise
    connection.execute("RELEASE several")


def roll_back(connection: sqlite3.Connection) -> None:
    """Undo a transaction that has not come to its end; SQLite may have done so itself."""
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def _leftover(connection: sqlite3.Connection) -> list[tuple[int]]:
    """A stream that was deleted, or that nobody has added to for an hour."""
    return connection.execute(
        "SELECT stream FROM leftovers WHERE since < ? LIMIT 1", (wall_ns() - LEFTOVER_AGE,)
    ).fetchall()


def _has_room_to_spare(connection: sqlite3.Connection) -> bool:
    ((free,),) = connection.execute("PRAGMA freelist_count").fetchall()
    if free <= FREE_PAGES:
        return False
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    return free * 2 >= pages
