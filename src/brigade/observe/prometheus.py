"""Metrics for Prometheus: events counted as they happen, storage requests and queue depth read when scraped.

Labels are a queue's name and a status, never an id. Hubs that share a registry share its metrics.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as Count
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from brigade.clock import SystemClock
from brigade.events import Event
from brigade.hub import AsyncHub
from brigade.observe.depth import Depth

__all__ = ["Metrics"]

M = TypeVar("M", Count, Histogram)

MOST_QUEUES = 500
"""Queues that have labels of their own in one registry; those that come later share one."""

MOST_STARTED = 10_000
"""Handlers under way whose start is remembered."""

OTHERS = "(others)"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
_STATUSES = frozenset({"processed", "retrying", "dead-lettered", "failed"})


class Metrics:
    """What one hub adds to a registry, until `close()`."""

    def __init__(
        self, hub: AsyncHub, registry: CollectorRegistry | None, *, depth: bool | Iterable[str], depth_every: float
    ) -> None:
        self._registry = REGISTRY if registry is None else registry
        self._hub = hub
        self._depth = Depth(hub, depth, depth_every, MOST_QUEUES) if depth else None
        self._families = _Families.of(self._registry)
        self._families.attach(self)
        self._stop: Callable[[], None] | None = hub.events.follow(self._families.count)

    @property
    def hub(self) -> AsyncHub:
        return self._hub

    @property
    def depth(self) -> Depth | None:
        return self._depth

    def close(self) -> None:
        """Stop counting. When the last hub leaves a registry, the metrics leave it, too."""
        if self._stop is not None:
            self._stop()
            self._stop = None
            self._families.detach(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Families(Collector):
    """The metrics in one registry, and the hubs that they are about."""

    _known: ClassVar[WeakKeyDictionary[CollectorRegistry, _Families]] = WeakKeyDictionary()
    _knowing = threading.Lock()

    @classmethod
    def of(cls, registry: CollectorRegistry) -> _Families:
        with cls._knowing:
            found = cls._known.get(registry)
            if found is None:
                found = cls._known[registry] = cls()
            return found

    def __init__(self) -> None:
        self._members: list[Metrics] = []
        self._requests_before: Counter[str] = Counter()
        self._queues: set[str] = set()
        self._parts: dict[tuple[Any, ...], Any] = {}
        self._workers: dict[str, int] = {}
        self._registered: list[Collector] = []
        self._started: dict[tuple[str, str | None], float] = {}
        self._monotonic = SystemClock().monotonic
        self._lock = threading.Lock()
        self._build()

    def _build(self) -> None:
        def count(name: str, text: str, *labels: str) -> Count:
            return Count(name, text, ["queue", *labels], namespace="brigade", registry=None)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(name, text, ["queue"], namespace="brigade", buckets=SECONDS, registry=None)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, namespace="brigade", registry=None)

        self._counts = {
            "message-enqueued": count("messages_enqueued", "Messages added"),
            "message-claimed": count("messages_claimed", "Leases won"),
            "message-recovered": count("messages_recovered", "Leases won after the lease before had run out"),
            "message-completed": count("messages_completed", "Messages acked"),
            "message-retry": count("messages_retried", "Failed attempts with attempts left"),
            "message-dead": count("messages_dead", "Messages that failed for good"),
            "lease-lost": count("leases_lost", "Leases that were lost while a handler ran"),
        }
        self._outcomes = count("outcomes", "Ends of attempts by status", "status")
        self._waited = seconds("wait_seconds", "From enqueue to the first claim, delays included")
        self._took = seconds("processing_seconds", "From claim to ack or nack")
        self._handled = seconds("handler_seconds", "From the start of a handler to ack or nack")
        self._running = gauge("workers", "Workers that run in this process")
        self._slots = gauge("worker_concurrency", "Handlers that workers in this process may run at once")
        self._metrics: list[Collector] = [
            *self._counts.values(),
            self._outcomes,
            self._waited,
            self._took,
            self._handled,
            self._running,
            self._slots,
            self,
        ]

    def attach(self, member: Metrics) -> None:
        registry = member._registry  # pyright: ignore[reportPrivateUsage]
        with self._lock:
            if not self._members:
                self._register(registry)
            self._members.append(member)

    def _register(self, registry: CollectorRegistry) -> None:
        try:
            for metric in self._metrics:
                registry.register(metric)
                self._registered.append(metric)
        except ValueError:
            self._unregister(registry)
            raise

    def _unregister(self, registry: CollectorRegistry) -> None:
        while self._registered:
            registry.unregister(self._registered.pop())

    def detach(self, member: Metrics) -> None:
        with self._lock:
            self._members.remove(member)
            self._requests_before.update(member.hub.requests())
            if not self._members:
                registry = member._registry  # pyright: ignore[reportPrivateUsage]
                self._unregister(registry)
                with self._knowing:
                    self._known.pop(registry, None)

    def count(self, events: Sequence[Event]) -> None:
        """Count events that come together."""
        tally: dict[tuple[Any, ...], int] = {}
        for event in events:
            metric = self._counts.get(event.name)
            counted: tuple[Any, ...] | None = None if metric is None else (metric, event.queue)
            if event.name == "message-outcome":
                status = event.fields.get("status")
                counted = (self._outcomes, event.queue, status if status in _STATUSES else "other")
            if counted is not None:
                tally[counted] = tally.get(counted, 0) + 1
            self._note(event)
        for of, number in tally.items():
            self._of(*of).inc(number)

    def _note(self, event: Event) -> None:
        """What an event has to tell but that it was."""
        name, fields = event.name, event.fields
        match name:
            case "message-claimed":
                if fields.get("attempt") == 1:
                    self._observe(self._waited, event.queue, fields.get("waited"))
            case "message-processing":
                self._start(event)
            case "lease-lost":
                self._started.pop((event.queue, event.id), None)
            case "message-completed" | "message-retry" | "message-dead":
                self._observe(self._took, event.queue, fields.get("duration"))
                started = self._started.pop((event.queue, event.id), None)
                if started is not None:
                    self._of(self._handled, event.queue).observe(self._monotonic() - started)
            case "workers-started":
                self._workers[str(fields.get("worker_id"))] = int(fields.get("concurrency") or 1)
                self._tell_workers()
            case "workers-stopped":
                self._workers.pop(str(fields.get("worker_id")), None)
                self._tell_workers()
            case _:
                pass

    def _start(self, event: Event) -> None:
        """Handlers that end without an outcome, such as by a release, are forgotten some time."""
        self._started.pop((event.queue, event.id), None)
        while len(self._started) >= MOST_STARTED:
            self._started.pop(next(iter(self._started)), None)
        self._started[event.queue, event.id] = self._monotonic()

    def _tell_workers(self) -> None:
        self._running.set(len(self._workers))
        self._slots.set(sum(self._workers.values()))

    def _of(self, metric: M, queue: str, *labels: str) -> M:
        """The part of a metric that is about a queue: found faster than the library does."""
        key = (metric, queue, *labels)
        part: M | None = self._parts.get(key)
        if part is None:
            name = self._queue(queue)
            part = metric.labels(name, *labels)
            if name == queue:
                self._parts[key] = part
        return part

    def _observe(self, histogram: Histogram, queue: str, milliseconds: object) -> None:
        if isinstance(milliseconds, int | float):
            self._of(histogram, queue).observe(milliseconds / 1000)

    def _queue(self, name: str) -> str:
        """The label of a queue. Names are the users' to choose, so there is a limit to them."""
        if name not in self._queues:
            if len(self._queues) >= MOST_QUEUES:
                return OTHERS
            self._queues.add(name)
        return name

    def collect(self) -> Iterator[Metric]:
        """What is read at a scrape."""
        with self._lock:
            members, requests = list(self._members), Counter(self._requests_before)
        for member in members:
            requests.update(member.hub.requests())
        family = CounterMetricFamily("brigade_storage_requests", "Storage operations made", labels=["kind"])
        for kind, number in sorted(requests.items()):
            family.add_metric([kind], number)
        yield family
        depths = [member.depth for member in members if member.depth is not None]
        if depths:
            yield from Depth.families(depths)

    def describe(self) -> Iterator[Metric]:
        """Names are known beforehand: registering reads nothing."""
        yield CounterMetricFamily("brigade_storage_requests", "Storage operations made", labels=["kind"])
        yield from Depth.families([])
