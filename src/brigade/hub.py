"""The hub: one connection to one store, from which queues are opened."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from brigade.clock import Clock
from brigade.errors import ConfigError
from brigade.events import Event, Events
from brigade.ids import Ids
from brigade.names import check_queue_name
from brigade.policy import QueuePolicy
from brigade.queue import AsyncQueue
from brigade.recent import Recent
from brigade.stores import Failed, Store
from brigade.stores.opening import open_store, parse_url
from brigade.stores.prompt import PromptStore
from brigade.tracing import NO_TRACER, Tracer

if TYPE_CHECKING:
    from brigade.worker import Worker

__all__ = ["AsyncHub", "connect_async"]


class AsyncHub:
    """A connection to a store. Use it as `async with brigade.connect_async(url) as hub`."""

    def __init__(self, url: str, **options: Any) -> None:
        parse_url(url, options)
        ids = Ids()
        self._url = f"memory://~{ids.bits(64):x}" if url == "memory://" else url
        self._options = options
        self._store: Store | None = None
        self.prompt: PromptStore | None = None
        """The store, where it carries out plain calls at once."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._counted: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.twins: list[AsyncHub] = []
        self._twin_of: AsyncHub | None = None
        self.events = Events()
        self.tracer: Tracer = NO_TRACER
        self.processed = Recent()
        self._workers: dict[str, list[Worker]] = {}
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{ids.bits(24):06x}"

    @property
    def store(self) -> Store:
        if self._store is None:
            raise ConfigError("the hub is not open; use it as: async with brigade.connect_async(url) as hub")
        return self._store

    @property
    def clock(self) -> Clock:
        """The store's clock."""
        return self.store.clock

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the hub lives on."""
        if self._loop is None or self._store is None:
            raise ConfigError("the hub is not open; open it before its queues are used")
        return self._loop

    @property
    def address(self) -> tuple[str, dict[str, Any]]:
        """The store's URL and options: what another process needs to connect to the same store."""
        return self._url, dict(self._options)

    async def open(self) -> Self:
        if self._store is None:
            store = open_store(self._url, self._options)
            store.on_failure = self._tell_failure
            await store.open()
            self._store = store
            self.prompt = store if store.prompt and isinstance(store, PromptStore) else None
            self._loop = self.events.loop = asyncio.get_running_loop()
        return self

    def twin(self) -> AsyncHub:
        """Another hub on the same store, not yet open, for another event loop. Its requests count as this one's."""
        twin = AsyncHub(self._url, **self._options)
        twin.tracer, twin.processed = self.tracer, self.processed
        twin._twin_of = self
        self.twins.append(twin)
        return twin

    def wake_twins(self, queue: str) -> None:
        """There is something new in a queue: claims that wait in this hub's twins look at once."""
        for twin in self.twins:
            loop, store = twin._loop, twin._store
            if loop is not None and store is not None:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(store.wake, queue)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def queue(
        self, name: str, policy: QueuePolicy | None = None, *, replace: bool = False, create: bool = True
    ) -> AsyncQueue:
        """Open a queue, creating it if need be.

        A policy is stored when the queue is created. One that differs from the stored one is a ConfigError,
        unless `replace` is set. With `create=False` a queue that doesn't exist is QueueNotFound.
        """
        check_queue_name(name)
        if policy is not None and not isinstance(policy, QueuePolicy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"policy must be a QueuePolicy, not {type(policy).__name__}")
        if policy is not None and policy.failure.dead_letter_queue == name:
            raise ConfigError(f"Failure.dead_letter_queue is {name!r}, the queue itself; name another one")
        stored = await self.store.open_queue(name, policy, replace=replace, create=create)
        return AsyncQueue(self, name, stored)

    async def queues(self) -> list[str]:
        """The names of all queues in the store."""
        return await self.store.queues()

    def on(self, name: str, listener: Callable[[Event], Any]) -> Callable[[], None]:
        """Call `listener(event)` at each event of that name, or at all with `*`; returns how to stop."""
        return self.events.on(name, listener)

    def requests(self) -> dict[str, int]:
        """How many storage operations of each kind this hub has made; after it is closed, in all."""
        counted = Counter(self._counted)
        if self._store is not None:
            counted.update(self._store.requests())
        for twin in self.twins:
            counted.update(twin.requests())
        return dict(counted)

    def _tell_failure(self, failed: Failed) -> None:
        common = {
            "attempt": failed.attempts,
            "max_attempts": failed.max_attempts,
            "correlation_id": failed.correlation_id,
        }
        original = failed.original_id or failed.id
        self.events.emit("message-dead", failed.queue, failed.id, error=failed.error, original_id=original, **common)
        self.events.emit("message-outcome", failed.queue, failed.id, status=failed.status, **common)

    async def hire(self, worker: Worker) -> Worker:
        """Start a worker that ends with this hub."""
        await worker.__aenter__()
        for name in worker.queues:
            self._workers.setdefault(name, []).append(worker)
        return worker

    async def dismiss(self, queue: str, grace: float | None = None) -> None:
        """Stop the workers of a queue that this hub has hired."""
        for worker in self._workers.pop(queue, []):
            await worker.drain(grace)

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        """See work through that its caller no longer waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        """Stop the workers that were hired, finish what is under way, then let go of the store."""
        for queue in list(self._workers):
            await self.dismiss(queue)
        if self._store is not None:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            store, self._store, self.prompt = self._store, None, None
            await store.close()
            self._counted.update(store.requests())
            await self.events.close()
        if self._twin_of is not None:
            self._twin_of._absorb(self)

    def _absorb(self, twin: AsyncHub) -> None:
        if twin in self.twins:
            self.twins.remove(twin)
            self._counted.update(twin.requests())


def connect_async(url: str, **options: Any) -> AsyncHub:
    """A hub for async programs: `memory://name`, `file://path`, `sqlite://path`, `s3://bucket/prefix`, ….

    Options may also stand in the URL's query.
    """
    return AsyncHub(url, **options)
