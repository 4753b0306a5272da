"""The inside of a process that runs handlers. It reaches the store only through the worker, by its pipe."""

from __future__ import annotations

import asyncio
import inspect
import io
import itertools
import os
import queue
import signal
import threading
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from brigade.errors import BrigadeError
from brigade.model import Lease, Message
from brigade.queue import AsyncReader
from brigade.tracing import Tracer
from brigade.worker.context import AsyncContext, Context
from brigade.worker.handlers import Handler
from brigade.worker.outcomes import Outcome, outcome_of_error, outcome_of_result
from brigade.worker.stopping import StopSign

__all__ = ["Answer", "Assignment", "ChildSettings", "Extension", "Read", "Stop", "main"]

CHUNK = 256 * 1024


class Assignment(msgspec.Struct):
    """To the child: a message to handle. `number` is the child's own count."""

    number: int
    message: Message


class Stop(msgspec.Struct):
    """To the child: the result of that assignment no longer counts."""

    number: int


class Extension(msgspec.Struct):
    """From the child: extend the lease of that assignment's message."""

    number: int
    seconds: float | None


class Read(msgspec.Struct):
    """From the child: the next bytes of that assignment's payload, for the reader of that number."""

    number: int
    reader: int
    size: int


class Answer(msgspec.Struct):
    """To the child: what came of its request."""

    value: Any = None
    error: BaseException | None = None


class ChildSettings(msgspec.Struct):
    """What a process must know: its handlers by queue."""

    handlers: dict[str, Any]
    worker_id: str
    tracer: Tracer


class _Boss:
    """The pipe to the worker. A thread listens, so that `Stop` is heard while a handler runs."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe
        self._sending = threading.Lock()
        self._asking = threading.Lock()
        self._changing = threading.Lock()
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._number = 0
        self._stopped = 0
        self._on_stop: Callable[[], None] | None = None
        self.assignments: queue.SimpleQueue[Assignment] = queue.SimpleQueue()
        self.stop = StopSign()

    def listen(self) -> None:
        while True:
            try:
                said = self._pipe.recv()
            except (EOFError, OSError):
                # The worker is gone: nobody extends the lease or takes the result.
                os._exit(1)
            except Exception as error:
                said = Answer(error=BrigadeError(f"the worker's answer could not be read: {error}"))
            if isinstance(said, Assignment):
                with self._changing:
                    self._number, self.stop = said.number, StopSign()
                    if said.number == self._stopped:
                        self.stop.set()
                self.assignments.put(said)
            elif isinstance(said, Answer):
                self._answers.put(said)
            elif isinstance(said, Stop):
                self._stop(said.number)

    def _stop(self, number: int) -> None:
        """It may come before its assignment, or after the handler has ended."""
        with self._changing:
            self._stopped = number
            if number == self._number:
                self.stop.set()
                if self._on_stop is not None:
                    self._on_stop()

    def when_stopped(self, call: Callable[[], None] | None) -> None:
        """What to do when the handler in hand should stop."""
        with self._changing:
            self._on_stop = call
            if call is not None and self.stop.is_set():
                call()

    def tell(self, what: object) -> None:
        try:
            with self._sending:
                self._pipe.send(what)
        except OSError:
            os._exit(1)

    def ask(self, request: Extension | Read) -> Any:
        with self._asking:
            self.tell(request)
            answer = self._answers.get()
        if answer.error is not None:
            raise answer.error
        return answer.value

    def hand(self) -> Hand:
        """The way to the store for the assignment in hand."""
        return Hand(self, self._number)


class Hand:
    """What one handler may ask of the worker. When its assignment is over it gets StaleLease."""

    def __init__(self, boss: _Boss, number: int) -> None:
        self._boss = boss
        self._number = number
        self._readers = itertools.count()

    def extend(self, _message: Message, seconds: float | None) -> Lease:
        return self._boss.ask(Extension(self._number, seconds))

    async def extend_async(self, message: Message, seconds: float | None) -> Lease:
        return await asyncio.to_thread(self.extend, message, seconds)

    def read(self, reader: int, size: int) -> bytes:
        return self._boss.ask(Read(self._number, reader, size))

    def open(self, message: Message) -> io.BufferedReader:
        if message.body is not None:
            return io.BufferedReader(io.BytesIO(message.body))
        return io.BufferedReader(_Payload(self, next(self._readers)), buffer_size=CHUNK)

    def open_async(self, message: Message) -> AsyncReader:
        if message.body is not None:
            return AsyncReader.over(message.body)
        return AsyncReader(self._chunks(next(self._readers)))

    async def _chunks(self, reader: int) -> AsyncIterator[bytes]:
        while chunk := await asyncio.to_thread(self.read, reader, CHUNK):
            yield chunk


class _Payload(io.RawIOBase):
    """A large payload, read through the worker."""

    def __init__(self, hand: Hand, number: int) -> None:
        super().__init__()
        self._hand = hand
        self._number = number

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._hand.read(self._number, len(buffer))
        buffer[: len(data)] = data
        return len(data)


def main(pipe: Any, settings: ChildSettings) -> None:
    """Handle messages until the pipe ends. The worker decides when to stop: signals to the group are not for us."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Caught, not ignored: what a handler starts would inherit that.
        signal.signal(number, _ignore)
    boss = _Boss(pipe)
    handlers = {name: Handler(function) for name, function in settings.handlers.items()}
    threading.Thread(target=boss.listen, name="brigade-boss", daemon=True).start()
    boss.tell("ready")
    while True:
        message = boss.assignments.get().message
        boss.tell(_handle(message, handlers[message.queue], settings, boss))


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Not for us."""


def _handle(message: Message, handler: Handler, settings: ChildSettings, boss: _Boss) -> Outcome:
    hand = boss.hand()
    force_setattr(message, "opener", hand.open_async if handler.is_async else hand.open)
    context: Context | AsyncContext
    if handler.is_async:
        context = AsyncContext(message, settings.worker_id, boss.stop, hand.extend_async)
    else:
        context = Context(message, settings.worker_id, boss.stop, hand.extend)
    try:
        with settings.tracer.handling(message, settings.worker_id):
            result = handler(message, context)
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result, boss))
    except BaseException as error:
        return outcome_of_error(error)
    return outcome_of_result(message, result)


async def _awaited(result: Any, boss: _Boss) -> Any:
    """The result of an async handler, which is cancelled when it should stop."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(result)
    boss.when_stopped(lambda: loop.call_soon_threadsafe(task.cancel) and None)
    try:
        return await task
    finally:
        boss.when_stopped(None)
