"""SIGTERM and SIGINT, told to every worker of the process that runs in the foreground."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["heard"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_listeners: list[Callable[[], None]] = []
_before: dict[signal.Signals, Any] = {}


@contextmanager
def heard(listener: Callable[[], None]) -> Generator[None]:
    """Call `listener` at each signal. Only the main thread can do this; elsewhere signals are the program's affair."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _listeners:
        _before.update({number: signal.signal(number, _tell) for number in SIGNALS})
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)
        if not _listeners:
            for number, handler in _before.items():
                signal.signal(number, handler)


def _tell(_number: int, _frame: FrameType | None) -> None:
    for listener in _listeners:
        listener()
