"""Where the checks work: several connections, each with a thread and a loop of its own, and names to throw away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from brigade.blobs import Blob, Blobs, Create, Delete, Get, List, Op, Page, Refused, Swap
from brigade.clock import SystemClock
from brigade.errors import BrigadeError, QueueNotFound, StoreUnavailable
from brigade.ids import Ids
from brigade.stores import Store
from brigade.stores.bucket.store import BucketStore

__all__ = ["Answer", "Connect", "Connection", "Lab"]

log = logging.getLogger("brigade")
T = TypeVar("T")
Connect = Callable[[], Store]
"""Makes a store that is not yet open: each call is another connection to the same place."""

Answer = str | Refused | BrigadeError
"""What a racing writer was told: its etag, a refusal, or an error."""

START_TOGETHER = 10.0
CLEANING = 30.0
MOMENT = 2.0
PASSES = 5
TRIES = 3


class Connection:
    """One store in a thread of its own, as another process would have it."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._store: Store | None = None
        self._under_way: set[asyncio.Task[Any]] = set()

    @property
    def store(self) -> Store:
        assert self._store is not None
        return self._store

    @property
    def blobs(self) -> Blobs:
        assert isinstance(self._store, BucketStore)
        return self._store.blobs

    async def open(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brigade-doctor", daemon=True)
        self._thread.start()
        await self.run(self._open)

    async def _open(self) -> None:
        store = self._connect()
        await store.open()
        self._store = store

    def submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start work on this connection's loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self._noted(work), self._loop)

    async def _noted(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Work, known as under way until it ends: whoever waits for it may be gone before it is."""
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            return await work()
        finally:
            self._under_way.discard(task)

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await asyncio.wrap_future(self.submit(work))

    async def perform(self, op: Op) -> Any:
        return await self.run(lambda: self._perform(op))

    async def _perform(self, op: Op) -> Any:
        return await self.blobs.perform(op)

    async def rest(self) -> None:
        """Let what is under way come to its end."""
        if self._loop is not None:
            await self.run(self._come_to_an_end)

    async def close(self) -> None:
        """Let what is under way come to its end, close the store, end the thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        try:
            await self.run(self._close)
        finally:
            self._loop = self._thread = None
            loop.call_soon_threadsafe(loop.stop)
            await asyncio.to_thread(thread.join)
            loop.close()

    async def _close(self) -> None:
        await self._come_to_an_end()
        if self._store is not None:
            await asyncio.wait_for(self._store.close(), CLEANING)

    async def _come_to_an_end(self) -> None:
        """A write that is cut off may still be applied, so it is given a moment to be answered."""
        under_way = [task for task in self._under_way if task is not asyncio.current_task()]
        if under_way:
            await asyncio.wait(under_way, timeout=MOMENT)
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)


class Lab:
    """What a check is given. Every name it makes is remembered, and removed in the end."""

    def __init__(self, connect: Connect, *, connections: int, quick: bool) -> None:
        ids = Ids()
        self.quick = quick
        self.uid = f"{ids.bits(48):012x}"
        self.queue = f"doctor-{self.uid}"
        self.monotonic = SystemClock().monotonic
        self._ids = ids
        self._prefixes = (f"doctor/{self.uid}/", f"q/{self.queue}/")
        self._keys: set[str] = set()
        self._lock = threading.Lock()
        self._connect = connect
        self._connections = [Connection(connect) for _ in range(connections)]
        self._used_queue = False

    async def open(self) -> None:
        await asyncio.gather(*(connection.open() for connection in self._connections))

    @property
    def is_bucket(self) -> bool:
        return isinstance(self._connections[0].store, BucketStore)

    @property
    def size(self) -> int:
        return len(self._connections)

    def connection(self, number: int = 0) -> Connection:
        """One of the connections; numbers go round."""
        return self._connections[number % len(self._connections)]

    def prefix(self, name: str) -> str:
        """How keys made from names that start so start themselves."""
        return self._prefixes[0] + name

    def key(self, name: str) -> str:
        """A key that nobody else uses."""
        return self._remembered(self._prefixes[0] + name)

    def queue_prefix(self, name: str) -> str:
        """The same, where the objects of the throw-away queue lie."""
        return self._prefixes[1] + name

    def queue_key(self, name: str) -> str:
        return self._remembered(self._prefixes[1] + name)

    def body(self, text: str) -> bytes:
        """Bytes that no other write has."""
        with self._lock:
            return f"{text} {self._ids.nonce()}".encode()

    def scale(self, quick: int, full: int) -> int:
        return quick if self.quick else full

    async def get(self, key: str, by: int = 0) -> Blob | None:
        return await self.connection(by).perform(Get(key))

    async def list(self, prefix: str, after: str = "", limit: int = 1000, by: int = 0) -> Page:
        return await self.connection(by).perform(List(prefix, after, limit))

    async def write(self, op: Create | Swap, by: int = 0) -> str:
        """A write whose condition holds. As queues do, it looks for its bytes where the answer leaves a doubt."""
        answer: Any = None
        for _ in range(TRIES):
            answer = await self.connection(by).perform(op)
            if isinstance(answer, str):
                return answer
            found = await self.get(op.key, by)
            if found is not None and found.body == op.body:
                return found.etag
        what = type(op).__name__.lower()
        raise StoreUnavailable(f"a {what} whose condition held was refused ({answer.value}) {TRIES} times")

    async def race(self, ops: Sequence[Op]) -> list[Answer]:
        """Perform operations together, spread over all connections, released at the same moment."""
        return await self.together([lambda connection, op=op: connection.blobs.perform(op) for op in ops])

    async def together(self, parts: Sequence[Callable[[Connection], Awaitable[Any]]]) -> list[Any]:
        """Run parts on all connections, released at the same moment. An error is an answer like any other."""
        shares: list[list[int]] = [[] for _ in self._connections]
        for number in range(len(parts)):
            shares[number % len(shares)].append(number)
        gate = threading.Barrier(sum(bool(share) for share in shares))
        answers: list[Any] = [None] * len(parts)

        async def one(connection: Connection, number: int) -> None:
            try:
                answers[number] = await parts[number](connection)
            except BrigadeError as error:
                answers[number] = error

        async def share_of(connection: Connection, share: list[int]) -> None:
            gate.wait(START_TOGETHER)
            await asyncio.gather(*(one(connection, number) for number in share))

        started = [
            connection.submit(lambda connection=connection, share=share: share_of(connection, share))
            for connection, share in zip(self._connections, shares, strict=True)
            if share
        ]
        try:
            await asyncio.gather(*map(asyncio.wrap_future, started))
        except threading.BrokenBarrierError:
            raise StoreUnavailable("this machine is too busy to start a race; try again later") from None
        return answers

    async def open_queue(self) -> str:
        """The throw-away queue, known to every connection."""
        self._used_queue = True
        for connection in self._connections:
            store = connection.store
            await connection.run(lambda store=store: store.open_queue(self.queue, None, replace=False, create=True))
        return self.queue

    async def close(self) -> list[str]:
        """Close all connections, then remove everything; returns what is left where that failed.

        Work on one connection may ask another, so none is closed before all have come to rest.
        """
        await asyncio.gather(*(connection.rest() for connection in self._connections), return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in self._connections), return_exceptions=True)
        if not self._keys and not self._used_queue:
            return []
        sweeper = Connection(self._connect)
        try:
            await sweeper.open()
            return await asyncio.wait_for(self._remove(sweeper), CLEANING)
        except Exception as error:
            log.warning("the doctor could not clean up: %s", str(error) or "the store took too long")
            return [*self._prefixes]
        finally:
            with contextlib.suppress(BrigadeError, TimeoutError):
                await sweeper.close()

    async def _remove(self, sweeper: Connection) -> list[str]:
        store = sweeper.store
        if self._used_queue:
            with contextlib.suppress(QueueNotFound, TimeoutError):
                deleting = sweeper.run(lambda: store.delete(self.queue))
                await asyncio.wait_for(deleting, CLEANING / 2)
        if not isinstance(store, BucketStore):
            return []
        return await sweeper.run(lambda: self._remove_objects(store.blobs))

    async def _remove_objects(self, blobs: Blobs) -> list[str]:
        """By name, for what a listing doesn't show; by listing, for what was not made by name."""
        known = sorted(self._keys)
        for start in range(0, len(known), 1000):
            await blobs.perform(Delete(tuple(known[start : start + 1000])))
        left: list[str] = []
        for prefix in self._prefixes:
            for _ in range(PASSES):
                page: Any = await blobs.perform(List(prefix))
                if not page.items:
                    break
                await blobs.perform(Delete(tuple(item.key for item in page.items)))
            else:
                left.append(prefix)
        prune: Callable[[str], None] | None = getattr(blobs, "prune", None)
        if prune is not None:
            for prefix in (*self._prefixes, "doctor"):
                prune(prefix)
        return left

    def _remembered(self, key: str) -> str:
        self._keys.add(key)
        return key
