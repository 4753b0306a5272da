"""Large payloads: written chunk by chunk as they are read, and read back the same way."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from brigade.errors import BrigadeError, CorruptObject, MessageNotFound, PayloadTooLarge
from brigade.model import Message
from brigade.policy import INLINE_LIMIT, QueuePolicy
from brigade.stores import Outgoing
from brigade.stores.postgres.enqueue import Draft, drafted
from brigade.stores.postgres.steps import Ask, Rows, Steps
from brigade.stores.postgres.wire import parse_ref

__all__ = ["CHUNK", "Run", "read_payload", "take_in"]

CHUNK = 256 * 1024
Run = Callable[[Steps[Rows]], Awaitable[Rows]]
"""Runs the statements of a generator somewhere: on the pool, or on the caller's connection."""


def one(ask: Ask) -> Steps[Rows]:
    """A single statement."""
    return (yield ask)


async def take_in(run: Run, queue: str, policy: QueuePolicy, messages: Sequence[Outgoing]) -> list[Draft]:
    """Drafts of the messages, their large payloads stored. A batch that is refused leaves none behind."""
    drafts: list[Draft] = []
    blobs: list[int] = []
    try:
        for message in messages:
            if isinstance(message.payload, bytes):
                drafts.append(_small(queue, policy, message, message.payload))
            else:
                drafts.append(await _streamed(run, queue, policy, message, message.payload, blobs))
    except BaseException:
        if blobs:
            with contextlib.suppress(BrigadeError):
                await run(one(Ask("drop_blobs", {"blobs": blobs})))
        raise
    return drafts


def _small(queue: str, policy: QueuePolicy, message: Outgoing, payload: bytes) -> Draft:
    if len(payload) > policy.max_payload:
        raise _too_large(queue, policy, len(payload))
    return drafted(message, policy, payload, len(payload))


async def _streamed(
    run: Run, queue: str, policy: QueuePolicy, message: Outgoing, payload: AsyncIterator[bytes], blobs: list[int]
) -> Draft:
    held = bytearray()
    size = checksum = place = 0
    blob = 0
    async for chunk in payload:
        held += chunk
        if size + len(held) > policy.max_payload and size + len(held) > INLINE_LIMIT:
            raise _too_large(queue, policy, size + len(held))
        while len(held) > INLINE_LIMIT:
            if not blobs or blob == 0:
                blob = (await run(one(Ask("make_blob"))))[0][0]
                blobs.append(blob)
            piece = bytes(memoryview(held)[:CHUNK])
            del held[:CHUNK]
            size, checksum, place = await _write(run, blob, place, piece, size, checksum)
    if blob == 0:
        return _small(queue, policy, message, bytes(held))
    if held:
        size, checksum, place = await _write(run, blob, place, bytes(held), size, checksum)
    return drafted(message, policy, None, size, blob, checksum)


async def _write(run: Run, blob: int, place: int, piece: bytes, size: int, checksum: int) -> tuple[int, int, int]:
    params: dict[str, Any] = {"blob": blob, "place": place, "data": piece}
    await run(one(Ask("write_chunk", params)))
    return size + len(piece), zlib.crc32(piece, checksum), place + 1


def _too_large(queue: str, policy: QueuePolicy, size: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the payload has {size} bytes or more, but queue {queue!r} takes {policy.max_payload}; "
        "raise max_payload in its policy, or send a reference"
    )


async def read_payload(run: Run, queue_id: int, message: Message) -> AsyncIterator[bytes]:
    """The chunks of a payload; CorruptObject at the end where they are not what was sent."""
    number = parse_ref(message.ref, queue_id)
    rows: Rows = await run(one(Ask("find_blob", {"id": number}))) if number is not None else []
    if not rows or rows[0][0] is None:
        raise MessageNotFound(f"the payload of message {message.id!r} is gone: the message has ended")
    blob: int = rows[0][0]
    size = checksum = place = 0
    while size < message.size:
        rows = await run(one(Ask("read_chunk", {"blob": blob, "place": place})))
        if not rows:
            break
        chunk: bytes = rows[0][0]
        size, checksum, place = size + len(chunk), zlib.crc32(chunk, checksum), place + 1
        yield chunk
    if size != message.size or (message.checksum is not None and checksum != message.checksum):
        reason = f"it has {size} bytes, {message.size} were sent" if size != message.size else "it was altered"
        raise CorruptObject(f"chunks of {message.ref}", reason, "discard what was read, and reject the message")
