"""Threads that share one sync hub, a message a call: where storage answers at once, their calls are made together.

Such calls go past the port at which the rest of the crew is recorded. So these write down what the caller saw.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import brigade
from brigade import Message, Queue, StaleLease, StoreUnavailable
from brigade.testing.chaos.crew.producing import small_payload
from brigade.testing.chaos.crew.recording import CALLS, delivered, put_off, returned, told
from brigade.testing.chaos.journal import Journal, wall_ms
from brigade.testing.chaos.plan import JOBS, Brief
from brigade.testing.sim import records as r

__all__ = ["call_by_threads"]

THREADS = 4
"""Threads that enqueue, and threads that claim and ack."""

BURST = 6
"""Messages that a thread enqueues without a pause, at most."""

GO_ON = 0.5
"""The share of acks that are made with the claim of the next message."""

FORGET = 0.02
"""The share of messages that are claimed and never settled, where there are faults."""


async def call_by_threads(brief: Brief, journal: Journal, stop: asyncio.Event) -> None:
    await asyncio.to_thread(_open_and_call, brief, journal, stop)


def _open_and_call(brief: Brief, journal: Journal, stop: asyncio.Event) -> None:
    """As soon as the store answers, until it is time to stop."""
    while not stop.is_set():
        try:
            hub = brigade.connect(brief.url).open()
        except StoreUnavailable:
            time.sleep(0.2)
            continue
        with hub:
            try:
                queue = hub.queue(JOBS, create=False)
            except StoreUnavailable:
                continue
            _Callers(brief, journal, queue, stop).run()


class _Callers:
    def __init__(self, brief: Brief, journal: Journal, queue: Queue, stop: asyncio.Event) -> None:
        self._brief = brief
        self._journal = journal
        self._queue = queue
        self._stop = stop
        self._over = False
        self._calls = itertools.count(brief.number * CALLS)
        put_off(queue.asynchronous.hub.clock, brief.skew)

    def run(self) -> None:
        """What a thread raises that it should not ends them all."""
        with ThreadPoolExecutor(2 * THREADS) as pool:
            parts = (self._enqueue_some, self._take_some) * THREADS
            doing = [pool.submit(self._again, part, self._brief.seed * 100 + n) for n, part in enumerate(parts)]
            wait(doing, return_when=FIRST_EXCEPTION)
            self._over = True
        for one in doing:
            one.result()

    def _again(self, part: Callable[[random.Random], None], seed: int) -> None:
        rng = random.Random(seed)
        while not self._over and not self._stop.is_set():
            try:
                part(rng)
            except StoreUnavailable:
                time.sleep(0.1)

    def _enqueue_some(self, rng: random.Random) -> None:
        if self._queue.stats().ready <= self._brief.backlog:
            for _ in range(rng.randint(1, BURST)):
                self._enqueue(rng)
        time.sleep(rng.uniform(0, 4 * THREADS * self._brief.pause))

    def _enqueue(self, rng: random.Random) -> None:
        call, name = next(self._calls), self._queue.name
        uid = f"{self._brief.name}-{call}"
        payload = small_payload(uid, rng)
        self._journal.write("enqueue", [r.Intent(at=wall_ms(), queue=name, uid=uid, call=call, payload=payload)])
        begun = time.monotonic_ns()
        try:
            receipt = self._queue.enqueue(payload, correlation_id=uid)
        except StoreUnavailable:
            self._journal.write("enqueue unsure", [r.Unsure(at=wall_ms(), queue=name, uid=uid)])
            raise
        self._journal.write("enqueue returned", [returned(name, uid, receipt)], begun=begun)

    def _take_some(self, rng: random.Random) -> None:
        """One message, or several, each acked with the claim of the next."""
        begun = time.monotonic_ns()
        try:
            held = self._queue.claim()
        except StoreUnavailable:
            self._journal.write("claim failed", count=1)
            raise
        pause = 0 if held else rng.uniform(0, 0.1)
        while held:
            (message,) = held
            self._journal.write("claim", [delivered(message)], begun=begun)
            if self._brief.faults and rng.random() < FORGET:
                self._journal.write("forgotten", count=1)
                break
            begun = time.monotonic_ns()
            held = self._ack(message, goes_on=rng.random() < GO_ON)
        time.sleep(pause)

    def _ack(self, message: Message, *, goes_on: bool) -> list[Message]:
        """What was claimed with the ack, where it goes on."""
        begun, answer = time.monotonic_ns(), "unknown"
        try:
            if goes_on:
                following = self._queue.claim(ack=message)
            else:
                following = list[Message]()
                self._queue.ack(message)
            answer = "ok"
        except StaleLease:
            answer, following = "stale", []
        finally:
            self._journal.write(f"ack {answer}", [told(message, "ack", answer)], begun=begun)
        return following
