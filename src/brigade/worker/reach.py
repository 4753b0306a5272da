"""How code in another thread or loop reaches the engine's hub: big payloads and lease extensions."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from brigade.model import Lease, Message
from brigade.queue import AsyncQueue, AsyncReader
from brigade.sync import Hub, PayloadReader

__all__ = ["Reach"]

T = TypeVar("T")
CHUNK = 256 * 1024


class Reach:
    """The queues of a hub that runs on a loop in its own thread, as handlers elsewhere use them.

    `extended` is told of each lease that a handler extended.
    """

    def __init__(self, hub: Hub, queues: dict[str, AsyncQueue], extended: Callable[[Message, Lease], None]) -> None:
        self._hub = hub
        self._queues = queues
        self._extended = extended

    def extend(self, message: Message, seconds: float | None) -> Lease:
        return self._hub.call(self._extend(message, seconds))

    async def _extend(self, message: Message, seconds: float | None) -> Lease:
        lease = await self._queues[message.queue].extend(message, seconds)
        self._extended(message, lease)
        return lease

    def open(self, message: Message) -> io.BufferedReader:
        """The payload as a binary file."""
        reader = self._queues[message.queue].reader(message)
        return io.BufferedReader(PayloadReader(self._hub, reader), buffer_size=CHUNK)

    async def extend_async(self, message: Message, seconds: float | None) -> Lease:
        return await self._there(self._extend(message, seconds))

    def open_async(self, message: Message) -> AsyncReader:
        """The payload as an async reader of the caller's loop."""
        return AsyncReader(self._chunks(self._queues[message.queue].reader(message)))

    async def _chunks(self, reader: AsyncReader) -> AsyncIterator[bytes]:
        try:
            while chunk := await self._there(reader.read(CHUNK)):
                yield chunk
        finally:
            await self._there(reader.close())

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._hub.submit(work))
