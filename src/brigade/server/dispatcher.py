"""The dispatcher: one per process. Consumers wait in line; one claim on the store serves many of them.

Each queue has a line, first come first served. While consumers wait nobody asks the store but the line: it claims for
all of them at once, each lease in its consumer's own name, one message each in order of waiting, then more. Whoever
comes while a claim is under way is served by the next one. When there is nothing the line sleeps in the store's own
`wait`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from brigade.clock import Clock
from brigade.errors import BrigadeError, StoreUnavailable
from brigade.inline import Begun
from brigade.model import Grant, Message, Release
from brigade.stores import SharingStore, Store, Taker
from brigade.stores.remote.faults import Throttled

__all__ = ["Dispatcher", "Held", "Waiter"]

log = logging.getLogger("brigade.server")

MOST_CLAIMED = 10_000
FRESH = 1.0
"""Seconds for which somebody who joins a line that found nothing need not look again."""

LONGEST_SLEEP = 3600.0
COMPANY = 32
"""After so many takes in a row a consumer counts as the only one."""


@dataclass(slots=True, eq=False)
class Held:
    """A claimed message on its way to a consumer, and the part of a grant that leases it."""

    message: Message
    grant: Grant


@dataclass(slots=True, eq=False)
class Waiter:
    """A consumer in line, or one that a claim is under way for."""

    limit: int
    owner: str
    visibility: float
    answer: asyncio.Future[list[Held]]
    patient: bool
    looked: bool = False
    busy: bool = False
    late: bool = False

    @property
    def open(self) -> bool:
        return not self.answer.done()


class Dispatcher:
    """Hands messages to consumers. It lives on the event loop of the store."""

    def __init__(self, store: Store, *, name: str, most_consumers: int) -> None:
        self.store = store
        self.sharing = store if isinstance(store, SharingStore) else None
        self.name = name
        self.most_consumers = most_consumers
        self.consumers = 0
        self.handed_out = 0
        self.given_back = 0
        self.claims = 0
        self.closing = False
        self._lines: dict[str, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._company = COMPANY

    @property
    def clock(self) -> Clock:
        return self.store.clock

    def waiting(self) -> dict[str, int]:
        """How many consumers wait in which line."""
        return {queue: len(line) for queue, line in self._lines.items()}

    def line(self, queue: str) -> list[Waiter]:
        """Who waits at a queue, the next to be served first."""
        return self._lines[queue].waiters() if queue in self._lines else []

    async def take(
        self, queue: str, *, limit: int, owner: str, visibility: float, wait: float, alone: bool = False
    ) -> list[Held]:
        """Up to `limit` messages for one consumer. Cancelled, it gives back what it was handed.

        For who is `alone`, and was so for a while, the store is asked at once: nobody comes along.
        """
        self._company = max(0, self._company - 1) if alone else COMPANY
        at_once = not self._company and self.store.prompt
        with self.seat():
            return await self.take_seated(
                queue, limit=limit, owner=owner, visibility=visibility, wait=wait, at_once=at_once
            )

    @contextlib.contextmanager
    def seat(self) -> Generator[None, None, None]:
        """A place for one consumer, while there are places."""
        if self.closing:
            raise StoreUnavailable("the server is shutting down; try another one, or again in a moment")
        if self.consumers >= self.most_consumers:
            raise Throttled(
                f"{self.most_consumers} consumers wait on this server, which is the most it takes; "
                "come back later, use more servers, or raise --queue-max-consumers"
            )
        self.consumers += 1
        try:
            yield
        finally:
            self.consumers -= 1

    async def take_seated(
        self, queue: str, *, limit: int, owner: str, visibility: float, wait: float, at_once: bool = False
    ) -> list[Held]:
        """`take`, for a consumer that has a place already."""
        line = self._lines.get(queue)
        if line is None:
            line = self._lines[queue] = _Line(self, queue)
        answer: asyncio.Future[list[Held]] = asyncio.get_running_loop().create_future()
        waiter = Waiter(min(limit, MOST_CLAIMED), owner, visibility, answer, wait > 0)
        timer = asyncio.get_running_loop().call_later(wait, line.expire, waiter) if wait > 0 else None
        try:
            line.join(waiter, at_once=at_once)
            held = await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self.give_back(queue, answer.result())
            raise
        finally:
            if timer is not None:
                timer.cancel()
            line.leave(waiter)
        self.handed_out += len(held)
        return held

    def give_back(self, queue: str, held: Sequence[Held]) -> None:
        """Nobody will get these: they are released in the store at once, and the next in line may claim them."""
        if held:
            self.background(self.release(queue, held))

    async def release(self, queue: str, held: Iterable[Held]) -> None:
        """Release messages in the store. Where that fails their leases run out."""
        messages = [one.message for one in held]
        self.given_back += len(messages)
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
    """The consumers that wait for one queue."""

    def __init__(self, dispatcher: Dispatcher, queue: str) -> None:
        self.queue = queue
        self._dispatcher = dispatcher
        self._store = dispatcher.store
        self._waiters: deque[Waiter] = deque()
        self._task: asyncio.Task[None] | None = None
        self._nudged = asyncio.Event()
        self._looked_at = float("-inf")

    def __len__(self) -> int:
        return len(self._waiters)

    def waiters(self) -> list[Waiter]:
        return list(self._waiters)

    def join(self, waiter: Waiter, *, at_once: bool) -> None:
        self._waiters.append(waiter)
        recent = self._dispatcher.clock.monotonic() - self._looked_at < FRESH
        waiter.looked = waiter.patient and recent and self._asleep
        if not waiter.looked:
            self._nudged.set()
        if self._task is None:
            self._start(at_once=at_once)

    def _start(self, *, at_once: bool) -> None:
        """Begin to look: now, or when all who come at the same moment are here."""
        work = self._run()
        if at_once:
            work = Begun(work)
            if work.ended:
                return
        self._task = asyncio.get_running_loop().create_task(work)

    @property
    def _asleep(self) -> bool:
        """Somebody has waited here since the line last looked, so the store is being listened to."""
        return self._task is not None and len(self._waiters) > 1

    def leave(self, waiter: Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if not self._waiters:
            self._nudged.set()

    def expire(self, waiter: Waiter) -> None:
        """Its time is over. A claim that is under way for it may still bring something."""
        waiter.late = True
        if waiter.looked and not waiter.busy:
            self._resolve(waiter, [])

    def news(self) -> None:
        for waiter in self._waiters:
            waiter.looked = False
        self._nudged.set()

    def stop(self) -> None:
        for waiter in list(self._waiters):
            if not waiter.busy:
                self._resolve(waiter, [])
        self._nudged.set()

    async def ended(self) -> None:
        if self._task is not None:
            await self._task

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
            log.exception("the line of %s failed", self.queue)
            self._fail(StoreUnavailable(f"the server failed to claim ({type(error).__name__}); its log says why"))
        finally:
            self._task = None
            if any(waiter.open for waiter in self._waiters):
                self._task = asyncio.get_running_loop().create_task(self._run())
            else:
                self._dispatcher.forget(self)

    async def _look(self, group: list[Waiter]) -> None:
        """One claim for all of these, in order of waiting."""
        group = _within(group)
        for waiter in group:
            waiter.busy = True
        self._nudged.clear()
        self._dispatcher.claims += 1
        try:
            shares = await self._claim(group)
            loaded = await self._load(shares)
        finally:
            for waiter in group:
                waiter.busy = False
        self._looked_at = self._dispatcher.clock.monotonic()
        unwanted: list[Held] = []
        for waiter, held in zip(group, loaded, strict=True):
            if held and waiter.open:
                self._resolve(waiter, held)
            else:
                unwanted += held
        if unwanted:
            self._dispatcher.give_back(self.queue, unwanted)
        if not any(shares):
            for waiter in self._waiters:
                waiter.looked = True
        for waiter in list(self._waiters):
            if waiter.looked and (waiter.late or not waiter.patient or self._dispatcher.closing):
                self._resolve(waiter, [])

    async def _claim(self, group: Sequence[Waiter]) -> list[list[Grant]]:
        visibility = group[0].visibility
        sharing = self._dispatcher.sharing
        if sharing is not None:
            takers = [Taker(waiter.owner, waiter.limit, waiter.patient and not waiter.late) for waiter in group]
            return await sharing.claim_for(self.queue, takers, visibility=visibility)
        shares: list[list[Grant]] = []
        for waiter in group:
            grants: list[Grant] = []
            if not shares or shares[-1]:
                grants = await self._store.claim(
                    self.queue, limit=waiter.limit, owner=waiter.owner, visibility=visibility
                )
            shares.append(grants)
        return shares

    async def _load(self, shares: Sequence[Sequence[Grant]]) -> list[list[Held]]:
        """The messages of each share. What can't be read is left out, and its lease runs out."""
        grants = [grant for share in shares for grant in share]
        try:
            messages = await self._store.load(grants) if grants else []
        except BrigadeError:
            messages = await self._load_each(grants)
        parts = {
            f"{grant.token}.{member}": (number, _part(grant, place))
            for number, share in enumerate(shares)
            for grant in share
            for place, member in enumerate(grant.members)
        }
        loaded: list[list[Held]] = [[] for _ in shares]
        for message in messages:
            number, part = parts[message.lease.token]
            loaded[number].append(Held(message, part))
        return loaded

    async def _load_each(self, grants: Sequence[Grant]) -> list[Message]:
        messages: list[Message] = []
        failures: list[BrigadeError] = []
        for grant in grants:
            try:
                messages += await self._store.load([grant])
            except BrigadeError as error:
                failures.append(error)
        if failures and not messages:
            raise failures[0]
        for failure in failures:
            log.warning(
                "messages of %s were claimed but could not be read (%s); their leases run out", self.queue, failure
            )
        return messages

    def _resolve(self, waiter: Waiter, held: list[Held]) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        if waiter.open:
            waiter.answer.set_result(held)

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


def _within(group: Sequence[Waiter]) -> list[Waiter]:
    """As many from the front as one claim can serve."""
    total, served = 0, list[Waiter]()
    for waiter in group:
        total += waiter.limit
        if served and total > MOST_CLAIMED:
            break
        served.append(waiter)
    return served


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
