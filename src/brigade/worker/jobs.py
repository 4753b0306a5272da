"""Claimed messages on their way through a worker, and the backlog that slots pull them from."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from brigade.clock import Clock
from brigade.model import Message
from brigade.queue import AsyncQueue
from brigade.worker.handlers import Handler
from brigade.worker.speed import Speed
from brigade.worker.stopping import StopSign

__all__ = ["QUICK", "Backlog", "Job", "Source"]

QUICK = 15_000.0
"""Messages a second from which on one thread may do more than several."""


class Source:
    """One queue that a worker takes from.

    `held` are the jobs whose leases are kept. Of those, `waiting` have not begun, and `doubtful` are not to begin
    before their lease was extended. `strays` are handlers that run on although their lease was lost.
    """

    def __init__(self, queue: AsyncQueue, handler: Handler, weight: int, timeout: float | None) -> None:
        self.queue = queue
        self.handler = handler
        self.weight = weight
        self.timeout = timeout
        self.speed = Speed()
        self.held: dict[str, Job] = {}
        self.waiting: deque[Job] = deque()
        self.doubtful: list[Job] = []
        self.strays: set[Job] = set()
        self.running = 0
        self.credit = 0

    @property
    def name(self) -> str:
        return self.queue.name

    def let_go(self, job: Job) -> None:
        """Hold a job no longer. The same message may be held anew, as another job."""
        if self.held.get(job.message.ref) is job:
            del self.held[job.message.ref]


class Job:
    """One message in this worker's hands. Only the engine decides what becomes of it; slots only report."""

    __slots__ = ("began", "decided", "ended", "freed", "lost", "message", "settled", "source", "stop")

    def __init__(self, message: Message, source: Source) -> None:
        self.message = message
        self.source = source
        self.stop = StopSign()
        self.began: float | None = None
        self.ended = False
        self.freed = False
        self.decided = False
        self.lost = False
        self.settled = False


class Backlog:
    """What is claimed and waits for a slot. Queues take turns by weight. Safe to use from any thread."""

    def __init__(self, sources: Iterable[Source], clock: Clock, began: Callable[[Job], None]) -> None:
        self._sources = list(sources)
        self._clock = clock
        self._began = began
        self._changed = threading.Condition()
        self._closed = False
        self.taken = 0
        self.on_put: Callable[[], None] | None = None

    @property
    def running(self) -> int:
        """How many slots are taken."""
        return sum(source.running for source in self._sources)

    @property
    def waiting(self) -> int:
        return sum(len(source.waiting) for source in self._sources)

    def put(self, source: Source, jobs: Iterable[Job]) -> bool:
        """Hand jobs to the slots; True where only one of them was woken.

        Threads that all want to run get in each other's way: of handlers that take microseconds, one thread does more
        than several. `wake` wakes the others.
        """
        alone = source.speed.rate(self._clock.monotonic()) >= QUICK
        with self._changed:
            before = len(source.waiting)
            source.waiting.extend(jobs)
            self._changed.notify(1 if alone else len(source.waiting) - before)
        if self.on_put is not None:
            self.on_put()
        return alone

    def wake(self) -> None:
        """Have all slots look for jobs."""
        with self._changed:
            self._changed.notify_all()

    def take(self) -> Job | None:
        """The next job, waiting for one; None when the worker stops."""
        with self._changed:
            while (job := self._next()) is None:
                if self._closed:
                    return None
                self._changed.wait()
        self._began(job)
        return job

    def try_take(self) -> Job | None:
        """The next job, if there is one."""
        with self._changed:
            job = self._next()
        if job is not None:
            self._began(job)
        return job

    def _next(self) -> Job | None:
        """The next job whose lease still stands. One that ran out meanwhile is left to the heartbeat to find out."""
        while (source := self._turn()) is not None:
            job = source.waiting.popleft()
            if job.message.lease.expires_at_ms <= self._clock.now():
                source.doubtful.append(job)
                continue
            job.began = self._clock.monotonic()
            source.running += 1
            self.taken += 1
            return job
        return None

    def _turn(self) -> Source | None:
        """Smooth weighted round robin over the queues that have something."""
        if len(self._sources) == 1:
            return self._sources[0] if self._sources[0].waiting else None
        filled = [source for source in self._sources if source.waiting]
        if len(filled) < 2:
            return filled[0] if filled else None
        total = 0
        for source in filled:
            source.credit += source.weight
            total += source.weight
        chosen = max(filled, key=lambda source: source.credit)
        chosen.credit -= total
        return chosen

    def trust(self, job: Job) -> None:
        """The job's lease was extended: where it was in doubt, it may begin."""
        with self._changed:
            doubtful = job in job.source.doubtful
            if doubtful:
                job.source.doubtful.remove(job)
        if doubtful:
            self.put(job.source, [job])

    def free(self, jobs: Iterable[Job]) -> None:
        """The jobs' slots may be used again."""
        with self._changed:
            for job in jobs:
                if not job.freed:
                    job.freed = True
                    job.source.running -= 1

    def withdraw(self, source: Source, keep: int = 0) -> list[Job]:
        """Take back what waits, from the end, but for the first `keep`."""
        with self._changed:
            back = [source.waiting.pop() for _ in range(max(0, len(source.waiting) - keep))]
            if not keep:
                back += source.doubtful
                source.doubtful = []
            return back

    def drop(self, job: Job) -> bool:
        """Take back one job; False if it has begun."""
        with self._changed:
            for place in (job.source.waiting, job.source.doubtful):
                if job in place:
                    place.remove(job)
                    return True
            return False

    def close(self) -> None:
        """Let slots that wait go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
