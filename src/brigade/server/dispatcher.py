"""The dispatcher: one per process. Consumers wait in line; one claim on the store serves many of them.

Each queue has a line, first come first served. While consumers wait nobody asks the store but the line: it claims for
all of them at once, hands out one message each in order of waiting, then fills up. When there is nothing it sleeps in
the store's own `wait`. Where consumers come in numbers it claims ahead: whoever comes back gets the next message
without a storage request of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from brigade.clock import Clock
from brigade.errors import BrigadeError, StoreUnavailable
from brigade.model import Grant, Message, Release
from brigade.stores import Store
from brigade.stores.remote.faults import Throttled

__all__ = ["Dispatcher", "Held"]

log = logging.getLogger("brigade.server")

MOST_CLAIMED = 10_000
AHEAD_FROM = 8
"""Consumers in line at once from which messages are claimed ahead."""

AHEAD_FOR = 1.0
"""Seconds that a message claimed ahead is kept for the next consumer, or a quarter of its lease if that is less."""

FRESH = 1.0
"""Seconds for which somebody who joins a line that found nothing need not look again."""

LONGEST_SLEEP = 60.0
LOADS = 64


@dataclass(slots=True, eq=False)
class Held:
    """A claimed message on its way to a consumer, and the part of a grant that leases it, where that is known."""

    message: Message
    grant: Grant | None
    visibility: float


@dataclass(slots=True, eq=False)
class _Waiter:
    limit: int
    owner: str
    visibility: float
    answer: asyncio.Future[list[Held]]
    patient: bool
    looked: bool = False
    busy: bool = False
    late: bool = False
    got: list[Held] = field(default_factory=list[Held])

    @property
    def open(self) -> bool:
        return not self.answer.done()


class Dispatcher:
    """Hands messages to consumers. It lives on the event loop of the store."""

    def __init__(self, store: Store, *, name: str, most_consumers: int) -> None:
        self.store = store
        self.name = name
        self.most_consumers = most_consumers
        self.consumers = 0
        self.closing = False
        self._lines: dict[str, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def clock(self) -> Clock:
        return self.store.clock

    async def take(self, queue: str, *, limit: int, owner: str, visibility: float, wait: float) -> list[Held]:
        """Up to `limit` messages for one consumer. Cancelled, it gives back what it was handed."""
        with self.seat():
            return await self._take(queue, limit, owner, visibility, wait)

    @contextlib.contextmanager
    def seat(self) -> Generator[None, None, None]:
        """A place for one consumer, while there are places."""
        if self.closing:
            raise StoreUnavailable("the server is shutting down; try another one, or again in a moment")
        if self.consumers >= self.most_consumers:
            raise Throttled(
                f"{self.most_consumers} consumers wait on this server, which is the most it takes; "
                "come back later, use more servers, or raise --max-consumers"
            )
        self.consumers += 1
        try:
            yield
        finally:
            self.consumers -= 1

    async def _take(self, queue: str, limit: int, owner: str, visibility: float, wait: float) -> list[Held]:
        line = self._lines.get(queue)
        if line is None:
            line = self._lines[queue] = _Line(self, queue)
        answer: asyncio.Future[list[Held]] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(limit, owner, visibility, answer, wait > 0)
        timer = asyncio.get_running_loop().call_later(wait, line.expire, waiter) if wait > 0 else None
        try:
            line.join(waiter)
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self.give_back(queue, answer.result())
            raise
        finally:
            if timer is not None:
                timer.cancel()
            line.leave(waiter)

    def give_back(self, queue: str, held: Sequence[Held]) -> None:
        """Nobody will get these: the next in line does, or they are released in the store at once."""
        if not held:
            return
        line = self._lines.get(queue)
        left = line.hand_over(held) if line is not None and not self.closing else list(held)
        if left:
            self.background(self.release(queue, left))

    async def release(self, queue: str, held: Iterable[Held]) -> None:
        """Release messages in the store. Where that fails their leases run out."""
        messages = [one.message for one in held]
        try:
            await self.store.settle(queue, [Release(message) for message in messages])
        except BrigadeError as error:
            log.warning(
                "%d messages of %s could not be given back (%s); their leases run out", len(messages), queue, error
            )
        else:
            self.news(queue)

    def news(self, queue: str) -> None:
        """Something became claimable through this server: the line looks at once."""
        line = self._lines.get(queue)
        if line is not None:
            line.news()

    async def drop_ahead(self, queue: str) -> None:
        """Release what was claimed ahead: before a pause, a purge or anything that counts."""
        line = self._lines.get(queue)
        if line is not None and (left := line.take_ahead()):
            await self.release(queue, left)

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """See work through that nobody waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, line: _Line) -> None:
        if self._lines.get(line.queue) is line:
            del self._lines[line.queue]

    def stop(self) -> None:
        """Take nobody in any more; whoever waits goes home with nothing."""
        self.closing = True
        for line in list(self._lines.values()):
            line.stop()

    async def close(self) -> None:
        """`stop`, and release everything that was won and not delivered."""
        self.stop()
        await asyncio.gather(*(line.ended() for line in list(self._lines.values())))
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


