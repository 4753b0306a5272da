"""Enqueue: JSON with one message or many, a body that is the payload itself, or frames with several streams."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from brigade.errors import QueueNotFound
from brigade.model import Receipt
from brigade.payload import NewMessage
from brigade.server.answers import Answer
from brigade.server.call import Call, InvalidRequest, answer, decode, failed
from brigade.server.frames import Frames
from brigade.server.multipart import Multipart, is_multipart
from brigade.server.service import Service
from brigade.stores.remote.wire import FRAMES, Enqueue, Enqueued, NewBody

__all__ = ["EnqueueQuery", "enqueue"]


class EnqueueQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters of an enqueue whose body is the payload."""

    queue: str
    priority: int = 5
    delay: float = 0.0
    id: str | None = None
    group: str | None = None
    ttl: float | None = None
    max_attempts: int | None = None
    attributes: str | None = None
    correlation_id: str | None = None
    create: bool = True


async def enqueue(service: Service, call: Call, _: None) -> Answer:
    """Add messages; the answer comes when they are durable."""
    if call.has_query:
        return await _body_is_payload(service, call)
    if call.content_type.partition(";")[0].strip().lower() == FRAMES:
        return await _framed(service, call)
    if is_multipart(call.content_type):
        return await _multipart(service, call)
    wanted = await call.json(Enqueue)
    call.permit(wanted.queue)
    messages = _messages(service, call, wanted, ())
    service.answers.check_retry(call.key, call.retry_of)

    async def work() -> Answer:
        try:
            receipts = await _enqueue(service, wanted.queue, messages, create=wanted.create)
        except Exception as error:
            return failed(error, call.correlation)
        return _answer(receipts, single=wanted.messages is None)

    return await service.answers.once(call.key, work)


async def _body_is_payload(service: Service, call: Call) -> Answer:
    given = call.query(EnqueueQuery)
    call.permit(given.queue)
    attributes = None if given.attributes is None else decode(given.attributes.encode(), dict[str, Any])
    message = NewMessage(
        payload=call.chunks(service.limits.most_stream),
        priority=given.priority,
        delay=given.delay,
        id=given.id,
        group=given.group,
        ttl=given.ttl,
        max_attempts=given.max_attempts,
        attributes=attributes,
        correlation_id=given.correlation_id or call.given_correlation,
        content_type=call.content_type or None,
    )
    queue = await service.queue(given.queue, create=given.create)
    (receipt,) = await queue.enqueue_all([message])
    if not given.delay:
        service.dispatcher.news(given.queue)
    return _answer([receipt], single=True)


async def _framed(service: Service, call: Call) -> Answer:
    frames = Frames(call.chunks(service.limits.most_stream))
    head = await frames.piece(service.limits.most_body)
    wanted = decode(head, Enqueue)
    call.permit(wanted.queue)
    count = sum(one.streamed for one in wanted.messages or [wanted])
    messages = _messages(service, call, wanted, [frames.payload(number) for number in range(count)])
    receipts = await _enqueue(service, wanted.queue, messages, create=False)
    return _answer(receipts, single=wanted.messages is None)


async def _multipart(service: Service, call: Call) -> Answer:
    """A part with JSON, then a part for each payload, of any size: the one message's, or those that are `streamed`."""
    parts = Multipart(call.content_type, call.chunks(service.limits.most_stream))
    if await parts.next() is None:
        raise InvalidRequest("the multipart body has no parts; send the message as JSON, then its payload", "body")
    head = bytearray()
    async for chunk in parts.body():
        head += chunk
        if len(head) > service.limits.most_body:
            raise InvalidRequest(f"the first part has more than {service.limits.most_body} bytes of JSON", "body")
    wanted = decode(bytes(head), Enqueue)
    call.permit(wanted.queue)
    if wanted.messages is None:
        wanted.streamed = True
    streamed = [one for one in wanted.messages or [wanted] if one.streamed]
    if len(streamed) > 1:
        raise InvalidRequest("messages has several streamed payloads; send one in a request, the others inline", "body")
    stream = _payload(parts, streamed[0]) if streamed else None
    if stream is not None:
        await _typed(parts, streamed[0])
    messages = _messages(service, call, wanted, [] if stream is None else [stream])
    receipts = await _enqueue(service, wanted.queue, messages, create=wanted.create)
    return _answer(receipts, single=wanted.messages is None)


async def _typed(parts: Multipart, body: NewBody) -> None:
    """Go on to the part with a payload; its content type is the message's, where that has none of its own."""
    headers = await parts.next()
    if headers is None:
        raise InvalidRequest("the multipart body ends before the payload; send a part for it", "body")
    if body.content_type is None:
        body.content_type = headers.get("content-type", "application/octet-stream")


async def _payload(parts: Multipart, body: NewBody) -> AsyncIterator[bytes]:
    async for chunk in parts.body():
        yield chunk
    if await parts.next() is not None:
        raise InvalidRequest("the multipart body has more parts than payloads; send one for each", "body")


async def _enqueue(service: Service, name: str, messages: list[NewMessage], *, create: bool) -> list[Receipt]:
    try:
        receipts = await (await service.queue(name, create=create)).enqueue_all(messages)
    except QueueNotFound:
        service.forget(name)
        if not create or any(isinstance(message.payload, AsyncIterator) for message in messages):
            raise
        receipts = await (await service.queue(name, create=True)).enqueue_all(messages)
    if any(not message.delay for message in messages):
        service.dispatcher.news(name)
    return receipts


def _answer(receipts: list[Receipt], *, single: bool) -> Answer:
    if single:
        return answer(receipts[0], correlation=receipts[0].correlation_id)
    return answer(Enqueued(receipts))


def _messages(
    service: Service, call: Call, wanted: Enqueue, streams: Sequence[AsyncIterator[bytes]]
) -> list[NewMessage]:
    bodies: Sequence[NewBody] = [wanted] if wanted.messages is None else wanted.messages
    if not 1 <= len(bodies) <= service.limits.most_messages:
        raise InvalidRequest(
            f"messages has {len(bodies)} messages; send 1 to {service.limits.most_messages} at a time", "messages"
        )
    left = iter(streams)
    return [_message(body, call.given_correlation, left) for body in bodies]


def _message(body: NewBody, correlation: str | None, streams: Any) -> NewMessage:
    given = [body.payload is not UNSET, body.payload_base64 is not None, body.streamed]
    if sum(given) != 1:
        raise InvalidRequest("payload is missing or given twice; use either payload or payload_base64", "payload")
    payload: Any = body.payload if given[0] else body.payload_base64
    if body.streamed:
        payload = next(streams, None)
        if payload is None:
            raise InvalidRequest("streamed needs a body of frames; use payload or payload_base64", "streamed")
    return NewMessage(
        payload=payload,
        priority=body.priority,
        delay=body.delay,
        id=body.id,
        group=body.group,
        ttl=body.ttl,
        max_attempts=body.max_attempts,
        attributes=body.attributes,
        correlation_id=body.correlation_id or correlation,
        content_type=body.content_type,
    )
