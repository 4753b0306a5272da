"""What a server says on a connection goes out in one go, as far as it is said in one moment."""

from __future__ import annotations

import asyncio
from typing import Any

from brigade.server.protocol import MOST_GATHERED, Gathered


class Wire:
    """A transport that remembers what it was given."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> str:
        return name


def gathered() -> tuple[Wire, Any]:
    wire: Any = Wire()
    return wire, Gathered(wire)


async def test_what_is_written_in_one_moment_is_sent_in_one_go() -> None:
    wire, transport = gathered()
    transport.write(b"head")
    transport.write(b"body")
    assert wire.sent == []
    await asyncio.sleep(0)
    transport.write(b"more")
    await asyncio.sleep(0)
    assert wire.sent == [b"headbody", b"more"]


async def test_much_is_sent_at_once_and_in_order() -> None:
    """So that the transport can say that a client is slow."""
    wire, transport = gathered()
    large = bytes(MOST_GATHERED)
    transport.write(b"head")
    transport.write(large)
    assert wire.sent == [b"head" + large]
    transport.write(b"tail")
    await asyncio.sleep(0)
    assert wire.sent == [b"head" + large, b"tail"]


async def test_a_connection_is_closed_when_all_was_sent() -> None:
    wire, transport = gathered()
    transport.write(b"bye")
    transport.close()
    assert (wire.sent, wire.closed) == ([b"bye"], True)
    transport.write(b"too late")
    await asyncio.sleep(0)
    assert wire.sent == [b"bye"]


def test_the_rest_is_the_transports_own() -> None:
    async def ask() -> Any:
        return gathered()[1].get_extra_info("peername")

    assert asyncio.run(ask()) == "peername"
