"""Streams into sqlite://: chunks that nobody sees, until the last one makes them an object.

Until it is sealed, and once no object refers to it, a stream is a leftover: upkeep sweeps its chunks. Every function
here is called within a transaction.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from brigade.blobs.sqlite_file import PAGE
from brigade.clock import wall_ns

__all__ = ["Piece", "Seal", "Swept", "add_piece", "give_up", "seal"]

_GREATEST = """
SELECT max(
    ifnull((SELECT max(stream) FROM leftovers), 0),
    ifnull((SELECT max(stream) FROM chunks), 0),
    ifnull((SELECT max(stream) FROM objects WHERE stream IS NOT NULL), 0)
)
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """Write a chunk of a stream; `stream` is 0 for the first. The answer is the stream's number."""

    stream: int
    place: int
    body: bytes

    @property
    def cost(self) -> int:
        """About how many bytes of the log it takes."""
        return len(self.body) + 2 * PAGE


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


def add_piece(connection: sqlite3.Connection, op: Piece) -> int | None:
    """The stream's number; None where it was given up meanwhile."""
    stream, now = op.stream, wall_ns()
    if not stream:
        stream = _unused(connection, now)
        connection.execute("INSERT INTO leftovers VALUES (?, ?)", (stream, now))
    elif not connection.execute("UPDATE leftovers SET since = ? WHERE stream = ?", (now, stream)).rowcount:
        return None
    connection.execute("INSERT INTO chunks VALUES (?, ?, ?)", (stream, op.place, op.body))
    return stream


def seal(connection: sqlite3.Connection, op: Seal, etag: str) -> bool | None:
    """Whether the stream is an object now; None where it was given up meanwhile."""
    if not connection.execute("SELECT 1 FROM leftovers WHERE stream = ?", (op.stream,)).fetchall():
        return None
    done = connection.execute(
        "INSERT INTO objects VALUES (?, ?, ?, ?, NULL, NULL) ON CONFLICT (key) DO NOTHING",
        (op.key, etag, op.size, op.stream),
    )
    if not done.rowcount:
        give_up(connection, op.stream)
        return False
    connection.execute("DELETE FROM leftovers WHERE stream = ?", (op.stream,))
    return True


def give_up(connection: sqlite3.Connection, stream: int) -> int:
    return connection.execute("UPDATE leftovers SET since = 0 WHERE stream = ?", (stream,)).rowcount


def _unused(connection: sqlite3.Connection, now: int) -> int:
    """A number that no stream has: the time, so that one that was swept is not used again, or more than all."""
    ((greatest,),) = connection.execute(_GREATEST).fetchall()
    return max(now, greatest + 1)
