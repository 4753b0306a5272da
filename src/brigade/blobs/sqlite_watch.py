"""A file beside the database in which writers of sqlite:// tell listeners which keys they wrote.

Who listens holds a shared lock on the file. A writer that could have it for itself after its commit, or a moment
before, knows that nobody listens, and writes nothing; otherwise it appends its keys. A listener takes the lock first,
waits for longer than such a moment, and then lets everybody look once: so a write was committed before that look, or
its writer saw the lock. News are a convenience: where the file cannot be had or written, or a writer dies right after
its commit, claimers find by polling what was written.

An append is the end of a line, a name that is used once, and then the keys, a line each. So what a dead writer left
half written ends with the next append, and the name at the start of the file tells whether it was begun anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterable
from fcntl import flock

import msgspec

from brigade.blobs.watch import Watch
from brigade.clock import monotonic_ns
from brigade.ids import secret_bytes

__all__ = ["News", "NewsWatch", "remove_if_unused"]

LONGEST = 1024 * 1024
"""Bytes of news after which the file is begun anew."""
LATE = 500
"""Milliseconds after which a listener looks though it was told of nothing."""
LOCKING = 0.001
DEAF_FOR = 10_000_000
"""Nanoseconds for which a writer that found nobody listening doesn't ask again."""
SETTLED = 0.025
"""Seconds within which every writer has noticed that the file is another one, or that somebody listens."""
_ALONE = fcntl.LOCK_EX | fcntl.LOCK_NB
_UNLOCK = fcntl.LOCK_UN
_NAME = 17
_HEAD = 1 + _NAME
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(str).decode


class News:
    """The writer's end. One thread at a time may use it. Nothing here raises: a write that was committed is done."""

    def __init__(self, path: str) -> None:
        self._database = path
        self._path = f"{path}-news"
        self._fd = -1
        self._told = False
        self._alone_at = -DEAF_FOR

    def open(self) -> None:
        """Open the file unless it is open."""
        if self._fd < 0:
            with contextlib.suppress(OSError):
                self._fd = _opened(self._path, self._database)

    def refresh(self) -> None:
        """Take the file that has the name now."""
        if self._fd < 0 or not _is_at(self._fd, self._path):
            self._let_go()
            self.open()

    def is_heard(self) -> bool:
        """Whether somebody may listen, so that there is something to `tell`. Asked after a commit."""
        now = monotonic_ns()
        return now - self._alone_at >= DEAF_FOR and not self._is_alone(now)

    def _is_alone(self, now: int) -> bool:
        try:
            flock(self._fd, _ALONE)
        except BlockingIOError:
            return False
        except (OSError, ValueError):
            return True
        if self._told:
            self._clear()
        flock(self._fd, _UNLOCK)
        self._alone_at = now
        return True

    def tell(self, keys: Iterable[str]) -> None:
        """Append these keys, all at once."""
        lines = [_encode(key) for key in keys]
        if not lines:
            return
        self._told = True
        with contextlib.suppress(OSError):
            if os.fstat(self._fd).st_size > LONGEST:
                os.ftruncate(self._fd, 0)
            os.write(self._fd, b"\n".join((_begun(), *lines, b"")))

    def close(self) -> None:
        """Nobody has to read what is left where nobody listens."""
        self._told = True
        self._is_alone(monotonic_ns())
        self._let_go()

    def forked(self) -> None:
        """In a child process: the parent's file, and with it its lock, is not ours."""
        self._let_go()

    def _clear(self) -> None:
        self._told = False
        with contextlib.suppress(OSError):
            if os.fstat(self._fd).st_size:
                os.ftruncate(self._fd, 0)

    def _let_go(self) -> None:
        fd, self._fd, self._alone_at = self._fd, -1, -DEAF_FOR
        if fd >= 0:
            os.close(fd)


class NewsWatch(Watch):
    """The listener's end: tells of objects that were written, and everybody to look where that is not known."""

    _fd = -1

    def __init__(self, path: str) -> None:
        super().__init__(f"{path}-news")
        self._database = path
        self._path = f"{path}-news"
        self._head = b""
        self._offset = 0

    def forked(self) -> None:
        """While a child kept the parent's file open, its lock would be held."""
        super().forked()
        self._let_go()

    def _listen(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                self._listen_to_file(stop)
            finally:
                self._let_go()

    def _listen_to_file(self, stop: threading.Event) -> None:
        """Tell what is written until `stop` is set, or the file has lost its name."""
        from watchfiles._rust_notify import RustNotify

        self._fd = _opened(self._path, self._database)
        self._lock_file(stop)
        with RustNotify([self._path], False, False, 300, False, True) as notify:
            stop.wait(SETTLED)
            self._begin()
            while not stop.is_set() and _is_at(self._fd, self._path):
                notify.watch(10, 5, LATE, stop)
                if not stop.is_set():
                    self._look()

    def _lock_file(self, stop: threading.Event) -> None:
        """Writers hold it for a moment; one that is stopped then must not keep us from ending."""
        while not stop.is_set():
            try:
                flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                stop.wait(LOCKING)
            else:
                break

    def _begin(self) -> None:
        """What was written so far is seen by all when they look, so news begin at the end of the file."""
        if not os.fstat(self._fd).st_size:
            with contextlib.suppress(OSError):
                os.write(self._fd, _begun() + b"\n")
        self._head = self._head_now()
        self._offset = os.fstat(self._fd).st_size
        self._tell_all()

    def _look(self) -> None:
        """Tell what is new. In a file that was begun anew something may have been missed."""
        if self._head_now() != self._head or (size := os.fstat(self._fd).st_size) < self._offset:
            self._begin()
            return
        found = os.pread(self._fd, size - self._offset, self._offset)
        whole = found[: found.rfind(b"\n") + 1]
        self._offset += len(whole)
        try:
            keys = [_decode(line) for line in whole.split(b"\n") if line and not _is_name(line)]
        except (msgspec.MsgspecError, ValueError):
            self._tell_all()
        else:
            self._tell(keys)

    def _head_now(self) -> bytes:
        return os.pread(self._fd, _HEAD, 0)

    def _let_go(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def remove_if_unused(path: str) -> None:
    """Remove the news of a database that nobody has open: SQLite removes its log then.

    Who opens it just now finds that its file has lost its name, and takes another one.
    """
    if not os.path.exists(f"{path}-wal"):
        with contextlib.suppress(OSError):
            os.unlink(f"{path}-news")


def _begun() -> bytes:
    """What an append begins with: the end of a line that may have none, and a name that is used once."""
    return b"\n#" + secret_bytes(8).hex().encode()


def _is_name(line: bytes) -> bool:
    return len(line) == _NAME and line.startswith(b"#")


def _opened(path: str, database: str) -> int:
    """The file, made where there is none, for everybody who may write the database."""
    like = os.stat(database)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, like.st_mode & 0o666)
    try:
        made, us = os.fstat(fd), os.geteuid()
        if us == 0 and (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
            os.fchown(fd, like.st_uid, like.st_gid)
        if us in (0, made.st_uid) and (made.st_mode ^ like.st_mode) & 0o666:
            os.fchmod(fd, like.st_mode & 0o666)
    except OSError:
        os.close(fd)
        raise
    return fd


def _is_at(fd: int, path: str) -> bool:
    """Whether the open file still has this name."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False
