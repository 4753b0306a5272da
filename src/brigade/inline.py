"""Sync calls that the calling thread carries out by itself, instead of waking the hub's thread and waiting for it.

A hub belongs to its event loop, which runs in a thread of its own and sleeps most of the time. While it sleeps, the
loop's *turn* is free: a caller who takes it may do what a callback of the loop might do. A call that never has to wait
is over then. One that has to goes on as a task of the loop, from where it is, and its caller waits.

- Where several threads call, none takes the turn for itself: on the loop their writes go out together, and plain calls
  are made together by one of them (`brigade.together`).
- The loop's thread takes the turn back before it runs anything, and callers let it pass first.
- What a caller schedules wakes the loop when the turn is given back.
- Handlers of signals run in the main thread, between any two instructions, and may raise. In the middle of the hub's
  own bookkeeping they must not: they run when the turn has been given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import threading
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from functools import partial
from types import CoroutineType
from typing import Any, Generic, TypeVar, cast

from brigade.errors import StoreUnavailable
from brigade.heldsignals import HeldSignals, in_main_thread, unsignalled

__all__ = ["CLOSED", "Begun", "Call", "HubLoop", "alone", "at_once", "on_the_loop", "wait_for"]

T = TypeVar("T")
COMPANY = 32
"""After so many calls in a row a thread counts as the only one."""
PATIENCE = 0.005
"""Seconds for which a thread waits for the loop to sleep. To hand over what it wants takes as long as most of what the
loop does by itself."""
CLOSED = "the hub was closed while this call was under way; it may have been carried out"
SLICE = 0.5
"""Seconds that a wait lasts at most before Python may run a signal's handler. A signal that comes just before a lock
is waited for, or in another thread, doesn't wake it."""


class _Selector(selectors.DefaultSelector):
    """Frees the turn while the loop sleeps."""

    def __init__(self, turn: threading.Lock) -> None:
        super().__init__()
        self._turn = turn
        self.awake = True

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        self.awake = False
        self._turn.release()
        try:
            return super().select(timeout)
        finally:
            self.awake = True
            self._turn.acquire()


class HubLoop(asyncio.SelectorEventLoop):
    """An event loop that lends its turn to other threads while it sleeps."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._sleeper = _Selector(self._turn)
        self._scheduled_meanwhile = False
        self._caller = 0
        self._company = 0
        self.lent = False
        """Whether a caller's thread has the turn."""
        self.borrower = 0
        """The thread that has it."""
        super().__init__(self._sleeper)

    def run_forever(self) -> None:
        with self._turn:
            super().run_forever()

    def call_soon(self, *args: Any, **options: Any) -> asyncio.Handle:
        self._scheduled_meanwhile = True
        return super().call_soon(*args, **options)

    def call_at(self, *args: Any, **options: Any) -> asyncio.TimerHandle:
        self._scheduled_meanwhile = True
        return super().call_at(*args, **options)

    def borrow(self) -> bool:
        """Take the turn if the loop sleeps and nobody else has it. Then this is the running loop of this thread.

        Not while several threads call: those that come together on the loop share their writes.
        """
        here = threading.get_ident()
        if here != self._caller:
            self._company = COMPANY if self._caller else 0
            self._caller = here
        if self._company:
            self._company -= 1
            return False
        return self.take(patience=PATIENCE)

    def take(self, *, patience: float = 0.0) -> bool:
        """`borrow`, for who does it on behalf of several threads. With patience the loop may be awake for a while."""
        sleeper = self._sleeper
        if self.get_debug() or (sleeper.awake and not patience):
            return False
        if not (self._turn.acquire(False) or (patience and self._turn.acquire(timeout=patience))):
            return False
        if sleeper.awake or self.is_closed():
            self._turn.release()
            return False
        self._scheduled_meanwhile = False
        self.lent, self.borrower = True, threading.get_ident()
        return True

    def give_back(self) -> None:
        """End of the turn; the loop wakes if it has something to do."""
        self.lent, self.borrower = False, 0
        wake = self._scheduled_meanwhile
        self._turn.release()
        if wake:
            with contextlib.suppress(RuntimeError):
                self.call_soon_threadsafe(_nothing)


def wait_for(told: threading.Lock, loop: HubLoop) -> None:
    """Wait until a lock is released by what the loop carries out."""
    while not told.acquire(timeout=SLICE):
        if loop.is_closed():
            raise StoreUnavailable(CLOSED)


def _nothing() -> None:
    """Wakes the loop."""


def alone() -> bool:
    """Whether a caller's thread carries out its own call, so that nobody else can come along meanwhile."""
    loop = asyncio.get_running_loop()
    return isinstance(loop, HubLoop) and loop.lent


