"""Handlers of signals that wait until the hub's own bookkeeping is done."""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]
import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["HeldSignals", "in_main_thread", "unsignalled"]

T = TypeVar("T")
_get: Callable[[int], Any] = _signal.getsignal  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
_set: Callable[[int, Any], Any] = _signal.signal  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
_MAY_RAISE = tuple(
    int(number)
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGALRM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGVTALRM,
        signal.SIGPROF,
    )
)


class _Handled:
    """The signals that have a handler, which may raise. They hardly ever change."""

    def __init__(self) -> None:
        self._seen: list[Any] = []
        self._numbers: list[int] = []

    def __call__(self) -> list[int]:
        found = list(map(_get, _MAY_RAISE))
        if found != self._seen:
            self._numbers = [number for number, one in zip(_MAY_RAISE, found, strict=True) if callable(one)]
            self._seen = found
        return self._numbers


_handled = _Handled()


class HeldSignals:
    """Keeps Python's handlers of signals from running until it is left; then those whose signal came run.

    It goes past `signal` to what that is made of, which is ten times as fast. A handler that raises while another one
    is being put back can't leave a signal without effect: what stands in for a handler calls it once this is over.
    """

    __slots__ = ("_came", "_handlers", "_holding")

    def __init__(self) -> None:
        self._holding = True
        self._came: list[tuple[int, Any]] | None = None
        self._handlers: dict[int, Callable[..., Any]] = {}

    def __enter__(self) -> None:
        try:
            for number in _handled():
                self._handlers[number] = _set(number, self._note)
        except ValueError:
            # An interpreter within another one: signals are none of its business.
            self._handlers.clear()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        self._holding = False
        for number, handler in self._handlers.items():
            _set(number, handler)
        for number, frame in self._came or ():
            self._handlers[number](number, frame)

    def _note(self, number: int, frame: Any) -> None:
        if self._holding:
            self._came = [*(self._came or ()), (number, frame)]
        else:
            self._handlers[number](number, frame)


def in_main_thread() -> bool:
    """Whether Python may run handlers of signals in this thread."""
    return threading.get_ident() == threading.main_thread().ident


def unsignalled(work: Callable[..., T], *args: Any) -> T:
    """Do something in which no signal's handler may raise: they run in the main thread alone."""
    if not in_main_thread():
        return work(*args)
    with HeldSignals():
        return work(*args)
