"""Large payloads: written chunk by chunk as they are read, and read back the same way."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from brigade.crypto.places import bind, binding_of, crc_of
from brigade.errors import BrigadeError, CannotDecrypt, CorruptObject, MessageNotFound, PayloadTooLarge
from brigade.model import Message
from brigade.policy import INLINE_LIMIT, QueuePolicy
from brigade.stores import Outgoing
from brigade.stores.postgres.enqueue import Draft, drafted
from brigade.stores.postgres.steps import Ask, Rows, Steps
from brigade.stores.postgres.wire import parse_ref

if TYPE_CHECKING:
    from brigade.crypto.fields import Fields

__all__ = ["CHUNK", "Run", "read_payload", "take_in"]

CHUNK = 256 * 1024
Run = Callable[[Steps[Rows]], Awaitable[Rows]]
"""Runs the statements of a generator somewhere: on the pool, or on the caller's connection."""


def one(ask: Ask) -> Steps[Rows]:
    """A single statement."""
    return (yield ask)


async def take_in(
    run: Run, queue: str, policy: QueuePolicy, messages: Sequence[Outgoing], fields: Fields | None = None
) -> list[Draft]:
    """Drafts of the messages, their large payloads stored. A batch that is refused leaves none behind."""
    drafts: list[Draft] = []
    blobs: list[int] = []
    try:
        for message in messages:
            if isinstance(message.payload, bytes):
                drafts.append(_small(queue, policy, message, message.payload))
            else:
                drafts.append(await _streamed(run, queue, policy, message, message.payload, blobs, fields))
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
    run: Run,
    queue: str,
    policy: QueuePolicy,
    message: Outgoing,
    payload: AsyncIterator[bytes],
    blobs: list[int],
    fields: Fields | None,
) -> Draft:
    held = bytearray()
    size = checksum = place = 0
    blob = 0
    sealer = None if fields is None else fields.sealer()
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
            size, checksum = size + len(piece), zlib.crc32(piece, checksum)
            await _write(run, blob, place, sealer.update(piece) if sealer else piece)
            place += 1
    if blob == 0:
        return _small(queue, policy, message, bytes(held))
    size, checksum, rest = size + len(held), zlib.crc32(held, checksum), bytes(held)
    if sealer is not None:
        rest = sealer.update(rest) + sealer.finish()
        checksum = bind(sealer.binding, checksum)
    if rest:
        await _write(run, blob, place, rest)
    return drafted(message, policy, None, size, blob, checksum)


async def _write(run: Run, blob: int, place: int, piece: bytes) -> None:
    params: dict[str, Any] = {"blob": blob, "place": place, "data": piece}
    await run(one(Ask("write_chunk", params)))


def _too_large(queue: str, policy: QueuePolicy, size: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the payload has {size} bytes or more, but queue {queue!r} takes {policy.max_payload}; "
        "raise max_payload in its policy, or send a reference"
    )


async def read_payload(run: Run, queue_id: int, message: Message, fields: Fields | None = None) -> AsyncIterator[bytes]:
    """The chunks of a payload; CorruptObject at the end where they are not what was sent."""
    binding, what = binding_of(message.checksum), f"payload of message {message.ref}"
    if binding is not None and fields is None:
        raise CannotDecrypt(f"{what} is sealed, and encryption is off here; connect with encryption= and its keys")
    opener = fields.opener(binding, what) if fields is not None and binding is not None else None
    number = parse_ref(message.ref, queue_id)
    rows: Rows = await run(one(Ask("find_blob", {"id": number}))) if number is not None else []
    if not rows or rows[0][0] is None:
        raise MessageNotFound(f"the payload of message {message.id!r} is gone: the message has ended")
    blob: int = rows[0][0]
    size = checksum = place = 0
    while size < message.size:
        rows = await run(one(Ask("read_chunk", {"blob": blob, "place": place})))
        if not rows and opener is None:
            break
        chunk: bytes = rows[0][0] if rows else b""
        if opener is not None:
            chunk = opener.update(chunk) if rows else opener.finish()
        size, checksum, place = size + len(chunk), zlib.crc32(chunk, checksum), place + 1
        yield chunk
        if not rows:
            break
    if size != message.size or (message.checksum is not None and checksum != crc_of(message.checksum)):
        reason = f"it has {size} bytes, {message.size} were sent" if size != message.size else "it was altered"
        raise CorruptObject(f"chunks of {message.ref}", reason, "discard what was read, and reject the message")
