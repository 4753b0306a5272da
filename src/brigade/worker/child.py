"""The inside of a process that runs handlers."""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import queue
import signal
import threading
from typing import Any

import msgspec
from msgspec.structs import replace

from brigade.model import Lease, Message
from brigade.sync import Hub, Queue
from brigade.tracing import Tracer
from brigade.worker.context import AsyncContext, Context
from brigade.worker.handlers import Handler
from brigade.worker.outcomes import Outcome, Returned, outcome_of_error, storable

__all__ = ["Assignment", "ChildSettings", "main"]


class Assignment(msgspec.Struct):
    """A message to handle."""

    queue: str
    message: Message


class ChildSettings(msgspec.Struct):
    """What a process must know: its handlers by queue, and how to reach the store."""

    handlers: dict[str, Any]
    worker_id: str
    url: str
    options: dict[str, Any]
    tracer: Tracer


class _Store:
    """The store, opened when a handler first needs it: most never do."""

    def __init__(self, settings: ChildSettings) -> None:
        self._settings = settings
        self._hub: Hub | None = None

    def queue(self, name: str) -> Queue:
        if self._hub is None:
            self._hub = Hub(self._settings.url, **self._settings.options).open()
        return self._hub.queue(name, create=False)

    def extend(self, message: Message, seconds: float | None) -> Lease:
        return self.queue(message.queue).extend(message, seconds)

    async def extend_async(self, message: Message, seconds: float | None) -> Lease:
        return await asyncio.to_thread(self.extend, message, seconds)

    def open(self, message: Message) -> io.BufferedReader:
        return self.queue(message.queue).reader(message)


class _Boss:
    """The pipe to the worker: assignments come in by a thread, so that `stop` is heard while a handler runs."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self.assignments: queue.SimpleQueue[Assignment] = queue.SimpleQueue()
        self.stop = threading.Event()

    def listen(self) -> None:
        while True:
            try:
                said = self._pipe.recv()
            except (EOFError, OSError):
                # The worker is gone: nobody extends the lease or takes the result.
                os._exit(1)
            if isinstance(said, Assignment):
                self.stop = threading.Event()
                self.assignments.put(said)
            else:
                self.stop.set()

    def tell(self, what: object) -> None:
        try:
            self._pipe.send(what)
        except OSError:
            os._exit(1)


def main(pipe: Any, settings: ChildSettings) -> None:
    """Handle messages until the pipe ends. The worker decides when to stop, so signals to the group are not for us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    boss = _Boss(pipe)
    store = _Store(settings)
    handlers = {name: Handler(function) for name, function in settings.handlers.items()}
    threading.Thread(target=boss.listen, name="brigade-boss", daemon=True).start()
    boss.tell("ready")
    while True:
        assignment = boss.assignments.get()
        boss.tell(_handle(assignment, handlers[assignment.queue], settings, store, boss.stop))


def _handle(
    assignment: Assignment, handler: Handler, settings: ChildSettings, store: _Store, stop: threading.Event
) -> Outcome:
    message = assignment.message
    if message.body is None:
        message = replace(message, opener=store.open)
    context: Context | AsyncContext
    if handler.is_async:
        context = AsyncContext(message, settings.worker_id, stop, store.extend_async)
    else:
        context = Context(message, settings.worker_id, stop, store.extend)
    try:
        with settings.tracer.handling(message, settings.worker_id):
            result = handler(message, context)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
    except BaseException as error:
        return outcome_of_error(error)
    return Returned(None if result is None else msgspec.to_builtins(storable(message, result)))


async def _awaited(result: Any) -> Any:
    return await result
