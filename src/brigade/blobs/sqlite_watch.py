"""Told by the kernel that the write-ahead log has grown, then by the database which keys were written."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable

from brigade.clock import wall_ns
from brigade.errors import BrigadeError

__all__ = ["LogWatch"]

log = logging.getLogger("brigade")
SOON = 10
"""Milliseconds to the next look after news: the log is written a moment before what is in it can be read."""
LATE = 500


class LogWatch:
    """Calls subscribers when keys under their prefix are written. The thread runs only while somebody listens.

    `since(id)` tells what was written after that id, in order.
    """

    def __init__(self, path: str, since: Callable[[int], list[tuple[int, str]]]) -> None:
        self._path = f"{path}-wal"
        self._since = since
        self._seen = 0
        self.forked()

    def forked(self) -> None:
        """The thread and the subscribers of a parent process are not ours."""
        self._lock = threading.Lock()
        self._subscribers: dict[int, tuple[str, Callable[[str], None]]] = {}
        self._number = 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._broken = False

    def subscribe(self, prefix: str, wake: Callable[[str], None]) -> Callable[[], None] | None:
        """How to stop, or None where this system cannot watch: the caller polls."""
        with self._lock:
            if self._broken:
                return None
            self._number += 1
            number = self._number
            self._subscribers[number] = (prefix, wake)
            if self._thread is None:
                self._seen = wall_ns()
                self._stop = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(self._stop,), name="brigade-watch", daemon=True)
                self._thread.start()
        return lambda: self._unsubscribe(number)

    def close(self) -> None:
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout=2)

    def _unsubscribe(self, number: int) -> None:
        with self._lock:
            self._subscribers.pop(number, None)

    def _run(self, stop: threading.Event) -> None:
        from watchfiles._rust_notify import RustNotify

        try:
            with RustNotify([self._path], False, False, 300, False, True) as notify:
                self._tell_all()
                pause = SOON
                while not stop.is_set():
                    changes = notify.watch(10, 5, pause, stop)
                    pause = SOON if isinstance(changes, set) else min(pause * 2, LATE)
                    if not stop.is_set():
                        self._look()
        except Exception as error:
            log.warning("cannot watch %s (%s); waiting claims fall back to polling", self._path, error)
            self._broken = True
            self._tell_all()

    def _look(self) -> None:
        """Tell what is new. Where the clock was set back, ids don't show that: everybody is told to look."""
        if wall_ns() < self._seen:
            self._tell_all()
        with contextlib.suppress(sqlite3.Error, BrigadeError):
            while written := self._since(self._seen):
                self._seen = written[-1][0]
                self._tell([key for _, key in written])

    def _tell_all(self) -> None:
        with self._lock:
            subscribers = list(self._subscribers.values())
        for prefix, wake in subscribers:
            wake(prefix)

    def _tell(self, keys: list[str]) -> None:
        with self._lock:
            subscribers = list(self._subscribers.values())
        for prefix, wake in subscribers:
            for key in keys:
                if key.startswith(prefix):
                    wake(key)
