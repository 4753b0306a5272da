"""Told by the kernel that the write-ahead log has grown, then by the database which keys were written."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable

from brigade.blobs.watch import Watch
from brigade.clock import wall_ns
from brigade.errors import BrigadeError

__all__ = ["LogWatch"]

SOON = 10
"""Milliseconds to the next look after news: the log is written a moment before what is in it can be read."""
LATE = 500


class LogWatch(Watch):
    """Tells of objects that were written. `since(number)` has those of the writes after that one, in order."""

    def __init__(self, path: str, since: Callable[[int], list[tuple[int, str]]]) -> None:
        super().__init__(f"{path}-wal")
        self._log = f"{path}-wal"
        self._since = since
        self._seen = 0

    def _listen(self, stop: threading.Event) -> None:
        from watchfiles._rust_notify import RustNotify

        self._seen = wall_ns()
        with RustNotify([self._log], False, False, 300, False, True) as notify:
            self._tell_all()
            pause = SOON
            while not stop.is_set():
                changes = notify.watch(10, 5, pause, stop)
                pause = SOON if isinstance(changes, set) else min(pause * 2, LATE)
                if not stop.is_set():
                    self._look()

    def _look(self) -> None:
        """Tell what is new. Where the clock was set back, numbers don't show that: everybody is told to look."""
        if wall_ns() < self._seen:
            self._tell_all()
        with contextlib.suppress(sqlite3.Error, BrigadeError):
            while written := self._since(self._seen):
                self._seen = written[-1][0]
                self._tell([key for _, key in written])
