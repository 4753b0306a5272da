"""The database file behind sqlite://: its format, how it is opened, and what SQLite's errors mean."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from typing import TypeVar

from brigade.blobs import sqlite_pledges as pledges
from brigade.blobs.watch import is_network_filesystem
from brigade.clock import SystemClock
from brigade.errors import BrigadeError, ConfigError, PermissionDenied, StoreUnavailable

__all__ = ["PAGE", "SMALL", "connect", "explained", "is_busy", "outcome_unknown", "patiently", "prepare"]

T = TypeVar("T")
APPLICATION = 0x42524944
FORMAT = 3
PAGE = 4096
SMALL = 800
"""Bytes that lie with their key. Longer bodies lie apart: whoever looks for a key reads what lies with its neighbours,
and of more than a quarter of a page SQLite makes a chain of pages."""
PATIENCE = 30.0
"""Seconds that a call waits for other processes' transactions."""
LONGEST_PAUSE = 0.005
WAL_LIMIT = 32 * 1024 * 1024
_STREAMS = """
CREATE TABLE chunks (stream INTEGER NOT NULL, place INTEGER NOT NULL, body BLOB NOT NULL, UNIQUE (stream, place));
CREATE TABLE leftovers (stream INTEGER PRIMARY KEY, since INTEGER NOT NULL);
"""
_OBJECTS = """
CREATE TABLE objects (
    key TEXT PRIMARY KEY NOT NULL,
    etag TEXT NOT NULL,
    size INTEGER NOT NULL,
    stream INTEGER,
    body BLOB,
    apart INTEGER
) WITHOUT ROWID;
CREATE TABLE bodies (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TRIGGER body_replaced AFTER UPDATE OF apart ON objects WHEN old.apart IS NOT NULL BEGIN
    DELETE FROM bodies WHERE id = old.apart;
END;
CREATE INDEX streamed ON objects (stream) WHERE stream IS NOT NULL;
CREATE TRIGGER deleted AFTER DELETE ON objects WHEN old.body IS NULL BEGIN
    DELETE FROM bodies WHERE id = old.apart;
    INSERT OR IGNORE INTO leftovers
        SELECT old.stream, 0 WHERE old.stream IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM objects WHERE stream = old.stream);
END;
CREATE TRIGGER replaced AFTER UPDATE OF stream ON objects WHEN old.stream IS NOT NULL BEGIN
    INSERT OR IGNORE INTO leftovers
        SELECT old.stream, 0 WHERE NOT EXISTS (SELECT 1 FROM objects WHERE stream = old.stream);
END;
"""
_SET_ASIDE = """
DROP TRIGGER deleted;
DROP TRIGGER replaced;
DROP INDEX streamed;
DROP TABLE clock;
ALTER TABLE objects RENAME TO objects_before;
"""
_FORGET_CHANGES = """
DROP TRIGGER changed;
DROP TABLE changes;
"""
_TAKE_OVER = """
INSERT INTO bodies SELECT id, body FROM objects_before WHERE length(body) > {small};
INSERT INTO objects
    SELECT key, printf('%016x00000000', {number}), size, stream,
        CASE WHEN length(body) <= {small} THEN body END, CASE WHEN length(body) > {small} THEN id END
    FROM objects_before ORDER BY key;
DROP TABLE objects_before;
"""
_STEPS = {
    0: _STREAMS + _OBJECTS + pledges.TABLE,
    1: _SET_ASIDE + _OBJECTS + pledges.TABLE + _TAKE_OVER.format(number="id", small=SMALL),
    2: _FORGET_CHANGES + _SET_ASIDE + _OBJECTS + pledges.TABLE + _TAKE_OVER.format(number="etag", small=SMALL),
}
"""From each format to ours."""


def prepare(path: str, *, fsync: bool) -> sqlite3.Connection:
    """A connection that writes, to a database that is there and has our format; made where there is none."""
    if os.path.isdir(path):
        raise ConfigError(f"{path!r} is a directory; sqlite:// needs a file: write sqlite://{path}/jobs.db")
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
    except PermissionError as error:
        raise PermissionDenied(f"cannot make {folder!r}: {error.strerror}; check its owner and mode") from error
    except OSError as error:
        raise StoreUnavailable(f"cannot make {folder!r}: {error}; check the disk") from error
    if is_network_filesystem(folder):
        raise ConfigError(
            f"{path!r} is on a network file system, where SQLite cannot share a database; use file:// there, or a "
            "local disk"
        )
    try:
        return patiently(path, lambda: _opened(path, fsync))
    except sqlite3.Error as error:
        if _name(error) == "SQLITE_NOTADB":
            raise ConfigError(f"{path!r} is not a SQLite database; name another file, or move this one away") from error
        raise explained(path, "open", error) from error


