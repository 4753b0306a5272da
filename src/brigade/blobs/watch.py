"""Told by the kernel: inotify through `watchfiles`, one watcher for a directory, shared by all subscribers."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

__all__ = ["DirectoryWatch", "Watch", "is_network_filesystem"]

_DELETED = 3
NEW_FOLDER = 50
"""Milliseconds until a folder that has just appeared is watched itself: what came into it before raised no event."""
log = logging.getLogger("brigade")
_NETWORK = {0x6969, 0xFF534D42, 0xFE534D42, 0x517B, 0x01021997, 0x65735546, 0x564C, 0x5346414F, 0x00C36400}
"""statfs types of NFS, CIFS, SMB2, SMB, 9p, FUSE, NCP, AFS and Ceph: changes made elsewhere raise no event there."""


def is_network_filesystem(path: str) -> bool:
    """Whether the path is on a file system that doesn't tell of changes made by other machines."""
    if not sys.platform.startswith("linux"):
        return False
    buffer = (ctypes.c_long * 64)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), ctypes.byref(buffer)) != 0:
        return False
    return (buffer[0] & 0xFFFFFFFF) in _NETWORK


class Watch(ABC):
    """Calls subscribers when keys under their prefix are written. The thread runs only while somebody listens."""

    def __init__(self, what: str) -> None:
        self._what = what
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
                self._stop = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(self._stop,), name="brigade-watch", daemon=True)
                self._thread.start()
        return lambda: self._unsubscribe(number)

    def close(self) -> None:
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout=2)

    @abstractmethod
    def _listen(self, stop: threading.Event) -> None:
        """Tell what is written until `stop` is set; and, once the watch is in place, all."""

    def _unsubscribe(self, number: int) -> None:
        with self._lock:
            self._subscribers.pop(number, None)

    def _run(self, stop: threading.Event) -> None:
        try:
            self._listen(stop)
        except Exception as error:
            log.warning("cannot watch %s (%s); waiting claims fall back to polling", self._what, error)
            self._broken = True
            self._tell_all()

    def _tell_all(self) -> None:
        """What came before the watch was in place is nobody's event: let every subscriber look once."""
        with self._lock:
            subscribers = list(self._subscribers.values())
        for prefix, wake in subscribers:
            wake(prefix)

    def _tell(self, keys: list[str]) -> None:
        """A folder's news is news for everything in it."""
        with self._lock:
            subscribers = list(self._subscribers.values())
        for prefix, wake in subscribers:
            for key in keys:
                if key.startswith(prefix):
                    wake(key)
                elif key.endswith("/") and prefix.startswith(key):
                    wake(prefix)


class DirectoryWatch(Watch):
    """Tells of files under a directory that appear or change."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._root = root

    def subscribe(self, prefix: str, wake: Callable[[str], None]) -> Callable[[], None] | None:
        os.makedirs(os.path.join(self._root, prefix), exist_ok=True)
        return super().subscribe(prefix, wake)

    def _listen(self, stop: threading.Event) -> None:
        from watchfiles._rust_notify import RustNotify

        start = len(self._root) + 1
        with RustNotify([os.path.join(self._root, "q")], False, False, 300, True, True) as notify:
            self._tell_all()
            folders: list[str] = []
            while not stop.is_set():
                changes = notify.watch(10, 5, NEW_FOLDER if folders else 500, stop)
                keys = [path[start:] for kind, path in changes if kind != _DELETED] if isinstance(changes, set) else []
                self._tell(keys + folders)
                folders = [f"{key}/" for key in keys if os.path.isdir(os.path.join(self._root, key))]
