"""Events: what happens to messages, told to whoever listens. A listener that fails never harms the queue."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from brigade.errors import ConfigError

__all__ = ["EVENT_NAMES", "Event", "Events"]

log = logging.getLogger("brigade")

EVENT_NAMES = frozenset(
    {
        "message-enqueued",
        "message-claimed",
        "message-processing",
        "message-recovered",
        "message-completed",
        "message-retry",
        "message-dead",
        "message-outcome",
        "workers-started",
        "workers-stopped",
        "ordering-best-effort",
        "lease-lost",
    }
)


class Event(msgspec.Struct, frozen=True):
    """One thing that happened; `fields` depends on the name."""

    name: str
    queue: str
    id: str | None
    fields: dict[str, Any]


class Events:
    """Listeners by event name, or `*` for all. Sync listeners are called in place; async ones become tasks."""

    def __init__(self) -> None:
        self._listeners: dict[str, list[Callable[[Event], Any]]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def on(self, name: str, listener: Callable[[Event], Any]) -> Callable[[], None]:
        """Listen; returns how to stop."""
        if name != "*" and name not in EVENT_NAMES:
            raise ConfigError(f"there is no event {name!r}; use '*' or one of {', '.join(sorted(EVENT_NAMES))}")
        listeners = self._listeners.setdefault(name, [])
        listeners.append(listener)

        def stop() -> None:
            if listener in listeners:
                listeners.remove(listener)

        return stop

    def wanted(self, name: str) -> bool:
        """Whether anybody listens: events that nobody wants cost nothing."""
        return bool(self._listeners.get(name) or self._listeners.get("*"))

    def emit(self, name: str, queue: str, message_id: str | None = None, **fields: Any) -> None:
        listeners = [*self._listeners.get(name, ()), *self._listeners.get("*", ())]
        if not listeners:
            return
        event = Event(name, queue, message_id, fields)
        for listener in listeners:
            try:
                answer = listener(event)
                if inspect.iscoroutine(answer):
                    task = asyncio.ensure_future(self._guard(answer))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            except Exception:
                log.exception("a listener of %s failed", name)

    async def _guard(self, work: Any) -> None:
        try:
            await work
        except Exception:
            log.exception("an async listener failed")
