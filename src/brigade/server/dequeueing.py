"""Dequeue: a consumer's turn in line, delivered so that an answer which nobody gets is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Send

from brigade.checks import check_limit, seconds
from brigade.crypto.places import crc_of
from brigade.errors import ConfigError, QueueNotFound
from brigade.inline import Begun
from brigade.model import JSON_TYPE, Message
from brigade.names import check_owner
from brigade.queue import AsyncQueue
from brigade.server.answers import Answer
from brigade.server.call import (
    Call,
    InvalidRequest,
    Stream,
    answer,
    failed,
    fault_for,
    head_of,
    send_answer,
)
from brigade.server.dispatcher import Held
from brigade.server.service import Service
from brigade.server.settling import acking
from brigade.stores.remote.wire import Abandon, Delivered, Dequeue, Dequeued, Load, Loaded, Settled, Wait

__all__ = ["abandon", "add_states", "deliver", "dequeue", "dequeue_with_state", "gone", "load", "wait", "wire_of"]

SENT_AT_ONCE = 16 * 1024
"""Bytes of an answer that a connection takes without waiting for its client."""

WATCHED_AFTER = 0.02
"""Seconds after which it is watched whether a client that waits is still there."""


async def dequeue(service: Service, call: Call, wanted: Dequeue) -> Stream:
    """Messages, after waiting for them if need be."""
    return await _dequeue(service, call, wanted, stateful=False)


async def dequeue_with_state(service: Service, call: Call, wanted: Dequeue) -> Stream:
    """Messages, each with its workflow state."""
    return await _dequeue(service, call, wanted, stateful=True)


async def _dequeue(service: Service, call: Call, wanted: Dequeue, *, stateful: bool) -> Stream:
    """Check what is asked for before anybody waits."""
    limits = service.limits
    limit = check_limit(wanted.limit, limits.most_messages)
    patience = seconds(wanted.wait, "wait")
    if patience > limits.most_wait:
        raise InvalidRequest(f"wait is {patience:g}; use up to {limits.most_wait:g} seconds and ask again", "wait")
    owner = call.client if wanted.owner is None else check_owner(wanted.owner)
    queue = await call.queue(wanted.queue)
    visibility = queue.policy.visibility_timeout
    if wanted.visibility is not None:
        visibility = seconds(wanted.visibility, "visibility", low=0.001)
    ack_first = None if wanted.ack is None else acking(service, call, queue.name, wanted.ack)
    settled = None
    if ack_first is not None and call.key is None:  # Not to be repeated, nor called off: it needs no task of its own.
        settled, ack_first = await ack_first(), None

    async def work() -> Answer:
        acked = settled
        try:
            if ack_first is not None:
                acked = await asyncio.shield(ack_first())
            held = await service.dispatcher.take(
                queue.name,
                limit=limit,
                owner=owner,
                visibility=visibility,
                wait=patience,
                alone=service.requests == 1,
            )
        except Exception as error:
            if isinstance(error, QueueNotFound):
                service.forget(queue.name)
            return _failed(error, acked, call.correlation)
        try:
            if held and patience:
                await call.again(queue.name)
            return await _made(service, queue, held, acked, raw=wanted.raw, stateful=stateful)
        except BaseException as error:
            service.dispatcher.give_back(queue.name, held)
            if not isinstance(error, Exception):
                raise
            return _failed(error, acked, call.correlation)

    async def stream(receive: Receive, send: Send) -> None:
        await deliver(service, call, receive, send, work)

    return stream


def _failed(error: Exception, acked: Settled | None, correlation: str) -> Answer:
    """An error as an answer. Where a message was acked before, that has to be told besides."""
    if acked is None:
        return failed(error, correlation)
    return answer(Dequeued(messages=[], acked=acked, error=fault_for(error, correlation)[1]))


async def _made(
    service: Service, queue: AsyncQueue, held: Sequence[Held], acked: Settled | None, *, raw: bool, stateful: bool
) -> Answer:
    messages = [one.message for one in held]
    delivered = [wire_of(one, raw=raw) for one in held]
    if stateful:
        await add_states(service, delivered)
    paused = not held and await service.hub.store.paused(queue.name)
    told = service.failures(queue.name) if raw else []
    made = answer(
        Dequeued(messages=delivered, paused=paused, failed=told, acked=acked),
        correlation=messages[0].correlation_id if len(messages) == 1 else None,
    )
    queue.tell_claimed(messages, [one.grant for one in held])
    if held:
        dispatcher = service.dispatcher
        made.undo = lambda: dispatcher.background(dispatcher.release(queue.name, held))
    return made


async def add_states(service: Service, delivered: Sequence[Delivered]) -> None:
    """Put its workflow state beside each message."""
    for one in delivered:
        found = await service.hub.store.load_state(one.queue, one.ref)
        one.state, one.state_etag = (msgspec.Raw(found[0]), found[1]) if found else (None, None)


async def deliver(
    service: Service, call: Call, receive: Receive, send: Send, work: Callable[[], Coroutine[Any, Any, Answer]]
) -> None:
    """Send what the work comes to, or take it back where the client is gone. A client that leaves calls it off."""
    if call.key is None:
        await _deliver_once(service, call, receive, send, work)
        return
    kept = service.answers.attach(call.key, work)
    leaving = asyncio.ensure_future(gone(receive))
    received = False
    try:
        await asyncio.wait({kept.task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not leaving.done() and not kept.task.cancelled():
            received = await _hand_over(service, call, send, kept.task.result(), leaving.done)
    finally:
        leaving.cancel()
        if not received:
            service.answers.detach(kept)


async def _deliver_once(
    service: Service, call: Call, receive: Receive, send: Send, work: Callable[[], Coroutine[Any, Any, Answer]]
) -> None:
    """`deliver`, of what nobody can ask for again: it needs no task of its own."""
    made: Answer | None = None
    received = False
    watch = _Watch(receive)
    try:
        made = await work()
        watch.end()
        received = await _hand_over(service, call, send, made, watch.has_left)
    except asyncio.CancelledError:
        if not watch.called_off():
            raise
    finally:
        watch.end()
        if made is not None and not received:
            made.take_back()


class _Watch:
    """Cancels the task that makes it where the client leaves. Most are answered before that could be seen."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task = asyncio.current_task()
        self._left = False
        self._leaving: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCHED_AFTER, self._begin)

    def _begin(self) -> None:
        self._leaving = asyncio.ensure_future(gone(self._receive))
        self._leaving.add_done_callback(self._ended)

    def _ended(self, leaving: asyncio.Task[None]) -> None:
        if not leaving.cancelled() and self._task is not None:
            self._left = True
            self._task.cancel()

    def end(self) -> None:
        self._timer.cancel()
        if self._leaving is not None:
            self._leaving.cancel()

    def has_left(self) -> bool:
        """Whether the client is known to have gone away."""
        if self._left:
            return True
        looking = Begun(gone(self._receive))
        looking.close()
        return looking.ended

    def called_off(self) -> bool:
        """Whether it was the client's leaving that cancelled the task, which may go on then."""
        if self._left and self._task is not None:
            self._task.uncancel()
        return self._left


