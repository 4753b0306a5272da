"""Events of the engine, told on the loop of the hub that the user holds: a slow listener can't hold up the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from brigade.events import Event, Events

__all__ = ["Relay"]


class Relay(Events):
    """Passes events on, in order. Safe to use from any thread."""

    def __init__(self, target: Events, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._target = target
        self._target_loop = loop

    def on(self, name: str, listener: Callable[[Event], Any]) -> Callable[[], None]:
        return self._target.on(name, listener)

    def wanted(self, name: str) -> bool:
        return self._target.wanted(name)

    def emit(self, name: str, queue: str, message_id: str | None = None, **fields: Any) -> None:
        if self._target.wanted(name):
            with contextlib.suppress(RuntimeError):
                self._target_loop.call_soon_threadsafe(partial(self._target.emit, name, queue, message_id, **fields))