def connect(path: str, *, fsync: bool) -> sqlite3.Connection:
    """Another connection to a database that is prepared. It waits for nobody: who has to wait asks again."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        for pragma in (
            f"synchronous = {'FULL' if fsync else 'NORMAL'}",
            "wal_autocheckpoint = 0",
            f"journal_size_limit = {WAL_LIMIT}",
            "secure_delete = OFF",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _opened(path: str, fsync: bool) -> sqlite3.Connection:
    connection = connect(path, fsync=fsync)
    try:
        connection.execute("BEGIN")
        made = _made_in(connection, path)
        connection.execute("ROLLBACK")
        if made != FORMAT:
            _format(connection, path)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT" if pledges.make_good(connection) else "ROLLBACK")
    except BaseException:
        connection.close()
        raise
    return connection


def _made_in(connection: sqlite3.Connection, path: str) -> int:
    """The format of our tables; 0 in an empty file. Anything else is a ConfigError, and left as it was.

    Within a transaction: somebody else may be making them just now.
    """
    ((application,),) = connection.execute("PRAGMA application_id").fetchall()
    ((version,),) = connection.execute("PRAGMA user_version").fetchall()
    ((tables,),) = connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
    if (application, version, tables) == (0, 0, 0):
        return 0
    if application != APPLICATION:
        raise ConfigError(f"{path!r} is a database of another program; name another file, which Brigade will make")
    if version > FORMAT:
        raise ConfigError(
            f"{path!r} has format {version}, and this version of Brigade knows {FORMAT}; install a newer one"
        )
    return version


def _format(connection: sqlite3.Connection, path: str) -> None:
    """Make our tables, or bring those of an older version up to date."""
    connection.execute(f"PRAGMA page_size = {PAGE}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    ((mode,),) = connection.execute("PRAGMA journal_mode = WAL").fetchall()
    if mode != "wal":
        raise ConfigError(
            f"SQLite cannot keep a write-ahead log beside {path!r} (it offers {mode!r}), so processes could not share "
            "it; use another disk, or file://"
        )
    connection.execute("BEGIN IMMEDIATE")
    try:
        made = _made_in(connection, path)
        if made != FORMAT:
            for statement in (
                *_statements(_STEPS[made]),
                f"PRAGMA application_id = {APPLICATION}",
                f"PRAGMA user_version = {FORMAT}",
            ):
                connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> list[str]:
    """A script's statements one by one: `executescript` would end the transaction."""
    found: list[str] = []
    text = ""
    for line in script.splitlines():
        text += f"{line}\n"
        if sqlite3.complete_statement(text):
            found.append(text.strip())
            text = ""
    return found


def patiently(path: str, call: Callable[[], T]) -> T:
    """What the call returns, tried again while other processes hold the database."""
    clock, never = SystemClock(), threading.Event()
    start, pause = clock.monotonic(), 0.0002
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if clock.monotonic() - start > PATIENCE:
                raise StoreUnavailable(
                    f"{path!r} was held by another process for {PATIENCE:.0f} seconds; find who keeps a transaction "
                    "open in it, and try again"
                ) from error
        never.wait(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process is in the way, so that trying again may help."""
    return _name(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def outcome_unknown(error: sqlite3.Error) -> bool:
    """Whether a commit that failed like this may be found applied after a crash: it was written, and not synced."""
    return _name(error).startswith("SQLITE_IOERR") and _name(error) != "SQLITE_IOERR_WRITE"


def explained(path: str, what: str, error: Exception) -> BrigadeError:
    """The error in our words, with what to do."""
    if isinstance(error, BrigadeError):
        return error
    name = _name(error)
    if name == "SQLITE_FULL" or (name.startswith("SQLITE_IOERR") and _is_full(path)):
        return StoreUnavailable(f"no space left on the disk of {path!r}; nothing was written, free some and try again")
    if name.startswith("SQLITE_READONLY"):
        return PermissionDenied(
            f"cannot {what} in {path!r}: {error}; check the owner and mode of the file and of its directory, and that "
            "it is mounted writable"
        )
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        if not os.access(
            os.path.dirname(path), os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
        ):
            return PermissionDenied(
                f"cannot {what} in {path!r}: SQLite keeps files beside it; check the owner and mode of its directory"
            )
        return StoreUnavailable(f"cannot {what} in {path!r}: {error}; check the file and its directory")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreUnavailable(
            f"{path!r} is damaged ({error}); stop what uses it, then restore it from a backup or save what can be read "
            "with sqlite3's .recover"
        )
    return StoreUnavailable(f"cannot {what} in {path!r}: {error}; check the disk")


def _name(error: Exception) -> str:
    return getattr(error, "sqlite_errorname", None) or ""


def _is_full(path: str) -> bool:
    try:
        disk = os.statvfs(os.path.dirname(path))
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < 64 * 1024
