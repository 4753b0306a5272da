"""Bodies in frames: pieces with their length before them, as they come in and as they go out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator

from starlette.types import Receive, Send

from brigade.errors import BrigadeError
from brigade.server.answers import Answer
from brigade.server.call import Call, InvalidRequest, Stream, failed, head_of, send_answer
from brigade.server.dequeueing import gone
from brigade.server.service import Service
from brigade.stores.remote.faults import fault_of
from brigade.stores.remote.frames import frame, last_frame
from brigade.stores.remote.wire import FRAMES, Fault

__all__ = ["Frames", "framed"]

log = logging.getLogger("brigade.server")
MOST_CHUNK = 4 * 1024 * 1024


class Frames:
    """Pieces with their length before them, from the chunks of a body."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._held = bytearray()
        self._reading = 0

    async def piece(self, most: int) -> bytes:
        """The next piece; empty where its length is 0."""
        size = int.from_bytes(await self._take(4))
        if size > most:
            raise InvalidRequest(f"a frame has {size} bytes; make frames of {most} at most", "frames")
        return await self._take(size)

    async def payload(self, number: int) -> AsyncIterator[bytes]:
        """The chunks of a streamed payload. They come in order, so they must be read in order."""
        if number != self._reading:
            raise InvalidRequest("streamed payloads were read out of order; send one at a time", "frames")
        while piece := await self.piece(MOST_CHUNK):
            yield piece
        self._reading += 1

    async def _take(self, size: int) -> bytes:
        while len(self._held) < size:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                raise InvalidRequest("the body ends in the middle of a frame", "frames")
            self._held += chunk
        taken = bytes(self._held[:size])
        del self._held[:size]
        return taken


def framed(service: Service, call: Call, pieces: AsyncGenerator[bytes]) -> Stream:
    """An answer of pieces as they are made. An error before the first is one like any other; later it ends them.

    Nothing is made ahead of what the client has taken, and nothing more for one that has gone.
    """

    async def stream(receive: Receive, send: Send) -> None:
        made = Answer(200, b"", {"Content-Type": FRAMES})
        head = head_of(made, service, call.correlation, sized=False)
        leaving = asyncio.ensure_future(gone(receive))
        started = False
        try:
            async with contextlib.aclosing(pieces) as running:
                async for piece in running:
                    await asyncio.sleep(0)  # neither a store in memory nor a connection that is gone makes anybody wait
                    if leaving.done():
                        return
                    if not started:
                        started = True
                        await send(head)
                    await send({"type": "http.response.body", "body": frame(piece), "more_body": True})
            last = last_frame()
            if not started:
                await send(head)
        except Exception as error:
            if not started:
                broken = failed(error, call.correlation)
                await send_answer(send, broken, service, call.correlation)
                return
            last = last_frame(_fault(error, call.correlation))
        finally:
            leaving.cancel()
        await send({"type": "http.response.body", "body": last})

    return stream


def _fault(error: Exception, correlation: str) -> Fault:
    if isinstance(error, BrigadeError):
        return fault_of(error)[1]
    log.error("request %s failed half-way", correlation, exc_info=error)
    return Fault(code="internal", message="the server failed; its log says why", correlation_id=correlation)
