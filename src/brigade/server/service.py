"""What the endpoints share: the hub, the dispatcher, the queues that are open, and the server's limits."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakValueDictionary

from brigade.errors import ConfigError, QueueNotFound
from brigade.hub import AsyncHub
from brigade.ids import Ids
from brigade.policy import QueuePolicy
from brigade.queue import AsyncQueue
from brigade.server.answers import Answers
from brigade.server.dispatcher import Dispatcher
from brigade.server.feed import Feed
from brigade.server.gate import Gate, OpenGate
from brigade.server.sealing import Sealer
from brigade.server.subscriptions import Subscriptions
from brigade.stores import Failed

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["Limits", "Service"]

P = TypeVar("P")
POLICY_TTL = 30.0
MOST_QUEUES = 10_000
MOST_FAILURES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one request, or all of them, may ask for."""

    most_messages: int = 1000
    most_listed: int = 100_000
    most_wait: float = 300.0
    most_body: int = 16 * 1024 * 1024
    most_stream: int = 1024**3 + 16 * 1024 * 1024
    most_consumers: int = 512
    most_headers: int = 32 * 1024
    most_requests: int = 8192

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; use a number above 0")


class Service:
    """One server's view of its store."""

    def __init__(self, hub: AsyncHub, limits: Limits, gate: Gate | None = None) -> None:
        self.hub = hub
        self.gate: Gate = gate or OpenGate()
        self.limits = limits
        self.ids = Ids()
        self.name = f"server:{hub.owner}"
        self.header = self.name.encode("latin-1", "replace")
        self.dispatcher = Dispatcher(hub.store, name=self.name, most_consumers=limits.most_consumers)
        self.answers = Answers(self.name, hub.clock)
        self.subscriptions = Subscriptions()
        self.sealer = Sealer(hub.store)
        self.publishing: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """A lock for each bulk job that is being published or dropped."""
        self.registry: CollectorRegistry | None = None
        self.traffic: Counter[tuple[str, str, int]] = Counter()
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.requests = 0
        self.feed = Feed(self.name)
        self.feed.clock = hub.clock
        hub.events.follow(self.feed.tell)
        self._queues: OrderedDict[str, tuple[AsyncQueue, float]] = OrderedDict()
        self._failures: OrderedDict[str, deque[Failed]] = OrderedDict()
        self._tell = hub.store.on_failure
        hub.store.on_failure = self._failed

    def port(self, kind: type[P], lack: str) -> P:
        """The store, as one that can do what not every store can; else a ConfigError that says what it lacks."""
        store = self.hub.store
        if not isinstance(store, kind):
            raise ConfigError(f"this server's store {lack}")
        return store

    def stop(self) -> None:
        """Take nothing on any more; streams end."""
        self.dispatcher.stop()
        self.feed.stop()

    async def queue(self, name: str, *, create: bool = False) -> AsyncQueue:
        """An open queue. Its policy is read again now and then."""
        now = self.hub.clock.monotonic()
        known = self._queues.get(name)
        if known is not None and now - known[1] < POLICY_TTL:
            return known[0]
        return self.remember(await self.hub.queue(name, create=create))

    def remember(self, queue: AsyncQueue) -> AsyncQueue:
        self._queues[queue.name] = (queue, self.hub.clock.monotonic())
        self._queues.move_to_end(queue.name)
        while len(self._queues) > MOST_QUEUES:
            self._queues.popitem(last=False)
        return queue

    def forget(self, name: str) -> None:
        self._queues.pop(name, None)

    async def configure(self, name: str, policy: QueuePolicy | None, *, replace: bool, create: bool) -> AsyncQueue:
        try:
            return self.remember(await self.hub.queue(name, policy, replace=replace, create=create))
        except QueueNotFound:
            self.forget(name)
            raise

    def failures(self, queue: str) -> list[Failed]:
        """What failed in a queue while nobody held it, told once."""
        return list(self._failures.pop(queue, ()))

    def _failed(self, failed: Failed) -> None:
        if self._tell is not None:
            self._tell(failed)
        self._failures.setdefault(failed.queue, deque(maxlen=MOST_FAILURES)).append(failed)
        while len(self._failures) > MOST_QUEUES:
            self._failures.popitem(last=False)
