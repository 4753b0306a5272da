"""Clients of a queue over HTTP: one small client and one loop, whatever server is at the other end."""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

__all__ = ["JSON", "Connection", "Remote", "Work", "consuming", "producing", "repeat"]

JSON = "application/json"
LIMIT = 120.0
"""Seconds after which a run is given up."""

Step = Callable[["Connection", int], Awaitable[int]]
"""Does so many messages at most, and says how many."""

Part = Callable[["Connection", int], Awaitable[None]]
"""Does so many messages."""

_LENGTH = re.compile(rb"content-length: (\d+)")


class Connection:
    """HTTP with as little as it takes, so that the client is not what is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host

    @classmethod
    async def open(cls, address: str) -> Connection:
        place = urlsplit(address)
        return cls(*await asyncio.open_connection(place.hostname, place.port, limit=2**24), place.netloc)

    async def post(self, path: str, body: bytes, kind: str = JSON) -> bytes:
        return await self._send(f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: {kind}", body)

    async def get(self, path: str) -> str:
        return (await self._send(f"GET {path} HTTP/1.1\r\nHost: {self._host}", b"")).decode()

    async def _send(self, head: str, body: bytes) -> bytes:
        self._writer.write(f"{head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert answer.startswith(b"http/1.1 200"), answer
        length = _LENGTH.search(answer)
        assert length is not None, answer
        return await self._reader.readexactly(int(length[1]))

    def close(self) -> None:
        self._writer.close()


class Remote(Protocol):
    """A queue behind a server, in the requests that its server understands."""

    @property
    def bulk(self) -> int:
        """How many messages a request has that fills the queue before the clock starts."""
        ...

    async def open(self, one: Connection) -> None: ...

    async def enqueue(self, one: Connection, count: int) -> int:
        """Send messages with one request; returns how many."""
        ...

    async def consume(self, one: Connection, count: int) -> int:
        """Take messages, `count` at most, with one request, and ack them with another; returns how many."""
        ...

    async def close(self, one: Connection) -> None:
        """Leave nothing that would burden the next run."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """What clients do to one queue, each a part of it. Where they take from the queue it is filled before."""

    queue: Remote
    filled: bool
    part: Part

    async def timed(self, address: str, count: int, clients: int) -> float:
        """Seconds until the last client has done its part of the messages."""
        async with asyncio.timeout(LIMIT):
            connections = [await Connection.open(address) for _ in range(clients)]
            first = connections[0]
            await self.queue.open(first)
            if self.filled:
                await repeat(self.queue.enqueue, self.queue.bulk, first, count)
            started = time.monotonic()
            await asyncio.gather(*(self.part(one, count // clients) for one in connections))
            seconds = time.monotonic() - started
            await self.queue.close(first)
        for one in connections:
            one.close()
        return seconds


def producing(queue: Remote, batch: int) -> Work:
    """Enqueue, with so many messages a request."""
    return Work(queue, filled=False, part=functools.partial(repeat, queue.enqueue, batch))


def consuming(queue: Remote, batch: int) -> Work:
    """Take and ack, with so many messages a request."""
    return Work(queue, filled=True, part=functools.partial(repeat, queue.consume, batch))


async def repeat(step: Step, batch: int, one: Connection, count: int) -> None:
    """One request after the other, until that many messages are done."""
    done = 0
    while done < count:
        done += await step(one, min(batch, count - done))
