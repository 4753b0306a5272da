"""Polling, only while somebody looks: a tab is open, or a page is being made. Otherwise no request is made."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

from brigade.cost import Prices
from brigade.errors import BrigadeError, QueueNotFound
from brigade.hub import AsyncHub
from brigade.server.dashboard.figures import Figures
from brigade.stores.operating import OperatedStore

__all__ = ["Looker", "Spending", "Watch"]

log = logging.getLogger("brigade.server")
WIDTH = 8
BASE, PRICED_BASE = 1.0, 5.0
"""Seconds between polls; where requests are billed, fewer."""

PRICED_RATE = 20.0
"""Requests a second that looking may cost where they are billed, and what the figures of one queue take."""

QUEUE_REQUESTS = 6
BUSY = 4.0
"""A poll that took long is followed by that many times its length of quiet."""

NAMES_EVERY = 3.0
FRESH = 1.5
AFTER_CHANGE = 2.0
"""Seconds that a page waits for figures that show what its visitor has just done."""

PRICED = ("s3", "az", "gs")


@dataclass(eq=False, slots=True)
class Looker:
    """Somebody who looks: at one queue with its latencies, at all queues, or at nothing that needs polling."""

    queue: str | None = None
    everything: bool = False


@dataclass(frozen=True, slots=True)
class Spending:
    """What this server asks of its store, in requests a second and dollars an hour, over the last minute."""

    rate: float
    dollars: float | None


class Watch:
    """The figures of queues, as fresh as somebody needs them."""

    def __init__(self, hub: AsyncHub, prices: Prices | None = None) -> None:
        self._hub = hub
        self._prices = prices or Prices()
        self.priced = hub.address[0].partition(":")[0] in PRICED
        self.names: list[str] = []
        self.trouble: str | None = None
        self.ticks = 0
        self.interval = PRICED_BASE if self.priced else BASE
        self.closed = False
        self._figures: dict[str, Figures] = {}
        self._lookers: set[Looker] = set()
        self._spent: deque[tuple[float, dict[str, int]]] = deque(maxlen=120)
        self._outdated: dict[str, int] = {}
        self._named = asyncio.Event()
        """A page without figures is one of a moment; a page without queues would be wrong."""
        self._named_at = float("-inf")
        self._names_took = 0.0
        self._task: asyncio.Task[None] | None = None
        self._polling: asyncio.Task[None] | None = None
        self._ticked = asyncio.Event()
        self._hurried = asyncio.Event()

    def monotonic(self) -> float:
        return self._hub.clock.monotonic()

    @property
    def looking(self) -> int:
        return len(self._lookers)

    @property
    def polls(self) -> bool:
        """Whether the poller runs."""
        return self._task is not None and not self._task.done()

    def figures(self, queue: str) -> Figures:
        found = self._figures.get(queue)
        if found is None:
            found = self._figures[queue] = Figures()
        return found

    @contextlib.contextmanager
    def look(self, queue: str | None = None, *, everything: bool = False) -> Generator[Looker]:
        """Keep polling for as long as this lasts."""
        looker = Looker(queue, everything)
        self._lookers.add(looker)
        if (queue is not None or everything) and not self.polls:
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            yield looker
        finally:
            self._lookers.discard(looker)
            self._hurried.set()

    async def glimpse(self, queue: str | None = None, *, within: float = 0.1) -> None:
        """Figures for a page: one poll if what is known is old. What takes longer comes with the stream."""
        last = self.figures(queue).last if queue is not None else None
        if queue is None:
            ages = [one.last.at for name in self.names if (one := self.figures(name)).last is not None]
            at = min(ages) if self.names and len(ages) == len(self.names) else 0
        else:
            at = last.at if last else 0
        changed = self._outdated.get(queue, -1) if queue is not None else -1
        if at > changed and self._hub.clock.now() - at < max(FRESH, self.interval) * 1000:
            return
        if changed >= at:
            within = max(within, AFTER_CHANGE)
        if self._polling is None or self._polling.done() or changed >= at:
            self._polling = asyncio.get_running_loop().create_task(
                self._poll(everything=queue is None, queues={queue} if queue else set())
            )
        await asyncio.wait({self._polling}, timeout=within)
        if queue is None and not self._named.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AFTER_CHANGE):
                    await self._named.wait()

    async def tick(self, seen: int, timeout: float) -> int:
        """Wait until something is newer than `seen`, or the time is over; returns the number of the newest."""
        if self.ticks == seen and not self.closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._ticked.wait()
        return self.ticks

    def tell(self) -> None:
        """There is news for those who look."""
        self.ticks += 1
        self._ticked.set()
        self._ticked = asyncio.Event()

    def hurry(self, queue: str | None = None) -> None:
        """Somebody did something: look at once, and show no page with older figures of that queue."""
        if queue is not None:
            self._outdated[queue] = self._hub.clock.now()
        self._hurried.set()

    def close(self) -> None:
        self.closed = True
        if self._task is not None:
            self._task.cancel()
        if self._polling is not None:
            self._polling.cancel()
        self.tell()

    def spending(self) -> Spending | None:
        """None while there is nothing to compare with."""
        if len(self._spent) < 2:
            return None
        newest_at, newest = self._spent[-1]
        at, oldest = next((one for one in self._spent if newest_at - one[0] <= 60), self._spent[0])
        seconds = max(newest_at - at, 0.001)
        made = {kind: count - oldest.get(kind, 0) for kind, count in newest.items()}
        dollars = self._prices.of({kind: count / seconds * 3600 for kind, count in made.items()})
        return Spending(sum(made.values()) / seconds, dollars if self.priced else None)

    async def _run(self) -> None:
        clock = self._hub.clock
        while True:
            wanted = [one for one in self._lookers if one.everything or one.queue is not None]
            if not wanted or self.closed:
                return
            started = clock.monotonic()
            everything = any(one.everything for one in wanted)
            queues = {one.queue for one in wanted if one.queue is not None}
            await self._poll(everything=everything, queues=queues)
            took = clock.monotonic() - started
            count = len(self.names) if everything else len(queues)
            budget = count * QUEUE_REQUESTS / PRICED_RATE if self.priced else 0.0
            self.interval = max(PRICED_BASE if self.priced else BASE, took * BUSY, budget)
            self._hurried.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.05, self.interval - took)):
                    await self._hurried.wait()

    async def _poll(self, *, everything: bool, queues: set[str]) -> None:
        clock = self._hub.clock
        try:
            if everything:
                await self._name()
                queues = {*queues, *self.names}
            gate = asyncio.Semaphore(WIDTH)
            detailed = {one.queue for one in self._lookers if one.queue is not None}

            async def one(name: str) -> None:
                async with gate:
                    await self._sample(name, details=name in detailed)

            await asyncio.gather(*(one(name) for name in sorted(queues)))
            self._spent.append((clock.monotonic(), self._hub.requests()))
            self.trouble = None
        except BrigadeError as error:
            self.trouble = str(error)
        except Exception:
            log.exception("the dashboard could not read its figures")
            self.trouble = "figures could not be read; the server's log says why"
        self._named.set()
        self.tell()

    async def _name(self) -> None:
        clock = self._hub.clock
        if clock.monotonic() - self._named_at < max(NAMES_EVERY, self._names_took * BUSY, self.interval):
            return
        started = clock.monotonic()
        self.names = await self._hub.queues()
        self._named.set()
        self._named_at = clock.monotonic()
        self._names_took = self._named_at - started
        for gone in self._figures.keys() - set(self.names):
            del self._figures[gone]
        self._outdated = {name: at for name, at in self._outdated.items() if name in self._figures}

    async def _sample(self, name: str, *, details: bool) -> None:
        figures = self.figures(name)
        try:
            if details and isinstance(self._hub.store, OperatedStore):
                tail = await self._hub.store.tail(
                    name, figures.after, since_ms=self._hub.clock.now() - 300_000, limit=2000
                )
                figures.after = tail.after
                figures.add_ended(tail.ended)
            stats = await self._hub.store.stats(name)
        except QueueNotFound:
            self._figures.pop(name, None)
            self._named_at = float("-inf")
            return
        figures.add(self._hub.clock.now(), stats)
