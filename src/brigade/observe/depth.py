"""How many messages queues hold, measured when somebody scrapes, but not at every scrape: it costs requests."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import TimeoutError as TooLate

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from brigade.clock import SystemClock
from brigade.errors import BrigadeError, ConfigError, QueueNotFound
from brigade.hub import AsyncHub
from brigade.model import Stats

__all__ = ["Depth"]

log = logging.getLogger("brigade")
PATIENCE = 10.0
STATES = ("ready", "delayed", "in_flight", "succeeded", "failed", "dead_lettered")


class Depth:
    """The statistics of some queues of a hub, at most `every` seconds old unless the store is slow."""

    def __init__(self, hub: AsyncHub, queues: bool | Iterable[str], every: float, most: int) -> None:
        if isinstance(queues, str):
            raise ConfigError(f"depth takes a list of queues: write depth=[{queues!r}]")
        if not every > 0:
            raise ConfigError(f"depth_every is {every!r}; give seconds above 0")
        self._hub = hub
        self._names = None if isinstance(queues, bool) else list(queues)
        self._every = every
        self._most = most
        self._monotonic = SystemClock().monotonic
        self._measured_at: float | None = None
        self._found: dict[str, Stats] = {}
        self._lock = threading.Lock()
        self._complained = False

    @staticmethod
    def families(depths: Sequence[Depth]) -> Iterator[Metric]:
        """The depths as metrics."""
        held = GaugeMetricFamily("brigade_queue_messages", "Messages by state", labels=["queue", "state"])
        oldest = GaugeMetricFamily(
            "brigade_queue_oldest_seconds", "Age of the oldest message that may be claimed", labels=["queue"]
        )
        paused = GaugeMetricFamily("brigade_queue_paused", "1 while nothing is handed out", labels=["queue"])
        found: dict[str, Stats] = {}
        for depth in depths:
            found.update(depth.now())
        for queue, stats in found.items():
            for state in STATES:
                held.add_metric([queue, state], getattr(stats, state))
            oldest.add_metric([queue], stats.oldest_age)
            paused.add_metric([queue], float(stats.paused))
        yield from (held, oldest, paused)

    def now(self) -> dict[str, Stats]:
        """What is known, measured anew where that is old.

        On the hub's own loop there is no waiting: what was known is returned, and what is asked for now is there
        the next time.
        """
        loop = self._hub.events.loop
        with self._lock:
            at = self._measured_at
            old = at is None or self._monotonic() - at >= self._every
            if not old or loop is None or not loop.is_running():
                return self._found
            self._measured_at = self._monotonic()
        measuring = asyncio.run_coroutine_threadsafe(self._measure(), loop)
        if not _is_current(loop):
            try:
                measuring.result(PATIENCE)
            except TooLate:
                self._complain("the store is slow")
        return self._found

    async def _measure(self) -> None:
        try:
            names = self._names if self._names is not None else await self._hub.queues()
            found: dict[str, Stats] = {}
            for name in names[: self._most]:
                try:
                    found[name] = await self._hub.store.stats(name)
                except QueueNotFound:
                    continue
        except BrigadeError as error:
            self._found = {}
            self._complain(str(error))
            return
        self._found, self._complained = found, False

    def _complain(self, reason: str) -> None:
        if not self._complained:
            self._complained = True
            log.warning("the depth of queues cannot be measured: %s", reason)


def _is_current(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
