"""Pledges in the file of sqlite://: what stands in for objects that the end of the machine has undone.

A row is what one writer has pledged under one name, and in which life of the machine. Whoever opens the file in another
life makes it good before anything else is written. Within a life nothing is undone, however processes end: what was
written is in the log, and what is in the log is seen by all.
"""

from __future__ import annotations

import sqlite3
from functools import cache

import msgspec

from brigade.blobs import Pledge
from brigade.clock import wall_ns
from brigade.ids import secret_bytes

__all__ = ["TABLE", "keep", "machine_life", "make_good", "withdraw"]

TABLE = """
CREATE TABLE pledges (
    writer TEXT NOT NULL,
    name TEXT NOT NULL,
    life TEXT NOT NULL,
    since INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (writer, name)
) WITHOUT ROWID;
"""
FORGOTTEN_AFTER = 3600 * 10**9
"""Nanoseconds after which its writer relies on a pledge no more."""
_BOOT = "/proc/sys/kernel/random/boot_id"
_CREATE = "INSERT INTO objects VALUES (?, ?, ?, NULL, ?, NULL) ON CONFLICT (key) DO NOTHING"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Pledge).decode


@cache
def machine_life() -> str:
    """What names this life of the machine, from its start to its end; nothing where the system doesn't tell."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeError):
        return ""


def keep(connection: sqlite3.Connection, writer: str, pledge: Pledge) -> None:
    """Within a transaction: this takes the place of the writer's last pledge of that name."""
    row = (writer, pledge.name, machine_life(), wall_ns(), _encode(pledge))
    connection.execute("INSERT OR REPLACE INTO pledges VALUES (?, ?, ?, ?, ?)", row)


def withdraw(connection: sqlite3.Connection, writer: str) -> None:
    """All that the writer has created is durable, or nobody relies on it."""
    connection.execute("DELETE FROM pledges WHERE writer = ?", (writer,))


def make_good(connection: sqlite3.Connection) -> bool:
    """Within a transaction: create what another life's end has undone, and forget what nobody relies on.

    Whether there was anything to do.
    """
    life, now, mark = machine_life(), wall_ns(), secret_bytes(4).hex()
    for (content,) in connection.execute("SELECT content FROM pledges WHERE life <> ?", (life,)).fetchall():
        pledge = _decode(content)
        for key, about in pledge.keys:
            if connection.execute("SELECT 1 FROM objects WHERE key = ?", (about,)).fetchall():
                now += 1
                connection.execute(_CREATE, (key, f"{now:016x}{mark}", len(pledge.body), pledge.body))
    old = (life, now - FORGOTTEN_AFTER)
    return connection.execute("DELETE FROM pledges WHERE life <> ? OR since < ?", old).rowcount > 0
