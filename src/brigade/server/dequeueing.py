"""Dequeue: a consumer's turn in line, delivered so that an answer which nobody gets is taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from brigade.checks import check_limit, seconds
from brigade.errors import ConfigError, QueueNotFound
from brigade.model import JSON_TYPE, Message
from brigade.names import check_owner
from brigade.queue import AsyncQueue
from brigade.server.answers import Answer
from brigade.server.call import Call, InvalidRequest, answer, failed, headers_of, send_answer, start_of
from brigade.server.dispatcher import Held
from brigade.server.service import Service
from brigade.stores.remote.wire import Abandon, Delivered, Dequeue, Dequeued, Load, Loaded, Wait

__all__ = ["DequeueEndpoint", "abandon", "load", "wait"]


class DequeueEndpoint:
    """Waits while the client does. Where the client goes away, its messages go to the next consumer."""

    def __init__(self, service: Service, *, stateful: bool) -> None:
        self._service = service
        self._stateful = stateful

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, correlation = self._service, ""
        try:
            call = Call(Request(scope, receive), service)
            correlation = call.correlation
            wanted = await call.json(Dequeue)
            work = await self._work(call, wanted)
        except ClientDisconnect:
            return
        except Exception as error:
            made = failed(error, correlation)
            await send_answer(send, made, headers_of(made, service, correlation))
            return
        await self._deliver(receive, send, correlation, call.key, work)

    async def _work(self, call: Call, wanted: Dequeue) -> Callable[[], Awaitable[Answer]]:
        """Check what is asked for before anybody waits."""
        service, limits = self._service, self._service.limits
        limit = check_limit(wanted.limit, limits.most_messages)
        patience = seconds(wanted.wait, "wait")
        if patience > limits.most_wait:
            raise InvalidRequest(f"wait is {patience:g}; use up to {limits.most_wait:g} seconds and ask again", "wait")
        owner = call.client if wanted.owner is None else check_owner(wanted.owner)
        queue = await service.queue(wanted.queue)
        visibility = queue.policy.visibility_timeout
        if wanted.visibility is not None:
            visibility = seconds(wanted.visibility, "visibility", low=0.001)

        async def work() -> Answer:
            try:
                held = await service.dispatcher.take(
                    queue.name, limit=limit, owner=owner, visibility=visibility, wait=patience
                )
            except QueueNotFound as error:
                service.forget(queue.name)
                return failed(error, call.correlation)
            except Exception as error:
                return failed(error, call.correlation)
            try:
                return await self._made(queue, held, raw=wanted.raw)
            except BaseException as error:
                service.dispatcher.give_back(queue.name, held)
                if not isinstance(error, Exception):
                    raise
                return failed(error, call.correlation)

        return work

    async def _made(self, queue: AsyncQueue, held: Sequence[Held], *, raw: bool) -> Answer:
        service = self._service
        messages = [one.message for one in held]
        delivered = [_delivered(one, raw=raw) for one in held]
        if self._stateful:
            for message, one in zip(messages, delivered, strict=True):
                found = await service.hub.store.load_state(queue.name, message.ref)
                one.state, one.state_etag = (msgspec.Raw(found[0]), found[1]) if found else (None, None)
        paused = not held and await service.hub.store.paused(queue.name)
        told = service.failures(queue.name) if raw else []
        made = answer(
            Dequeued(messages=delivered, paused=paused, failed=told),
            correlation=messages[0].correlation_id if len(messages) == 1 else None,
        )
        queue.tell_claimed(messages, [one.grant for one in held if one.grant is not None])
        if held:
            dispatcher = service.dispatcher
            made.undo = lambda: dispatcher.background(dispatcher.release(queue.name, held))
        return made

    async def _deliver(
        self, receive: Receive, send: Send, correlation: str, key: str | None, work: Callable[[], Awaitable[Answer]]
    ) -> None:
        """The last byte is held back until the connection is seen to stand: without it the client has nothing."""
        answers = self._service.answers
        kept = answers.attach(key, work)
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({kept.task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() or kept.task.cancelled():
                answers.detach(kept)
                return
            made = kept.task.result()
            await send(start_of(made, headers_of(made, self._service, correlation)))
            await send({"type": "http.response.body", "body": made.body[:-1], "more_body": True})
            await asyncio.sleep(0)
            if gone.done():
                answers.detach(kept)
                return
            await send({"type": "http.response.body", "body": made.body[-1:]})
        except asyncio.CancelledError:
            answers.detach(kept)
            raise
        finally:
            gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _delivered(held: Held, *, raw: bool) -> Delivered:
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
        checksum=message.checksum,
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


async def abandon(service: Service, call: Call) -> Answer:
    """Give back what a dequeue under this key has won, or call it off."""
    wanted = await call.json(Abandon)
    return answer({"abandoned": service.answers.abandon(wanted.key)})


async def load(service: Service, call: Call) -> Answer:
    """The messages of grants that another process won."""
    wanted = await call.json(Load)
    if len(wanted.grants) > service.limits.most_messages:
        raise InvalidRequest(
            f"grants has {len(wanted.grants)} grants; send up to {service.limits.most_messages}", "grants"
        )
    for queue in {grant.queue for grant in wanted.grants}:
        await service.queue(queue)
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


async def wait(service: Service, call: Call) -> Answer:
    """Return when there may be something to claim."""
    wanted = await call.json(Wait)
    queue = await service.queue(wanted.queue)
    await service.hub.store.wait(queue.name, min(seconds(wanted.seconds, "seconds"), service.limits.most_wait))
    return answer({})
