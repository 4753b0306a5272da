"""HTTP on a connection: httptools where it is installed, which costs half of what h11 does, with heads bounded."""

from __future__ import annotations

import asyncio
from typing import Any, cast

__all__ = ["MOST_HEAD", "Gathered", "protocol"]

MOST_HEAD = 64 * 1024
"""Bytes of a request before its body. `max_headers` is checked when they are all there; this, while they come in."""
MOST_GATHERED = 64 * 1024
"""Bytes that wait for more to be sent with them."""


class Gathered:
    """A transport that sends what is written in one moment in one go: a head with its body, not one after the other.

    To send is a quarter of what a small request costs. All but writing is the transport's own.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._unsent: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(data)
        self._size += len(data)
        if self._size > MOST_GATHERED:
            self._send()

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Nothing more comes: send now what waits."""
        if self._unsent:
            self._send()

    def _send(self) -> None:
        unsent, self._unsent, self._size = self._unsent, [], 0
        if unsent and not self._transport.is_closing():
            self._transport.write(b"".join(unsent))


def protocol() -> Any:
    """What uvicorn is to speak HTTP with."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ModuleNotFoundError:
        return "h11"

    class Bounded(HttpToolsProtocol):
        """Hangs up on whoever sends a head without an end: the parser would keep all of it."""

        _head: int | None = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            super().connection_made(cast("asyncio.Transport", Gathered(transport)))

        def on_message_begin(self) -> None:
            self._head = 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._head = None
            super().on_headers_complete()

        def on_response_complete(self) -> None:
            cast("Gathered", self.transport).flush()
            super().on_response_complete()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._head is not None:
                self._head += len(data)
                if self._head > MOST_HEAD:
                    self.transport.close()

    return Bounded
