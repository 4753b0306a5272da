"""Frames: pieces of a body, each with its length before it, so that whoever reads knows whether they have all."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from brigade.errors import PayloadTooLarge, StoreUnavailable
from brigade.stores.remote.faults import error_of
from brigade.stores.remote.wire import Fault

__all__ = ["MOST", "frame", "last_frame", "read_frames"]

HEAD = 4
FAULT = 1 << 31
"""Set in the length of a frame that tells of an error: it is the last one."""

MOST = FAULT - 1


def frame(piece: bytes) -> bytes:
    """A piece with its length: four bytes, big-endian."""
    if len(piece) > MOST:
        raise PayloadTooLarge(f"{len(piece)} bytes are more than one frame holds; read fewer rows at a time")
    return len(piece).to_bytes(HEAD) + piece


def last_frame(fault: Fault | None = None) -> bytes:
    """The end: length 0 where all went well, else what went wrong."""
    if fault is None:
        return bytes(HEAD)
    told = msgspec.json.encode(fault)
    return (FAULT | len(told)).to_bytes(HEAD) + told


async def read_frames(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces of an answer. StoreUnavailable where it ends before its end; an error that it tells of is raised."""
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        while len(held) >= HEAD:
            head = int.from_bytes(held[:HEAD])
            end = HEAD + (head & MOST)
            if len(held) < end:
                break
            piece = bytes(held[HEAD:end])
            del held[:end]
            if head & FAULT:
                raise error_of(msgspec.json.decode(piece, type=Fault))
            if not piece:
                return
            yield piece
    raise StoreUnavailable("the answer broke off before its end; ask again")
