"""HTTP on a connection: httptools where it is installed, which costs half of what h11 does, with heads bounded."""

from __future__ import annotations

from typing import Any

__all__ = ["MOST_HEAD", "protocol"]

MOST_HEAD = 64 * 1024
"""Bytes of a request before its body. `max_headers` is checked when they are all there; this, while they come in."""


def protocol() -> Any:
    """What uvicorn is to speak HTTP with."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ModuleNotFoundError:
        return "h11"

    class Bounded(HttpToolsProtocol):
        """Hangs up on whoever sends a head without an end: the parser would keep all of it."""

        _head: int | None = 0

        def on_message_begin(self) -> None:
            self._head = 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._head = None
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._head is not None:
                self._head += len(data)
                if self._head > MOST_HEAD:
                    self.transport.close()

    return Bounded
