"""Watch: what happens to messages, as server-sent events.

A server tells of what goes through it. Each event has an id; a browser that reconnects sends the last one it has seen
and gets what it missed, as long as this server remembers it. Where it doesn't, an event called `reset` says so. How the
queue stands, counted in the store, comes as `stats`: at first, and whenever it has changed.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import Receive, Send

from brigade.errors import BrigadeError
from brigade.events import EVENT_NAMES
from brigade.model import Stats
from brigade.queue import AsyncQueue
from brigade.server.answers import Answer
from brigade.server.call import Call, InvalidRequest, Stream, failed, head_of, send_answer
from brigade.server.dequeueing import gone
from brigade.server.feed import STATS_EVERY, Reader
from brigade.server.service import Service
from brigade.stores.remote.wire import EVENTS, Watch

__all__ = ["watch"]


async def watch(service: Service, call: Call, wanted: Watch) -> Stream:
    """Events of one queue, from now on or from the last one seen."""
    queue = await call.queue(wanted.queue)
    names = _names(wanted.events)
    last = call.header("last-event-id") or wanted.last_event_id

    async def stream(receive: Receive, send: Send) -> None:
        try:
            with service.dispatcher.seat():
                await _run(service, call, queue, names, last, receive, send)
        except BrigadeError as error:
            made = failed(error, call.correlation)
            await send_answer(send, made, service, call.correlation)

    return stream


def _names(events: str | None) -> frozenset[str]:
    names = frozenset(EVENT_NAMES | {"stats"}) if events is None else frozenset(filter(None, events.split(",")))
    if unknown := sorted(names - EVENT_NAMES - {"stats"}):
        known = ", ".join(sorted(EVENT_NAMES | {"stats"}))
        raise InvalidRequest(f"events names {unknown[0][:100]!r}, which is none; use some of {known}", "events")
    return names


async def _run(
    service: Service,
    call: Call,
    queue: AsyncQueue,
    names: frozenset[str],
    last: str | None,
    receive: Receive,
    send: Send,
) -> None:
    made = Answer(200, b"", {"Content-Type": EVENTS, "X-Accel-Buffering": "no"})
    await send(head_of(made, service, call.correlation, sized=False))
    leaving = asyncio.ensure_future(gone(receive))
    reader = Reader(queue.name, names)
    service.feed.join(reader, last)
    counting = asyncio.ensure_future(_count(service, queue, reader)) if "stats" in names else None
    try:
        await _send(send, b"retry: 2000\n\n")
        while not leaving.done() and not service.dispatcher.closing:
            await reader.ready(leaving)
            try:
                await call.again(queue.name)
            except BrigadeError:
                break
            await _send(send, reader.take() or b": still here\n\n")
        if not leaving.done():
            await send({"type": "http.response.body", "body": b""})
    finally:
        service.feed.leave(reader)
        leaving.cancel()
        if counting is not None:
            counting.cancel()


async def _count(service: Service, queue: AsyncQueue, reader: Reader) -> None:
    """Tell how the queue stands whenever it stands otherwise."""
    before: Stats | None = None
    while not service.dispatcher.closing:
        with contextlib.suppress(BrigadeError):
            stats = await service.feed.stats(queue, service.hub.clock)
            if stats != before:
                before = stats
                reader.put(None, "stats", stats)
        await asyncio.sleep(STATS_EVERY)


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})
