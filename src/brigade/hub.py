"""The hub: one connection to one store, from which queues are opened."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from brigade.blobs import Blobs
from brigade.clock import Clock, SystemClock
from brigade.errors import ConfigError
from brigade.events import Event, Events
from brigade.ids import Ids
from brigade.names import check_queue_name
from brigade.policy import QueuePolicy
from brigade.queue import AsyncQueue
from brigade.stores import Failed, Store

__all__ = ["AsyncHub", "connect_async", "open_store"]

_LATER = {"s3", "az", "gs", "postgresql", "http", "https"}


class AsyncHub:
    """A connection to a store. Use it as `async with brigade.connect_async(url) as hub`."""

    def __init__(self, url: str, **options: Any) -> None:
        self._url = url
        self._options = options
        self._store: Store | None = None
        self._counted: dict[str, int] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self.events = Events()
        self.clock: Clock = SystemClock()
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{Ids().bits(24):06x}"
        parse_url(url, options)

    @property
    def store(self) -> Store:
        if self._store is None:
            raise ConfigError("the hub is not open; use it as: async with brigade.connect_async(url) as hub")
        return self._store

    async def open(self) -> Self:
        if self._store is None:
            self._store = open_store(self._url, self._options)
            self._store.on_failure = self._tell_failure
        return self

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
        return dict(self._counted) if self._store is None else self._store.requests()

    def _tell_failure(self, failed: Failed) -> None:
        common = {"attempt": failed.attempts}
        self.events.emit("message-dead", failed.queue, failed.id, error=failed.error, **common)
        self.events.emit("message-outcome", failed.queue, failed.id, status=failed.status, **common)

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
        """Finish what is under way, then let go of the store."""
        if self._store is not None:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            store, self._store = self._store, None
            await store.close()
            self._counted = store.requests()


def connect_async(url: str, **options: Any) -> AsyncHub:
    """A hub for async programs: `memory://name` or `file://path`. Options may also stand in the URL's query."""
    return AsyncHub(url, **options)


def parse_url(url: str, options: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Scheme, place and options of a store's URL; a bad one is a ConfigError that says what to write."""
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"the store's URL must be a string, not {type(url).__name__}")
    scheme, mark, rest = url.partition("://")
    if not mark:
        raise ConfigError(f"{url!r} is not a store's URL; write memory://name or file://path")
    if scheme in _LATER:
        raise ConfigError(f"{scheme}:// is not supported by this version; use memory:// or file://")
    if scheme not in ("memory", "file"):
        raise ConfigError(f"{scheme}:// is not a kind of store; use memory:// or file://")
    query = urlsplit(url).query
    given = {**dict(parse_qsl(query, keep_blank_values=True)), **options}
    known = {"memory": set[str](), "file": {"fsync", "watch"}}[scheme]
    for name, value in given.items():
        if name not in known:
            raise ConfigError(
                f"{scheme}:// has no option {name!r}" + (f"; it has {', '.join(sorted(known))}" if known else "")
            )
        given[name] = _switch(name, value)
    place = unquote(rest.partition("?")[0])
    if "\0" in place:
        raise ConfigError("the store's URL has a NUL character in it; take it out")
    return scheme, place, given


def _switch(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    known = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    answer = known.get(str(value).lower())
    if answer is None:
        raise ConfigError(f"option {name!r} is {value!r}; use true or false")
    return answer


def open_store(url: str, options: dict[str, Any]) -> Store:
    """The store behind a URL."""
    from brigade.stores.bucket.store import BucketStore

    scheme, place, given = parse_url(url, options)
    blobs: Blobs
    if scheme == "memory":
        from brigade.blobs.memory import MemoryBlobs

        blobs = MemoryBlobs(place)
    else:
        from brigade.blobs.disk import DiskBlobs

        if not place:
            raise ConfigError("file:// needs a directory: write file://./jobs or file:///var/lib/jobs")
        blobs = DiskBlobs(place, **given)
    return BucketStore(blobs)
