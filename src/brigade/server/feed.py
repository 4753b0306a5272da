"""The events of this server, for whoever watches, and for those who come back and have missed some."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from brigade.clock import Clock
from brigade.events import Event
from brigade.model import Stats
from brigade.queue import AsyncQueue

__all__ = ["STATS_EVERY", "Feed", "Reader"]

MOST_UNSENT = 1000
"""Events that wait for a slow reader. One that falls further behind is told that it missed some."""

STATS_EVERY = 2.0
HEARTBEAT = 15.0


class Reader:
    """One open stream, and what it has yet to be sent."""

    def __init__(self, queue: str, names: frozenset[str]) -> None:
        self.queue = queue
        self.names = names
        self._unsent: deque[bytes] = deque()
        self._some = asyncio.Event()
        self._missed = False

    def put(self, id: str | None, name: str, value: Any) -> None:
        if len(self._unsent) >= MOST_UNSENT:
            self._missed = True
            self._unsent.clear()
        head = "" if id is None else f"id: {id}\n"
        self._unsent.append(f"{head}event: {name}\ndata: ".encode() + msgspec.json.encode(value) + b"\n\n")
        self._some.set()

    def reset(self) -> None:
        self._missed = True
        self._some.set()

    def wake(self) -> None:
        """Have the stream look whether it is to go on."""
        self._some.set()

    def take(self) -> bytes:
        """All that is to be sent now."""
        head = b'event: reset\ndata: {"reason": "events were missed; look anew"}\n\n' if self._missed else b""
        made = head + b"".join(self._unsent)
        self._missed = False
        self._unsent.clear()
        self._some.clear()
        return made

    async def ready(self, leaving: asyncio.Future[None]) -> None:
        """Return when there is something to send, the reader has left, or the stream has been silent for long."""
        some = asyncio.ensure_future(self._some.wait())
        try:
            await asyncio.wait({some, leaving}, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
        finally:
            some.cancel()


class Feed:
    """The events of this server, numbered, the latest of them kept for readers that come back."""

    def __init__(self, name: str, *, most: int = 10_000) -> None:
        self._name = name.rpartition(":")[2]
        self._kept: deque[tuple[int, Event, int]] = deque(maxlen=most)
        self._count = 0
        self._readers: set[Reader] = set()
        self._stats: dict[str, tuple[float, asyncio.Task[Stats]]] = {}
        self.clock: Clock | None = None

    def __len__(self) -> int:
        return len(self._readers)

    def tell(self, events: Sequence[Event]) -> None:
        """Events of the hub that come together."""
        now = 0 if self.clock is None else self.clock.now()
        for event in events:
            self._count += 1
            self._kept.append((self._count, event, now))
            for reader in self._readers:
                self._put(reader, self._count, event, now)

    def _put(self, reader: Reader, number: int, event: Event, at: int) -> None:
        if event.queue == reader.queue and event.name in reader.names:
            told = {"queue": event.queue, "id": event.id, "at_ms": at, **event.fields}
            reader.put(f"{self._name}-{number}", event.name, told)

    def join(self, reader: Reader, last: str | None) -> None:
        """From now on; and what came after `last`, where that is known."""
        self._readers.add(reader)
        if last is None:
            return
        name, _, number = last.rpartition("-")
        first = self._kept[0][0] if self._kept else self._count + 1
        if name != self._name or not number.isdecimal() or not first - 1 <= int(number[:18]) <= self._count:
            reader.reset()
            return
        for count, event, at in self._after(int(number)):
            self._put(reader, count, event, at)

    def _after(self, number: int) -> Iterable[tuple[int, Event, int]]:
        return [kept for kept in self._kept if kept[0] > number]

    def leave(self, reader: Reader) -> None:
        self._readers.discard(reader)

    def stop(self) -> None:
        """Let every reader see that the server is shutting down."""
        for reader in self._readers:
            reader.wake()

    async def stats(self, queue: AsyncQueue, clock: Clock) -> Stats:
        """How a queue stands: counted once for all who want to know at about the same time."""
        now = clock.monotonic()
        known = self._stats.get(queue.name)
        if known is None or now - known[0] >= STATS_EVERY / 2:
            task = asyncio.ensure_future(queue.stats())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            known = self._stats[queue.name] = (now, task)
            while len(self._stats) > MOST_UNSENT:
                del self._stats[next(iter(self._stats))]
        return await asyncio.shield(known[1])
