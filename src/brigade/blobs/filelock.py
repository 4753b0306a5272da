"""A lock that threads and processes share, in a file."""

from __future__ import annotations

import fcntl
import os
import threading

__all__ = ["FileLock"]


class FileLock:
    """Held by one thread of one process at a time; the kernel frees it when the process dies."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._pid = 0
        self._thread = threading.Lock()

    def __enter__(self) -> None:
        self._thread.acquire()
        self._flock(fcntl.LOCK_EX)

    def try_enter(self) -> bool:
        """Take it unless somebody holds it."""
        if not self._thread.acquire(blocking=False):
            return False
        try:
            self._flock(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _flock(self, how: int) -> None:
        try:
            if self._pid != os.getpid():
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
                self._pid = os.getpid()
            fcntl.flock(self._fd, how)
        except BaseException:
            self._thread.release()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        finally:
            self._thread.release()

    def close(self) -> None:
        if self._pid == os.getpid():
            os.close(self._fd)
            self._pid = 0
