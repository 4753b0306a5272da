"""Blobs in a dict: the reference. Shared by everything in the process that connects to the same name."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import ClassVar
from weakref import WeakValueDictionary

from brigade.blobs import CONFLICT, Blob, Copy, Create, Delete, DeleteIf, Gathering, Get, Item, List, Op, Page, Swap
from brigade.clock import Clock, SystemClock
from brigade.errors import MessageNotFound

__all__ = ["PRIVATE", "Bucket", "MemoryBlobs"]

PRIVATE = "~"
ANY = "*"
"""Stands for whatever etag a key has, or none."""


class Bucket:
    """The shared contents: objects, their keys in order, and who watches. Every method is atomic."""

    _named: ClassVar[dict[str, Bucket]] = {}
    _private: ClassVar[WeakValueDictionary[str, Bucket]] = WeakValueDictionary()
    _naming = threading.Lock()

    def __init__(self, clock: Clock | None = None) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, Blob] = {}
        self._keys: list[str] = []
        self._clock: Clock = clock or SystemClock()
        self._writes = 0
        self._watchers: dict[int, tuple[str, Callable[[str], None]]] = {}
        self._watches = 0

    @classmethod
    def named(cls, name: str) -> Bucket:
        """The bucket of that name in this process. One whose name starts with `~` lives as long as it is used."""
        with cls._naming:
            known = cls._private if name.startswith(PRIVATE) else cls._named
            found = known.get(name)
            if found is None:
                found = known[name] = cls()
            return found

    def apply(self, op: Op) -> object:
        """Perform one operation."""
        match op:
            case Get(key):
                return self._objects.get(key)
            case Create(key, body):
                return self._write(key, body, None)
            case Swap(key, body, etag):
                return self._write(key, body, etag)
            case List(prefix, after, limit):
                return self._list(prefix, after, limit)
            case Delete(keys):
                with self._lock:
                    for key in keys:
                        self._remove(key)
                return None
            case DeleteIf(key, etag):
                with self._lock:
                    found = self._objects.get(key)
                    if found is None or found.etag != etag:
                        return CONFLICT
                    self._remove(key)
                    return etag
            case Copy(source, target):
                found = self._objects.get(source)
                if found is not None:
                    self._write(target, found.body, ANY)
                return found is not None

    def watch(self, prefix: str, wake: Callable[[str], None]) -> Callable[[], None]:
        with self._lock:
            self._watches += 1
            number = self._watches
            self._watchers[number] = (prefix, wake)
        return lambda: self._watchers.pop(number, None) and None

    def snapshot(self) -> dict[str, bytes]:
        """Every object, for tests and simulations."""
        with self._lock:
            return {key: blob.body for key, blob in self._objects.items()}

    def damage(self, key: str, body: bytes) -> None:
        """Replace an object's bytes behind the store's back, as a failing disk would."""
        with self._lock:
            old = self._objects[key]
            self._objects[key] = Blob(body, old.etag + "x", old.modified)

    def _write(self, key: str, body: bytes, etag: str | None) -> object:
        with self._lock:
            found = self._objects.get(key)
            if etag != ANY and (found.etag if found else None) != etag:
                return CONFLICT
            self._writes += 1
            if found is None:
                insort(self._keys, key)
            self._objects[key] = Blob(body, f"{self._writes:x}", self._clock.now())
            wakes = [wake for prefix, wake in self._watchers.values() if key.startswith(prefix)]
            new = f"{self._writes:x}"
        for wake in wakes:
            wake(key)
        return new

    def _remove(self, key: str) -> None:
        if self._objects.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def _list(self, prefix: str, after: str, limit: int) -> Page:
        with self._lock:
            start = bisect_right(self._keys, after) if after >= prefix else bisect_left(self._keys, prefix)
            items: list[Item] = []
            for place in range(start, len(self._keys)):
                key = self._keys[place]
                if not key.startswith(prefix):
                    return Page(items, False)
                if len(items) == limit:
                    return Page(items, True)
                blob = self._objects[key]
                items.append(Item(key, blob.etag, len(blob.body), blob.modified))
            return Page(items, False)


class MemoryBlobs(Gathering):
    """One connection to a memory bucket; counts what it asks for."""

    listing_ttl = 1.0
    immediate = True
    pledges = False
    prompt = True
    poll_interval = 6.0
    patience = 0.0

    def __init__(self, name: str = "", *, bucket: Bucket | None = None) -> None:
        self._bucket = bucket or (Bucket.named(name) if name else Bucket())
        self._counts: Counter[str] = Counter()

    async def open(self, clock: Clock) -> None:
        """Nothing to connect to."""

    def try_now(self, op: Op) -> object:
        self._counts[type(op).__name__.lower()] += 1
        return self._bucket.apply(op)

    async def perform(self, op: Op) -> object:
        return self.try_now(op)

    async def put_stream(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        body = bytearray()
        async for chunk in chunks:
            body += chunk
        self.try_now(Create(key, bytes(body)))
        return len(body)

    async def get_stream(self, key: str, *, chunk: int = 1024 * 1024) -> AsyncGenerator[bytes]:
        blob = self.try_now(Get(key))
        if not isinstance(blob, Blob):
            raise MessageNotFound(f"payload {key!r} is gone: its message has ended")
        for start in range(0, len(blob.body), chunk):
            yield blob.body[start : start + chunk]

    def watch(self, prefix: str, wake: Callable[[str], None]) -> Callable[[], None] | None:
        return self._bucket.watch(prefix, wake)

    def requests(self) -> dict[str, int]:
        return dict(self._counts)

    async def close(self) -> None:
        """Nothing to let go of: the bucket lives as long as the process."""
