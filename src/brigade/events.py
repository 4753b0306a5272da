"""Events: what happens to messages, told to whoever listens. A listener that fails never harms the queue."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from brigade.clock import SystemClock
from brigade.errors import ConfigError
from brigade.eventlog import log_event, logged

__all__ = ["EVENT_NAMES", "Event", "Events", "Several"]

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

MOST_PENDING = 10_000
"""Async listeners under way at once. Beyond that events are dropped for them: memory is for messages."""

SLOW = 0.1
"""Seconds in a sync listener after which it is told to get out of the way."""

GRACE = 2.0
"""Seconds that async listeners have to finish when the hub is closed."""


class Event(msgspec.Struct, frozen=True):
    """One thing that happened; `fields` depends on the name."""

    name: str
    queue: str
    id: str | None
    fields: dict[str, Any]


Several = Callable[[Sequence[Event]], None]
"""Is told of several events with one call."""


class _Listener:
    """One registration."""

    __slots__ = ("call", "complained", "together")

    def __init__(self, call: Callable[[Any], Any], *, together: bool = False) -> None:
        self.call = call
        self.together = together
        """Whether it is called with all events that come together."""
        self.complained = False

    def __repr__(self) -> str:
        return getattr(self.call, "__qualname__", None) or repr(self.call)


class Events:
    """Listeners by event name, or `*` for all, and the logger `brigade.events`.

    Sync listeners are called in place, on the thread that emits; async ones become tasks of the hub's loop.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._listeners: dict[str, list[_Listener]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._dropped = 0
        self._monotonic = SystemClock().monotonic

    def on(self, name: str, listener: Callable[[Event], Any]) -> Callable[[], None]:
        """Listen; returns how to stop."""
        if name != "*" and name not in EVENT_NAMES:
            raise ConfigError(f"there is no event {name!r}; use '*' or one of {', '.join(sorted(EVENT_NAMES))}")
        if not callable(listener):
            raise ConfigError(f"a listener must be a function of an event, not {type(listener).__name__}")
        return self._add(name, _Listener(listener))

    def follow(self, listener: Several) -> Callable[[], None]:
        """Listen to all events, those that come together with one call; returns how to stop."""
        return self._add("*", _Listener(listener, together=True))

    def _add(self, name: str, one: _Listener) -> Callable[[], None]:
        listeners = self._listeners.setdefault(name, [])
        listeners.append(one)

        def stop() -> None:
            if one in listeners:
                listeners.remove(one)

        return stop

    @property
    def heard(self) -> bool:
        """Whether anybody listens to anything."""
        return any(self._listeners.values())

    @property
    def quiet(self) -> bool:
        """Whether nobody wants any event of a message that is enqueued, claimed or acked."""
        return not (self._listeners and self.heard) and not logged("message-completed")

    def wanted(self, name: str) -> bool:
        """Whether anybody listens, or it is logged: events that nobody wants cost nothing."""
        return bool(self._listeners.get(name) or self._listeners.get("*")) or logged(name)

    def emit(self, name: str, queue: str, message_id: str | None = None, **fields: Any) -> None:
        self.emit_all([Event(name, queue, message_id, fields)])

    def emit_all(self, events: Sequence[Event]) -> None:
        """Tell of events in their order."""
        for event in events:
            if logged(event.name):
                _log(event)
        everybody = [*self._listeners.get("*", ())]
        each = [listener for listener in everybody if not listener.together]
        started = self._monotonic()
        if each or self._listeners.keys() - {"*"}:
            for event in events:
                for listener in [*self._listeners.get(event.name, ()), *each]:
                    started = self._call(listener, event, started)
        for listener in everybody:
            if listener.together and events:
                started = self._call_once(listener, events, started)

    async def close(self) -> None:
        """Let async listeners come to their end, within reason."""
        loop, here = asyncio.get_running_loop(), asyncio.current_task()
        ours = [task for task in self._tasks if task.get_loop() is loop and task is not here]
        if ours:
            _, late = await asyncio.wait(ours, timeout=GRACE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _call(self, listener: _Listener, event: Event, started: float) -> float:
        """Call a listener, now; returns when it was done."""
        try:
            answer = listener.call(event)
            if answer is not None and inspect.isawaitable(answer):
                self._run(listener, event, answer)
        except (Exception, asyncio.CancelledError, SystemExit):
            log.exception("listener %r of %s failed; the queue goes on", listener, event.name)
        return self._timed(listener, event, started)

    def _call_once(self, listener: _Listener, events: Sequence[Event], started: float) -> float:
        try:
            listener.call(events)
        except Exception:
            log.exception("listener %r of %s failed; the queue goes on", listener, events[0].name)
        return self._timed(listener, events[0], started)

    def _timed(self, listener: _Listener, event: Event, started: float) -> float:
        """The time, and a word to a listener that took too much of it."""
        ended = self._monotonic()
        if ended - started > SLOW and not listener.complained:
            listener.complained = True
            log.warning(
                "listener %r took %.1f s of the hub's time at %s; make it async, or hand its work to a thread",
                listener,
                ended - started,
                event.name,
            )
        return ended

    def _run(self, listener: _Listener, event: Event, work: Awaitable[Any]) -> None:
        """See an async listener through: on this loop, or, from a thread without one, on the hub's."""
        guarded = self._guard(listener, event, work)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            if self.loop is None or self.loop.is_closed():
                guarded.close()
                _drop(work)
                log.error("listener %r of %s needs an open hub; the event was dropped", listener, event.name)
            else:
                self.loop.call_soon_threadsafe(self._start, guarded, work)
            return
        self._start(guarded, work)

    def _start(self, guarded: Any, work: Awaitable[Any]) -> None:
        if len(self._tasks) >= MOST_PENDING:
            guarded.close()
            _drop(work)
            self._dropped += 1
            if self._dropped == 1:
                log.error("async listeners are %d events behind; events are dropped for them", MOST_PENDING)
            return
        task = asyncio.get_running_loop().create_task(guarded)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, listener: _Listener, event: Event, work: Awaitable[Any]) -> None:
        try:
            await work
        except (Exception, SystemExit):
            log.exception("listener %r of %s failed; the queue goes on", listener, event.name)


def _log(event: Event) -> None:
    try:
        log_event(event.name, event.queue, event.id, event.fields)
    except Exception:
        log.exception("%s could not be logged", event.name)


def _drop(work: Awaitable[Any]) -> None:
    closing = getattr(work, "close", None) or getattr(work, "cancel", None)
    if closing is not None:
        closing()
