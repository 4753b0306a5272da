"""Subscribe: messages as they come, one JSON object a line, never more at once than the consumer has credit for.

A consumer has `prefetch` credits. Each message takes one; it comes back when the message is settled through this
server or when its lease runs out, and the consumer may change how many it has. A consumer that goes away gives back
what was not sent; what was sent is its own until the lease runs out, and may be settled over any connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec
from starlette.types import Receive, Send

from brigade.checks import check_limit, seconds
from brigade.errors import BrigadeError, MessageNotFound, QueueNotFound
from brigade.names import check_owner
from brigade.server.answers import Answer
from brigade.server.call import Call, InvalidRequest, Stream, answer, failed, head_of, send_answer
from brigade.server.dequeueing import add_states, gone, wire_of
from brigade.server.dispatcher import Held
from brigade.server.service import Service
from brigade.server.subscriptions import Subscription
from brigade.stores.remote.faults import fault_of
from brigade.stores.remote.wire import NDJSON, Credit, Credited, Line, Subscribe

__all__ = ["credit", "subscribe", "subscribe_with_state"]

HEARTBEAT = 15.0
"""Seconds of silence after which a line says that the stream is still there."""


async def subscribe(service: Service, call: Call, wanted: Subscribe) -> Stream:
    """A stream of messages."""
    return await _subscribe(service, call, wanted, stateful=False)


async def subscribe_with_state(service: Service, call: Call, wanted: Subscribe) -> Stream:
    """A stream of messages, each with its workflow state."""
    return await _subscribe(service, call, wanted, stateful=True)


async def credit(service: Service, call: Call, wanted: Credit) -> Answer:
    """Let a stream send more, or, with fewer credits, less at once."""
    one = service.subscriptions.get(wanted.subscription)
    if one is None or one.queue.name != wanted.queue:
        raise MessageNotFound(f"subscription {wanted.subscription!r} is not open on this server; subscribe again")
    one.credits = _credits(service, wanted.prefetch)
    one.changed.set()
    return answer(Credited(prefetch=one.credits, unsettled=len(one.holds)))


def _credits(service: Service, prefetch: int) -> int:
    most = service.limits.most_messages
    if not 1 <= prefetch <= most:
        raise InvalidRequest(f"prefetch is {prefetch}; use 1 to {most}", "prefetch")
    return prefetch


async def _subscribe(service: Service, call: Call, wanted: Subscribe, *, stateful: bool) -> Stream:
    credits = _credits(service, wanted.prefetch)
    left = None if wanted.limit is None else check_limit(wanted.limit, 2**53)
    owner = call.client if wanted.owner is None else check_owner(wanted.owner)
    queue = await call.queue(wanted.queue)
    visibility = queue.policy.visibility_timeout
    if wanted.visibility is not None:
        visibility = seconds(wanted.visibility, "visibility", low=0.001)
    one = Subscription(service.ids.token(), queue, owner, visibility, credits, left, stateful)

    async def stream(receive: Receive, send: Send) -> None:
        try:
            with service.dispatcher.seat():
                await _run(service, call, one, receive, send)
        except BrigadeError as error:
            made = failed(error, call.correlation)
            await send_answer(send, made, service, call.correlation)

    return stream


async def _run(service: Service, call: Call, one: Subscription, receive: Receive, send: Send) -> None:
    made = Answer(200, b"", {"Content-Type": NDJSON, "X-Accel-Buffering": "no"})
    await send(head_of(made, service, call.correlation, sized=False))
    leaving = asyncio.ensure_future(gone(receive))
    service.subscriptions.add(one)
    try:
        await _line(send, Line(type="subscribed", subscription=one.id))
        end = await _pump(service, call, one, send, leaving)
        if not leaving.done():
            await _line(send, end)
            await send({"type": "http.response.body", "body": b""})
    finally:
        service.subscriptions.remove(one)
        leaving.cancel()


async def _pump(service: Service, call: Call, one: Subscription, send: Send, leaving: asyncio.Future[None]) -> Line:
    """Send what comes until the consumer leaves or has had all it wanted; says how it ended."""
    dispatcher = service.dispatcher
    while not leaving.done():
        if dispatcher.closing:
            return Line(type="end", reason="the server is shutting down; subscribe again elsewhere")
        if one.left == 0:
            return Line(type="end", reason="limit")
        one.changed.clear()
        room = one.room(service.hub.clock.now())
        if room <= 0:
            if not await _credited(service, one, leaving):
                await _line(send, Line(type="heartbeat"))
            continue
        work = dispatcher.take_seated(
            one.queue.name, limit=room, owner=one.owner, visibility=one.visibility, wait=HEARTBEAT
        )
        taking = asyncio.ensure_future(work)
        try:
            await asyncio.wait({taking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                break
            held = taking.result()
        except BrigadeError as error:
            if isinstance(error, QueueNotFound):
                service.forget(one.queue.name)
            return Line(type="error", error=fault_of(error)[1])
        finally:
            await _called_off(taking)
        try:
            await call.again(one.queue.name)
        except BrigadeError as error:
            dispatcher.give_back(one.queue.name, held)
            return Line(type="error", error=fault_of(error)[1])
        if held:
            await _send(service, one, send, held, leaving)
        elif not dispatcher.closing:
            await _line(send, Line(type="heartbeat"))
    return Line(type="end")


async def _called_off(taking: asyncio.Future[list[Held]]) -> None:
    """Leave the line, if it is still stood in: what comes meanwhile is given back by the dispatcher."""
    if not taking.done():
        taking.cancel()
        with contextlib.suppress(asyncio.CancelledError, BrigadeError):
            await taking


async def _credited(service: Service, one: Subscription, leaving: asyncio.Future[None]) -> bool:
    """Wait for credit: a settlement, a grant, or a lease that runs out. False where a heartbeat is due before that."""
    soonest = min(one.holds.values(), default=0)
    pause = max(0.01, min(HEARTBEAT, (soonest - service.hub.clock.now()) / 1000 + 0.01))
    waiting = asyncio.ensure_future(one.changed.wait())
    try:
        done, _ = await asyncio.wait({waiting, leaving}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return bool(done) or pause < HEARTBEAT


async def _send(
    service: Service, one: Subscription, send: Send, held: Sequence[Held], leaving: asyncio.Future[None]
) -> None:
    """Send messages. Those that were not sent before the consumer was seen to have left are given back."""
    sent = 0
    try:
        for item in held:
            if leaving.done():
                return
            made = wire_of(item, raw=False)
            if one.stateful:
                await add_states(service, [made])
            service.subscriptions.sent(one, [item])
            await _line(send, Line(type="message", message=made))
            await asyncio.sleep(0)
            if leaving.done():
                return
            sent += 1
            if one.left is not None:
                one.left -= 1
    finally:
        if sent < len(held):
            service.dispatcher.give_back(one.queue.name, held[sent:])
        if sent:
            one.queue.tell_claimed([item.message for item in held[:sent]], [item.grant for item in held[:sent]])


async def _line(send: Send, line: Line) -> None:
    await send({"type": "http.response.body", "body": msgspec.json.encode(line) + b"\n", "more_body": True})