class _Leave:
    """Yielded by what must go on as a task of the loop."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield self


async def on_the_loop() -> None:
    """Go on as a task of the loop: what follows has a time limit, which only tasks can have."""
    if alone():
        await _Leave()


class Begun(Coroutine[Any, Any, T]):
    """A coroutine that was run up to its end, or to where it has to wait. From there a task can go on with it."""

    __slots__ = ("_begun", "_waits_for", "_work", "ended", "result")

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._begun = False
        self._waits_for: Any = None
        self.ended = False
        self.result: T
        try:
            # Who yields nothing lets others come along; there are none.
            while (waits_for := work.send(None)) is None:
                pass
            self._waits_for = None if isinstance(waits_for, _Leave) else waits_for
        except StopIteration as stop:
            self.ended, self.result = True, stop.value

    def send(self, value: Any, /) -> Any:
        if not self._begun:
            self._begun = True
            return self._waits_for
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        self._begun = True
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise TypeError("only a task can go on with it")


Plain = Callable[[Any, Any], Any]
"""Makes a call for a hub: what it returns, None, or a coroutine."""


def at_once(
    loop: HubLoop, make: Plain, hub: object, call: object, undo: Callable[[Any], None] | None = None
) -> tuple[bool, Any]:
    """Make a call in this thread while the loop sleeps: whether it was our turn, and what it returned.

    None says that the call did nothing. Where it returns a coroutine, the loop carries that out and this thread waits.
    A result that the caller never gets, because a signal's handler raised, is given to `undo`, on the loop.
    """
    ours, done = False, None
    rest: Call[Any] | None = None
    try:
        if in_main_thread():
            with HeldSignals():  # Not `unsignalled`: what was done must be known where a handler raises in the end.
                ours, done, rest = _at_once(loop, make, hub, call)
        else:
            ours, done, rest = _at_once(loop, make, hub, call)
        if rest is not None:
            rest.wait()
    except BaseException:
        if rest is not None:
            rest.abandon(partial(_undone, undo))
        elif done is not None and undo is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(undo, done)
        raise
    return ours, done if rest is None else rest.result()


def _at_once(loop: HubLoop, make: Plain, hub: object, call: object) -> tuple[bool, Any, Call[Any] | None]:
    if not loop.borrow():
        return False, None, None
    try:
        done = make(hub, call)
        if type(done) is not CoroutineType:
            return True, done, None
        rest: Call[Any] = Call(loop, cast("Coroutine[Any, Any, Any]", done))
        rest.there()
        return True, None, rest
    finally:
        loop.give_back()


def _undone(undo: Callable[[Any], None] | None, done: Any) -> None:
    if undo is not None and done is not None:
        undo(done)


class Call(Generic[T]):
    """A coroutine that a thread wants carried out: by itself, if it gets the loop's turn, or by the loop's thread."""

    __slots__ = ("_context", "_ended", "_error", "_loop", "_result", "_task", "_work", "done")

    def __init__(self, loop: HubLoop, work: Coroutine[Any, Any, T]) -> None:
        self._loop = loop
        self._work = work
        self._context: Context | None = None
        self._task: asyncio.Task[T] | None = None
        self._ended = threading.Lock()
        self._error: BaseException | None = None
        self._result: T
        self.done = False

    def here(self) -> bool:
        """Carry it out in this thread, as far as it doesn't wait. False, and nothing happened: it isn't our turn."""
        return unsignalled(self._in_turn)

    def _in_turn(self) -> bool:
        if not self._loop.borrow():
            return False
        self._context = copy_context()
        try:
            self._context.run(self._begin_here)
        finally:
            self._loop.give_back()
        return True

    def _begin_here(self) -> None:
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._loop)
        try:
            begun = Begun(self._work)
            if begun.ended:
                self.done, self._result = True, begun.result
            else:
                self._work = begun
                self._ended.acquire()
                self._begin()
        except BaseException as error:
            self.done, self._error = True, error
        finally:
            asyncio._set_running_loop(before)

    def there(self) -> None:
        """Have the loop's thread carry it out."""
        self._ended.acquire()
        try:
            self._loop.call_soon_threadsafe(self._begin)
        except RuntimeError:
            raise StoreUnavailable(CLOSED) from None

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._work, context=self._context)
        self._task.add_done_callback(self._end)

    def _end(self, _task: asyncio.Task[T]) -> None:
        self._ended.release()

    def wait(self) -> None:
        if not self.done:
            wait_for(self._ended, self._loop)

    def result(self) -> T:
        try:
            if self._error is not None:
                raise self._error
            return self._result if self._task is None else self._task.result()
        except asyncio.CancelledError:
            raise StoreUnavailable(CLOSED) from None

    def abandon(self, undo: Callable[[T], None] | None) -> None:
        """Nobody waits for it any more: cancel it, or undo it if it is over."""
        try:
            self._loop.call_soon_threadsafe(self._abandon, undo)
        except RuntimeError:  # The loop is closed, and never began it or has ended it.
            if self._task is None:
                self._work.close()

    def _abandon(self, undo: Callable[[T], None] | None) -> None:
        """On the loop, after `_begin` if that was ever asked for."""
        task = self._task
        if task is not None and not task.done():
            task.cancel()
        elif task is None and not self.done:
            self._work.close()
        elif undo is not None and self._error is None and not (task and (task.cancelled() or task.exception())):
            undo(self._result if task is None else task.result())
