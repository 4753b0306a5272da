"""Calls that several threads make together: one of them carries out what all of them want.

Who comes while nobody leads does: it takes the loop's turn and carries out all calls that wait, its own among them.
The others sleep until they are told what theirs came to. What comes meanwhile waits for the next leader, which is the
first of those. While the loop is awake it is the loop that carries them out, so that callers never keep it waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import CoroutineType
from typing import Any, Generic, TypeVar, cast

from brigade.errors import StoreUnavailable
from brigade.heldsignals import unsignalled
from brigade.inline import CLOSED, HubLoop, wait_for

__all__ = ["Together"]

C = TypeVar("C")
Outcomes = list[Any]
Undo = Callable[[Any], None]


class _Ask(Generic[C]):
    """A thread's call. Its lock is released when it has its outcome, and when it is to lead."""

    __slots__ = ("answered", "call", "given_up", "leads", "outcome", "taken", "told", "undo")

    def __init__(self, call: C, undo: Undo | None) -> None:
        self.call = call
        self.undo = undo
        self.told = threading.Lock()
        self.told.acquire()
        self.leads = self.taken = self.answered = self.given_up = False
        self.outcome: Any = None


class Together(Generic[C]):
    """Gathers the calls of threads. `carry_out` is called by who has the loop's turn, with all that are there."""

    def __init__(
        self, loop: HubLoop, carry_out: Callable[[Sequence[C]], Outcomes | Coroutine[Any, Any, Outcomes]]
    ) -> None:
        self._loop = loop
        self._carry_out = carry_out
        self._lock = threading.Lock()
        self._asks: list[_Ask[C]] = []
        self._led = False
        self._tasks: set[asyncio.Task[Outcomes]] = set()

    def make(self, call: C, undo: Undo | None = None) -> Any:
        """What the call comes to.

        An outcome that the caller never gets, because a signal's handler raised, is given to `undo`, on the loop.
        """
        ask = _Ask(call, undo)
        try:
            unsignalled(self._join, ask)
            while True:
                wait_for(ask.told, self._loop)
                if ask.answered:
                    break
                unsignalled(self._lead)
        except BaseException:
            unsignalled(self._give_up, ask)
            raise
        if isinstance(ask.outcome, BaseException):
            raise ask.outcome
        return ask.outcome

    def _join(self, ask: _Ask[C]) -> None:
        with self._lock:
            self._asks.append(ask)
            leads, self._led = not self._led, True
        if leads:
            self._lead()

    def _lead(self) -> None:
        with self._lock:
            asks, self._asks = self._asks, []
            for ask in asks:
                ask.taken = True
        try:
            if not self._loop.take():
                self._loop.call_soon_threadsafe(self._there, asks)
                return
            try:
                done = self._carry_out([ask.call for ask in asks])
            finally:
                self._loop.give_back()
            if type(done) is CoroutineType:
                self._go_on(asks, cast("Coroutine[Any, Any, Outcomes]", done))
                return
        except BaseException as error:
            done = [StoreUnavailable(CLOSED) if self._loop.is_closed() else error] * len(asks)
        self._tell(asks, cast(Outcomes, done))

    def _go_on(self, asks: list[_Ask[C]], work: Coroutine[Any, Any, Outcomes]) -> None:
        """Leave what has to be waited for to the loop."""
        try:
            self._loop.call_soon_threadsafe(self._begin, asks, work)
        except RuntimeError:
            work.close()
            raise

    def _there(self, asks: list[_Ask[C]]) -> None:
        """On the loop."""
        try:
            done = self._carry_out([ask.call for ask in asks])
        except BaseException as error:
            done = [error] * len(asks)
        if type(done) is CoroutineType:
            self._begin(asks, cast("Coroutine[Any, Any, Outcomes]", done))
        else:
            self._tell(asks, cast(Outcomes, done))

    def _begin(self, asks: list[_Ask[C]], work: Coroutine[Any, Any, Outcomes]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._end, asks))

    def _end(self, asks: list[_Ask[C]], task: asyncio.Task[Outcomes]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._tell(asks, [StoreUnavailable(CLOSED)] * len(asks))
        else:
            error = task.exception()
            self._tell(asks, task.result() if error is None else [error] * len(asks))

    def _tell(self, asks: list[_Ask[C]], outcomes: Outcomes) -> None:
        """Hand the outcomes out, and the lead to the next."""
        with self._lock:
            for ask, outcome in zip(asks, outcomes, strict=True):
                ask.outcome, ask.answered = outcome, True
            following = self._next_leader()
        for ask in asks:
            ask.told.release()
        if following is not None:
            following.told.release()
        for ask in asks:
            if ask.given_up:
                self._undone(ask)

    def _next_leader(self) -> _Ask[C] | None:
        """Under the lock."""
        if not self._asks:
            self._led = False
            return None
        self._asks[0].leads = True
        return self._asks[0]

    def _give_up(self, ask: _Ask[C]) -> None:
        """Nobody waits for it any more."""
        following: _Ask[C] | None = None
        with self._lock:
            ask.given_up = not ask.answered
            if not ask.taken and ask in self._asks:
                self._asks.remove(ask)
                following = self._next_leader() if ask.leads else None
        if following is not None:
            following.told.release()
        if not ask.given_up:
            self._undone(ask)

    def _undone(self, ask: _Ask[C]) -> None:
        outcome, undo = ask.outcome, ask.undo
        if outcome is None or isinstance(outcome, BaseException):
            return
        with contextlib.suppress(RuntimeError):
            if type(outcome) is CoroutineType:
                work = cast("Coroutine[Any, Any, Any]", outcome)
                asyncio.run_coroutine_threadsafe(_finished(work, undo), self._loop)
            elif undo is not None:
                self._loop.call_soon_threadsafe(undo, outcome)


async def _finished(work: Coroutine[Any, Any, Any], undo: Undo | None) -> None:
    outcome = await work
    if undo is not None and outcome is not None:
        undo(outcome)
