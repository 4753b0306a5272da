"""Events of the engine, told on the loop of the hub that the user holds: a slow listener can't hold up the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from brigade.events import Event, Events, Several

__all__ = ["Relay"]


class Relay(Events):
    """Passes events on, in order. Safe to use from any thread."""

    def __init__(self, target: Events, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._target = target
        self._target_loop = loop

    def on(self, name: str, listener: Callable[[Event], Any]) -> Callable[[], None]:
        return self._target.on(name, listener)

    def follow(self, listener: Several) -> Callable[[], None]:
        return self._target.follow(listener)

    def wanted(self, name: str) -> bool:
        return self._target.wanted(name)

    def emit_all(self, events: Sequence[Event]) -> None:
        wanted = [event for event in events if self._target.wanted(event.name)]
        if wanted:
            with contextlib.suppress(RuntimeError):
                self._target_loop.call_soon_threadsafe(self._target.emit_all, wanted)
