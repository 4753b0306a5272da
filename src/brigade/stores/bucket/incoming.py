"""Payloads on their way in: small ones join others in a segment, large ones go to a blob as they are read."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import AsyncIterator, Sequence

from brigade.blobs import Blobs
from brigade.crypto.places import bind
from brigade.errors import BrigadeError, PayloadTooLarge
from brigade.policy import INLINE_LIMIT
from brigade.stores import Outgoing, Payloads
from brigade.stores.bucket.convert import new_entry
from brigade.stores.bucket.driver import perform
from brigade.stores.bucket.enqueue import Draft
from brigade.stores.bucket.keys import SegmentName, lane_name
from brigade.stores.bucket.specs import is_special
from brigade.stores.bucket.steps import Env, delete
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import Entry

__all__ = ["check_sizes", "inline_draft", "inline_drafts", "plain_entry", "take_in"]


async def take_in(env: Env, blobs: Blobs, view: QueueView, messages: Sequence[Outgoing]) -> list[Draft]:
    """Drafts of the messages, their large payloads stored. A batch that is refused leaves none behind."""
    now = env.now()
    drafts: list[Draft] = []
    try:
        for message in messages:
            if isinstance(message.payload, bytes):
                drafts.append(inline_draft(view, message, message.payload, now))
            else:
                drafts.append(await _streamed(env, blobs, view, message, message.payload))
    except BaseException:
        keys = [view.keys.blob(f"{draft.planned}-0") for draft in drafts if draft.planned is not None]
        if keys:
            with contextlib.suppress(BrigadeError):
                await perform(delete(keys), blobs)
        raise
    return drafts


def inline_drafts(view: QueueView, messages: Sequence[Outgoing], now: int) -> list[Draft]:
    """Drafts of messages whose payloads are all at hand, and stay in their segments whatever their size."""
    drafts: list[Draft] = []
    for message in messages:
        if not isinstance(message.payload, bytes):
            raise TypeError("a staged message's payload is bytes, not a stream")
        drafts.append(inline_draft(view, message, message.payload, now))
    return drafts


def check_sizes(view: QueueView, messages: Payloads) -> None:
    largest = max(messages.sizes, default=0)
    if largest > view.policy.max_payload:
        raise _too_large(largest, view)


def plain_entry(view: QueueView, message: Outgoing, now: int) -> Entry | None:
    """A message about which there is nothing to say, as it is stored; None where there is."""
    payload = message.payload
    if type(payload) is not bytes or message.delay or message.id is not None or message.group is not None:
        return None
    if message.ttl is not None or message.max_attempts is not None or view.policy.ordering_guarantee:
        return None
    if len(payload) > view.policy.max_payload:
        raise _too_large(len(payload), view)
    return new_entry(message, payload, len(payload), now)


def inline_draft(view: QueueView, message: Outgoing, payload: bytes, now: int) -> Draft:
    if len(payload) > view.policy.max_payload:
        raise _too_large(len(payload), view)
    return Draft(new_entry(message, payload, len(payload), now))


async def _streamed(env: Env, blobs: Blobs, view: QueueView, message: Outgoing, payload: AsyncIterator[bytes]) -> Draft:
    head = bytearray()
    chunks = aiter(payload)
    async for chunk in chunks:
        head += chunk
        if len(head) > INLINE_LIMIT:
            break
    else:
        return inline_draft(view, message, bytes(head), env.now())
    entry = new_entry(message, None, 0, env.now())
    strict = view.policy.ordering_guarantee or message.group is not None
    lane = lane_name(message.group) if strict else ""
    name = SegmentName.make(
        env.ids,
        now=env.now(),
        due=entry.due,
        priority=0 if lane else message.priority,
        lane=lane,
        size=1,
        lifo=view.policy.ordering == "lifo",
        special=not lane and is_special(entry),
    )

    async def all_chunks() -> AsyncIterator[bytes]:
        entry.size, entry.checksum = len(head), zlib.crc32(head)
        yield bytes(head)
        head.clear()
        async for chunk in chunks:
            entry.size += len(chunk)
            entry.checksum = zlib.crc32(chunk, entry.checksum)
            if entry.size > view.policy.max_payload:
                raise _too_large(entry.size, view)
            yield chunk

    key = view.keys.blob(f"{name}-0")
    if env.fields is None:
        await blobs.put_stream(key, all_chunks())
    else:
        sealer = env.fields.sealer()
        await blobs.put_stream(key, env.fields.seal_stream(all_chunks(), sealer))
        entry.checksum = bind(sealer.binding, entry.checksum or 0)
    return Draft(entry, name)


def _too_large(size: int, view: QueueView) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the payload has {size} bytes or more, but queue {view.keys.queue!r} takes {view.policy.max_payload}; "
        "raise max_payload in its policy, or send a reference"
    )