async def _hand_over(service: Service, call: Call, send: Send, made: Answer, left: Callable[[], bool]) -> bool:
    """Its end is held back until the connection is seen to stand: without it the client has nothing.

    What is sent at once is held back as a whole; of what isn't, the last byte.
    """
    head, end = head_of(made, service, call.correlation), made.body
    if len(end) > SENT_AT_ONCE:
        await send(head)
        await send({"type": "http.response.body", "body": end[:-1], "more_body": True})
        head, end = None, end[-1:]
    await asyncio.sleep(0)
    if left():
        return False
    if head is not None:
        await send(head)
    await send({"type": "http.response.body", "body": end})
    return True


async def gone(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def wire_of(held: Held, *, raw: bool) -> Delivered:
    """A claimed message with its payload, as another language or as our own client reads it."""
    message = held.message
    made = to_wire(message)
    if raw:
        made.grant = held.grant
        made.payload_base64 = message.body
    elif message.body is not None:
        _show(made, message.body)
    return made


def to_wire(message: Message) -> Delivered:
    """A claimed message without its payload."""
    return Delivered(
        id=message.id,
        queue=message.queue,
        ref=message.ref,
        content_type=message.content_type,
        size=message.size,
        priority=message.priority,
        attempt=message.attempt,
        max_attempts=message.max_attempts,
        correlation_id=message.correlation_id,
        enqueued_at_ms=message.enqueued_at_ms,
        claimed_at_ms=message.claimed_at_ms,
        lease=message.lease,
        attributes=dict(message.attributes),
        group=message.group,
        checksum=crc_of(message.checksum),
        failure=message.failure,
    )


def _show(made: Delivered, body: bytes) -> None:
    """JSON as JSON and text as text, where they are what they say; everything else as base64."""
    try:
        if made.content_type == JSON_TYPE:
            msgspec.json.decode(body)
            made.payload = msgspec.Raw(body)
            return
        if made.content_type.startswith("text/"):
            made.payload = body.decode()
            return
    except (ValueError, RecursionError):
        pass
    made.payload_base64 = body


async def abandon(service: Service, call: Call, wanted: Abandon) -> Answer:
    """Give back what a claim of any kind under this key has won, or call it off."""
    folder = call.route.path.removesuffix("abandon")
    keys = [call.key_of(folder + name, wanted.key) for name in ("dequeue", "dequeueWithState", "claimThese", "lease")]
    return answer({"abandoned": any(service.answers.abandon(key) for key in keys)})


async def load(service: Service, call: Call, wanted: Load) -> Answer:
    """The messages of grants that another process won."""
    most = service.limits.most_messages
    if len(wanted.grants) > most or sum(map(len, wanted.grants)) > most:
        raise InvalidRequest(f"grants has more than {most} messages; send fewer at a time", "grants")
    for queue in {grant.queue for grant in wanted.grants}:
        await call.queue(queue)
    try:
        messages = await service.hub.store.load(wanted.grants)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        if isinstance(error, ConfigError | QueueNotFound):
            raise
        raise InvalidRequest("grants holds what no claim gives; send grants as they were won", "grants") from None
    made = [to_wire(message) for message in messages]
    for message, one in zip(messages, made, strict=True):
        one.payload_base64 = message.body
    return answer(Loaded(made))


async def wait(service: Service, call: Call, wanted: Wait) -> Stream:
    """Return when there may be something to claim. Whoever waits here counts as a consumer."""
    queue = await call.queue(wanted.queue)
    longest = min(seconds(wanted.seconds, "seconds"), service.limits.most_wait)

    async def stream(receive: Receive, send: Send) -> None:
        try:
            with service.dispatcher.seat():
                waiting = asyncio.ensure_future(service.hub.store.wait(queue.name, longest))
                leaving = asyncio.ensure_future(gone(receive))
                try:
                    await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    if not waiting.done():
                        return
                    waiting.result()
                finally:
                    waiting.cancel()
                    leaving.cancel()
                    await asyncio.gather(waiting, leaving, return_exceptions=True)
            made = answer({})
        except Exception as error:
            made = failed(error, call.correlation)
        await send_answer(send, made, service, call.correlation)

    return stream
