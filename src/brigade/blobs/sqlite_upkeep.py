"""What keeps the file of sqlite:// small: streams that nobody refers to are swept, and free pages given back.

Each call does a slice, in a transaction of its own, so that writers never wait long.
"""

from __future__ import annotations

import contextlib
import sqlite3

from brigade.blobs.sqlite_file import PAGE
from brigade.clock import wall_ns

__all__ = ["SLICE", "is_untidy", "roll_back", "shrink", "sweep"]

FREE_PAGES = 1024
"""So much room is kept for what comes next; more goes back to the disk once half of the file is free."""
VACUUM_PAGES = 512
SWEEP_CHUNKS = 8
SLICE = VACUUM_PAGES * PAGE
"""About how many bytes a slice writes."""
LEFTOVER_AGE = 3600 * 10**9


def is_untidy(connection: sqlite3.Connection) -> bool:
    """Whether there is something to sweep or to give back."""
    return bool(_leftover(connection)) or _has_room_to_spare(connection)


def sweep(connection: sqlite3.Connection) -> bool:
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


def shrink(connection: sqlite3.Connection) -> bool:
    """Give some free pages back to the disk; False where few are free."""
    if not _has_room_to_spare(connection):
        return False
    connection.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")  # `execute` would stop after one page
    return True


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
