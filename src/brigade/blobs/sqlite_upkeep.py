"""What keeps the file of sqlite:// small: streams that nobody refers to are swept, and free pages given back.

Each call does a slice, in a transaction of its own, so that writers never wait long. And the log is lengthened, once.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3

from brigade.blobs.sqlite_file import PAGE
from brigade.clock import wall_ns

__all__ = ["SLICE", "forget_changes", "is_untidy", "lengthen", "roll_back", "tidy"]

FREE_PAGES = 1024
"""So much room is kept for what comes next; more goes back to the disk once half of the file is free."""
VACUUM_PAGES = 512
SWEEP_CHUNKS = 8
SLICE = VACUUM_PAGES * PAGE
"""About how many bytes a slice writes."""
PIECE = 256 * 1024
CHANGES_AGE = 10 * 10**9
LEFTOVER_AGE = 3600 * 10**9


def is_untidy(connection: sqlite3.Connection) -> bool:
    """Whether there is something to sweep or to give back."""
    return bool(_leftover(connection)) or _has_room_to_spare(connection)


def tidy(connection: sqlite3.Connection) -> bool:
    """Do a slice of that; False where there was none left."""
    return _sweep(connection) or _shrink(connection)


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


def forget_changes(connection: sqlite3.Connection) -> None:
    """Remove what tells of writes that all who listen have heard of. The last one stays: numbers go on from there."""
    connection.execute(
        "DELETE FROM changes WHERE id < ? AND id < (SELECT max(id) FROM changes)", (wall_ns() - CHANGES_AGE,)
    )


def lengthen(connection: sqlite3.Connection, log: int, size: int) -> None:
    """Make the write-ahead log so long: a disk syncs what is written over much faster than a file that grows.

    While we hold the lock for writing nobody else adds to the log, and what lies behind its last frame is room for the
    next ones: SQLite knows its frames by their checksums.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        for start in range(os.fstat(log).st_size, size, PIECE):
            os.pwrite(log, bytes(min(PIECE, size - start)), start)
    finally:
        roll_back(connection)


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
