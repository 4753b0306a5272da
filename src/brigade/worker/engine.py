"""The engine of a worker: claims ahead, keeps leases, enforces time limits, settles. It runs no user code.

It lives on an event loop in a thread of its own. Slots (threads, tasks, processes) pull jobs from the backlog and
report into an inbox; everything that is decided about a job is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from brigade.errors import BrigadeError, QueuePaused
from brigade.hub import AsyncHub
from brigade.ids import Ids
from brigade.model import Ack, Lease, Message, Nack, Settlement
from brigade.worker.executors import Executor
from brigade.worker.heartbeat import Heartbeat
from brigade.worker.jobs import QUICK, Backlog, Job, Source
from brigade.worker.outcomes import Failed, Outcome, Returned, Snoozed, settlement
from brigade.worker.restart import Restart, Trouble, supervise
from brigade.worker.settling import Settler

__all__ = ["Engine", "Settings"]

log = logging.getLogger("brigade.worker")
CLAIM_WAIT = 60.0
FLUSH_WITHIN = 10.0
TICK = 0.25
QUIET = 0.05
"""Seconds without work after which a queue may be empty."""

LOOK_AGAIN = 0.005
"""Seconds after which a slot that was woken alone is given help if it needs any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a worker works."""

    worker_id: str
    concurrency: int
    prefetch: float
    max_prefetch: int
    linger: float
    processed_cache_ttl: float
    restart: Restart


class Engine:
    """One worker's work. Everything but `report` runs on the hub's loop."""

    def __init__(self, hub: AsyncHub, sources: Sequence[Source], settings: Settings) -> None:
        self._hub = hub
        self._sources = sources
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._clock = hub.clock
        self._ids = Ids()
        self.backlog = Backlog(sources, self._clock, self._began)
        self.counts: Counter[str] = Counter()
        self.executor: Executor | None = None
        self._changed = {source: asyncio.Event() for source in sources}
        self._settlers = {source: self._settler(source) for source in sources}
        self._hearts = {
            source: Heartbeat(source, self.backlog, self._clock, self._trouble(f"extending leases of {source.name}"))
            for source in sources
        }
        self._inbox: deque[tuple[Job, Outcome]] = deque()
        self._told = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._rested = asyncio.Event()
        self._hurry = asyncio.Event()
        self._fetchers: list[asyncio.Task[None]] = []
        self._keepers: list[asyncio.Task[None]] = []

    def _settler(self, source: Source) -> Settler:
        trouble = self._trouble(f"settling in queue {source.name}")
        return Settler(source, self._clock, trouble, self._settings.linger, self._settled)

    def _trouble(self, what: str) -> Trouble:
        return Trouble(what, self._settings.restart, self._ids, self._clock)

    def start(self, executor: Executor) -> None:
        self.executor = executor
        for source in self._sources:
            name, heart = source.name, self._hearts[source]
            self._keepers.append(self._supervised(f"settling in {name}", self._settlers[source].run))
            self._keepers.append(self._supervised(f"the heartbeat of {name}", lambda h=heart: h.run(self._lose)))
            self._fetchers.append(self._supervised(f"claiming from {name}", lambda s=source: self._fetch(s)))
        self._keepers.append(self._supervised("watching time limits", self._watch))
        executor.start()

    def _supervised(self, what: str, part: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        work = supervise(what, part, restart=self._settings.restart, ids=self._ids, clock=self._clock)
        return self._loop.create_task(work)

    async def failure(self) -> BaseException | None:
        """Wait for a part of the engine to give up for good."""
        done, _ = await asyncio.wait([*self._fetchers, *self._keepers], return_when=asyncio.FIRST_COMPLETED)
        return next((task.exception() for task in done if not task.cancelled()), None)

    async def _fetch(self, source: Source) -> None:
        """Claim whenever there is room. An empty queue is waited for by the store's own, sparing means."""
        trouble = self._trouble(f"claiming from queue {source.name}")
        while True:
            self._changed[source].clear()
            room = self._room(source)
            if room <= 0:
                await self._changed[source].wait()
                continue
            try:
                messages = await source.queue.claim(room, wait=CLAIM_WAIT, owner=self._settings.worker_id)
            except QueuePaused:
                continue
            except BrigadeError as error:
                await asyncio.sleep(trouble.strikes(error))
                continue
            trouble.over()
            self._take_in(source, messages)

    def _room(self, source: Source) -> int:
        """How many to claim now: for slots that are free, and about two seconds of work beyond them."""
        slots = self.executor.slots if self.executor is not None else 0
        ahead = source.speed.ahead(self._settings.prefetch, self._settings.max_prefetch, self._clock.monotonic())
        free = slots - self.backlog.running
        beyond = max(0, len(source.waiting) - free)
        if beyond > ahead // 2 or not slots:
            return 0
        free = max(0, free - self.backlog.waiting)
        if len(self._sources) > 1:
            total = sum(one.weight for one in self._sources)
            free = -(-free * source.weight // total)
        return min(self._settings.max_prefetch, free + ahead - beyond)

    def _take_in(self, source: Source, messages: Iterable[Message]) -> None:
        now = self._clock.monotonic()
        fresh: list[Job] = []
        for message in messages:
            before = source.held.get(message.ref)
            if before is not None:
                self._lose(before)
            job = source.held[message.ref] = Job(message, source)
            known = self._hub.processed.known(source.name, message.ref, now)
            if known is None:
                fresh.append(job)
            else:
                log.info("message %s had been processed here; its ack is repeated", message.id)
                self._decide(job, Returned(known[0]))
        if fresh:
            self._idle.clear()
            source.speed.begins(now)
            if self.backlog.put(source, fresh):
                self._loop.call_later(LOOK_AGAIN, self._wake_slots, self.backlog.taken)
        self._hearts[source].beats()

    def _wake_slots(self, taken: int) -> None:
        """One slot was woken for many jobs: wake the others, too, unless it gets through them by itself."""
        backlog = self.backlog
        if not backlog.waiting:
            return
        if backlog.taken - taken < LOOK_AGAIN * QUICK:
            backlog.wake()
        else:
            self._loop.call_later(LOOK_AGAIN, self._wake_slots, backlog.taken)

    def report(self, job: Job, outcome: Outcome) -> None:
        """A slot is through with a job. Called from any thread."""
        self._inbox.append((job, outcome))
        if not self._told:
            self._told = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        self._told = False
        heard = [self._inbox.popleft() for _ in range(len(self._inbox))]
        self.backlog.free(job for job, _ in heard)
        ended: dict[Source, int] = {}
        now = self._clock.monotonic()
        for job, outcome in heard:
            source = job.source
            if source.strays:
                source.strays.discard(job)
            if not job.decided:
                self._settle(job, outcome, now)
                ended[source] = ended.get(source, 0) + 1
        for source, count in ended.items():
            source.speed.ends(now, count, idle=not source.waiting and not source.running)
        self._look_around()

    def changed(self) -> None:
        """A slot became usable. Called from any thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._look_around)

    def extended(self, message: Message, lease: Lease) -> None:
        """A handler has extended its lease: the heartbeat is not to shorten it."""
        for source in self._sources:
            job = source.held.get(message.ref) if source.name == message.queue else None
            if job is not None and job.message.lease.token == lease.token:
                job.message = replace(job.message, lease=lease)

    def _decide(self, job: Job, outcome: Outcome) -> None:
        """What becomes of a job is decided once; what its handler says later is discarded."""
        source, now = job.source, self._clock.monotonic()
        if job.began is not None:
            source.speed.ends(now, 1, idle=not source.waiting and not source.running)
        self._settle(job, outcome, now)

    def _settle(self, job: Job, outcome: Outcome, now: float) -> None:
        settling = settlement(job.message, outcome)
        job.decided = True
        ttl = self._settings.processed_cache_ttl
        if ttl and isinstance(outcome, Returned):
            self._hub.processed.remember(job.source.name, job.message.ref, outcome.result, now, ttl)
        self._settlers[job.source].add(job, settling)

    def _look_around(self) -> None:
        """Something ended: there may be room for more, or nothing left to wait for."""
        for source in self._sources:
            self._changed[source].set()
            if not source.waiting and not source.running:
                self._settlers[source].hurry()
        if not self.backlog.running:
            self._rested.set()
            if not any(source.held for source in self._sources):
                self._idle.set()

    def _settled(self, job: Job, settlement: Settlement, accepted: bool) -> None:
        job.source.let_go(job)
        if not accepted:
            if not job.lost and isinstance(settlement, Ack | Nack):
                self._tell_lost(job)
        elif isinstance(settlement, Ack):
            self.counts["processed"] += 1
            if settlement.result is not None:
                self._hub.processed.drop_result(job.source.name, job.message.ref)
        else:
            self.counts["failed" if isinstance(settlement, Nack) else "released"] += 1
        if not job.source.held:
            self._look_around()

    def _lose(self, job: Job) -> None:
        """Somebody else has the message now: tell the handler, and want nothing more from it."""
        if job.decided:
            return
        job.decided = True
        job.source.let_go(job)
        self._tell_lost(job)
        if not self.backlog.drop(job) and self.executor is not None:
            job.source.strays.add(job)
            self.executor.tell(job)
        self._look_around()

    def _tell_lost(self, job: Job) -> None:
        job.lost = True
        self.counts["lost"] += 1
        message = job.message
        self._emit(
            "lease-lost",
            message,
            attempt=message.attempt,
            correlation_id=message.correlation_id,
            lease_version=message.lease.version,
        )

    def _began(self, job: Job) -> None:
        """A slot starts on a job. Called from any thread: events are relayed."""
        message = job.message
        self._emit("message-processing", message, attempt=message.attempt, correlation_id=message.correlation_id)

    def _emit(self, name: str, message: Message, **fields: Any) -> None:
        if self._hub.events.wanted(name):
            worker_id = self._settings.worker_id
            self._hub.events.emit(name, message.queue, message.id, worker_id=worker_id, **fields)

    async def _watch(self) -> None:
        """End handlers whose time is up, and give back what was claimed too far ahead."""
        limits = [source.timeout for source in self._sources if source.timeout is not None]
        tick = min([TICK, *(limit / 4 for limit in limits)])
        while True:
            await asyncio.sleep(tick)
            now = self._clock.monotonic()
            for source in self._sources:
                if source.timeout is not None:
                    self._end_late(source, now)
                self._give_back_surplus(source, now)
            if self._idle.is_set():
                await self._hearts_beat()

    async def _hearts_beat(self) -> None:
        """Sleep until something is held."""
        waits = [asyncio.ensure_future(heart.begun()) for heart in self._hearts.values()]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _end_late(self, source: Source, now: float) -> None:
        assert source.timeout is not None
        for job in [*source.held.values(), *source.strays]:
            if job.began is None or now - job.began < source.timeout:
                continue
            if job in source.strays:
                self._end(job)
            elif not job.decided:
                self._decide(job, Failed(f"the handler ran longer than {source.timeout:g} s (execution_timeout)"))
                self._end(job)

    def _end(self, job: Job) -> None:
        assert self.executor is not None
        job.source.strays.discard(job)
        if self.executor.end(job):
            self.backlog.free([job])
            self._look_around()

    def _give_back_surplus(self, source: Source, now: float) -> None:
        """Handlers have become slow: others may be faster. Twice as much as wanted is too much."""
        wanted = source.speed.ahead(self._settings.prefetch, self._settings.max_prefetch, now)
        slots = self.executor.slots if self.executor is not None else 0
        wanted = max(wanted, slots) if slots else 0
        if len(source.waiting) > 2 * wanted:
            for job in self.backlog.withdraw(source, keep=wanted):
                self._decide(job, Snoozed())

    async def until_empty(self) -> None:
        """Wait until the queues have nothing waiting, delayed or in flight. While this worker is busy, nobody asks."""
        pause = QUIET
        trouble = self._trouble("counting what is left")
        while True:
            await self._idle.wait()
            before = self.counts.total()
            await asyncio.sleep(pause)
            if not self._idle.is_set() or self.counts.total() != before:
                pause = QUIET
                continue
            try:
                found = [await source.queue.stats() for source in self._sources]
            except BrigadeError as error:
                await asyncio.sleep(trouble.strikes(error))
                continue
            trouble.over()
            if self._idle.is_set() and not any(one.ready + one.delayed + one.in_flight for one in found):
                return
            pause = min(2.0, pause * 2)

    def hurry(self) -> None:
        """Don't wait for handlers any longer."""
        self._hurry.set()

    async def stop(self, grace: float) -> None:
        """Stop claiming, let handlers finish within `grace` seconds, give the rest back at once."""
        for task in self._fetchers:
            task.cancel()
        await asyncio.gather(*self._fetchers, return_exceptions=True)
        for source in self._sources:
            for job in self.backlog.withdraw(source):
                self._decide(job, Snoozed())
            self._settlers[source].hurry()
        self._rested.clear()
        self._look_around()
        await self._until(self._rested, grace)
        for source in self._sources:
            for job in list(source.held.values()):
                if not job.decided:
                    self._decide(job, Snoozed())
                    self._end(job)
            for job in list(source.strays):
                self._end(job)
        flushed = asyncio.gather(*(settler.finished() for settler in self._settlers.values()))
        try:
            async with asyncio.timeout(FLUSH_WITHIN):
                await flushed
        except TimeoutError:
            log.error("the store did not take the last outcomes; their messages come back when their leases run out")
        finally:
            self.backlog.close()
            for task in self._keepers:
                task.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _until(self, event: asyncio.Event, seconds: float) -> None:
        waits = [asyncio.ensure_future(event.wait()), asyncio.ensure_future(self._hurry.wait())]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