class _Line:
    """The consumers that wait for one queue, and what was claimed ahead for them."""

    def __init__(self, dispatcher: Dispatcher, queue: str) -> None:
        self.queue = queue
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._waiters: deque[_Waiter] = deque()
        self._ahead: deque[Held] = deque()
        self._ahead_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._nudged = asyncio.Event()
        self._looked_at = float("-inf")

    def join(self, waiter: _Waiter) -> None:
        self._waiters.append(waiter)
        if self._ahead:
            self._keep_ahead(self._hand_out(self.take_ahead()), wanted_ahead=True)
        if not waiter.open:
            return
        recent = self._dispatcher.clock.monotonic() - self._looked_at < FRESH
        waiter.looked = waiter.patient and recent and self._asleep
        if not waiter.looked:
            self._nudged.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def _asleep(self) -> bool:
        """Somebody has waited here since the line last looked, so the store is being listened to."""
        return self._task is not None and len(self._waiters) > 1

    def leave(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if not self._waiters:
            self._nudged.set()

    def expire(self, waiter: _Waiter) -> None:
        """Its time is over. A claim that is under way for it may still bring something."""
        waiter.late = True
        if waiter.looked and not waiter.busy:
            self._resolve(waiter)

    def news(self) -> None:
        for waiter in self._waiters:
            waiter.looked = False
        self._nudged.set()

    def stop(self) -> None:
        for waiter in list(self._waiters):
            if not waiter.busy:
                self._resolve(waiter)
        self._nudged.set()

    async def ended(self) -> None:
        if self._task is not None:
            await self._task
        if left := self.take_ahead():
            await self._dispatcher.release(self.queue, left)

    def hand_over(self, held: Sequence[Held]) -> list[Held]:
        """Give messages to those who wait now; returns what nobody wanted, and what was held for too long."""
        now = self._dispatcher.clock.now()
        fresh = [one for one in held if one.message.lease.expires_at_ms - now >= one.visibility * 750]
        return [one for one in held if one not in fresh] + self._hand_out(fresh)

    def take_ahead(self) -> list[Held]:
        held = list(self._ahead)
        self._ahead.clear()
        return held

    async def _run(self) -> None:
        try:
            while any(waiter.open for waiter in self._waiters):
                first = next((waiter for waiter in self._waiters if waiter.open and not waiter.looked), None)
                if first is None:
                    await self._sleep()
                else:
                    await self._look([one for one in self._waiters if one.open and one.visibility == first.visibility])
        except BrigadeError as error:
            self._fail(error)
        except Exception as error:
            log.exception("the line of queue %s failed", self.queue)
            self._fail(StoreUnavailable(f"claiming from queue {self.queue!r} failed: {type(error).__name__}"))
        finally:
            self._task = None
            if self._waiters and any(waiter.open for waiter in self._waiters):
                self._task = asyncio.get_running_loop().create_task(self._run())
            elif not self._ahead:
                self._dispatcher.forget(self)

    async def _look(self, group: list[_Waiter]) -> None:
        """One claim for all of these."""
        for waiter in group:
            waiter.busy = True
        self._nudged.clear()
        wanted = sum(waiter.limit for waiter in group)
        ahead = len(group) if len(group) >= AHEAD_FROM else 0
        owners = {waiter.owner for waiter in group}
        try:
            grants = await self._store.claim(
                self.queue,
                limit=min(wanted + ahead, MOST_CLAIMED),
                owner=owners.pop() if len(owners) == 1 and not ahead else self._dispatcher.name,
                visibility=group[0].visibility,
            )
            held = await self._load(grants, group[0].visibility)
        finally:
            for waiter in group:
                waiter.busy = False
        self._looked_at = self._dispatcher.clock.monotonic()
        left = self._hand_out(held)
        if not grants:
            for waiter in self._waiters:
                waiter.looked = True
        for waiter in list(self._waiters):
            if waiter.looked and (waiter.late or not waiter.patient or self._dispatcher.closing):
                self._resolve(waiter)
        self._keep_ahead(left, wanted_ahead=bool(ahead))

    async def _load(self, grants: Sequence[Grant], visibility: float) -> list[Held]:
        held: list[Held] = []
        failures: list[BaseException] = []
        for start in range(0, len(grants), LOADS):
            some = grants[start : start + LOADS]
            loads = await asyncio.gather(*(self._store.load([grant]) for grant in some), return_exceptions=True)
            for grant, messages in zip(some, loads, strict=True):
                if isinstance(messages, BaseException):
                    failures.append(messages)
                    continue
                whole = len(messages) == len(grant.members)
                for place, message in enumerate(messages):
                    held.append(Held(message, _part(grant, place) if whole else None, visibility))
        if failures and not held:
            raise failures[0]
        for failure in failures:
            log.warning(
                "messages of %s were claimed but could not be read (%s); their leases run out", self.queue, failure
            )
        return held

    def _hand_out(self, held: list[Held]) -> list[Held]:
        """One message each in order of waiting, then more in the same order; returns what is left.

        A consumer gets only leases of the length it asked for.
        """
        left: list[Held] = []
        for visibility in {one.visibility for one in held}:
            rest = deque(one for one in held if one.visibility == visibility)
            fitting = [waiter for waiter in self._waiters if waiter.open and waiter.visibility == visibility]
            for waiter in fitting:
                if rest:
                    waiter.got.append(rest.popleft())
            for waiter in fitting:
                while rest and len(waiter.got) < waiter.limit:
                    waiter.got.append(rest.popleft())
            for waiter in fitting:
                if waiter.got:
                    self._resolve(waiter)
            left += rest
        return left

    def _resolve(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if waiter.open:
            owned = [Held(_owned(one.message, waiter.owner), one.grant, one.visibility) for one in waiter.got]
            waiter.answer.set_result(owned)

    def _keep_ahead(self, left: list[Held], *, wanted_ahead: bool) -> None:
        if not left:
            return
        if not wanted_ahead or self._dispatcher.closing:
            self._dispatcher.background(self._dispatcher.release(self.queue, left))
            return
        self._ahead.extend(left)
        if self._ahead_timer is None:
            hold = min(AHEAD_FOR, left[0].visibility / 4)
            self._ahead_timer = asyncio.get_running_loop().call_later(hold, self._ahead_is_old)

    def _ahead_is_old(self) -> None:
        self._ahead_timer = None
        left = self.take_ahead()
        if left:
            self._dispatcher.background(self._dispatcher.release(self.queue, left))
        if self._task is None:
            self._dispatcher.forget(self)

    async def _sleep(self) -> None:
        """Until the store tells of something, or somebody here does."""
        loop = asyncio.get_running_loop()
        told = loop.create_task(self._store.wait(self.queue, LONGEST_SLEEP))
        nudged = loop.create_task(self._nudged.wait())
        try:
            await asyncio.wait({told, nudged}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            nudged.cancel()
            if not told.done():
                told.cancel()
            await asyncio.gather(told, nudged, return_exceptions=True)
        self._nudged.clear()
        if not told.cancelled():
            told.result()
            for waiter in self._waiters:
                waiter.looked = False

    def _fail(self, error: BrigadeError) -> None:
        for waiter in list(self._waiters):
            self._waiters.remove(waiter)
            if waiter.open:
                waiter.answer.set_exception(error)


def _owned(message: Message, owner: str) -> Message:
    """The message as its consumer sees it: leases that were won for many are theirs all the same."""
    if message.lease.owner == owner:
        return message
    return replace(message, lease=replace(message.lease, owner=owner))


def _part(grant: Grant, place: int) -> Grant:
    """The part of a grant that leases one of its messages."""
    member = grant.members[place]
    return replace(
        grant,
        members=(member,),
        attempts=(grant.attempts[place],),
        max_attempts=(grant.max_attempts[place],),
        recovered=(member,) if member in grant.recovered else (),
    )
