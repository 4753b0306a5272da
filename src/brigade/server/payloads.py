"""The bytes of a payload, as they are read. Where the store fails in the middle the answer breaks off."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from msgspec.structs import replace
from starlette.types import Receive, Send

from brigade.errors import BrigadeError, MessageNotFound
from brigade.model import Message, MessageInfo
from brigade.server.answers import Answer
from brigade.server.call import Call, Stream, check_ref, failed, head_of, send_answer
from brigade.server.service import Service
from brigade.stores.remote.wire import CORRELATION, Ref

__all__ = ["payload"]


async def payload(service: Service, call: Call, wanted: Ref) -> Stream:
    """A message's payload, of any size."""
    queue = await call.queue(wanted.queue)
    found = await queue.get(check_ref(wanted.ref))
    if found.finished_at_ms is not None and found.body is None:
        raise MessageNotFound(f"message {found.id!r} has ended; its payload is not kept")
    kind = found.content_type
    made = Answer(200, b"", {"Content-Type": kind if _plain(kind) else "application/octet-stream"})
    made.headers["Content-Length"] = str(found.size)
    made.headers["X-Content-Type-Options"] = "nosniff"
    if _plain(found.correlation_id):
        made.headers[CORRELATION] = found.correlation_id

    async def stream(_: Receive, send: Send) -> None:
        await _send(service, send, made, found, call.correlation)

    return stream


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


async def _send(service: Service, send: Send, made: Answer, found: MessageInfo, correlation: str) -> None:
    """The answer starts with the first chunk: an error before it is an error like any other."""
    head = head_of(made, service, correlation)
    started = False
    try:
        async with contextlib.aclosing(_chunks(service, found)) as chunks:
            async for chunk in chunks:
                if not started:
                    started = True
                    await send(head)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if not started:
            await send(head)
        await send({"type": "http.response.body", "body": b""})
    except BrigadeError as error:
        if started:
            raise
        broken = failed(error, correlation)
        await send_answer(send, broken, service, correlation)


async def _chunks(service: Service, found: MessageInfo) -> AsyncGenerator[bytes, None]:
    if found.body is not None:
        yield found.body
        return
    held = Message.held(queue=found.queue, id=found.id, ref=found.ref, token="")
    async for chunk in service.hub.store.open_payload(replace(held, size=found.size, checksum=found.checksum)):
        yield chunk
