"""The event stream: one for each tab. It sends the parts of a page that have changed, and what charts have missed.

An event's id is the time of the newest sample it brought. A tab that comes back after a drop says the last id it saw
and gets the samples since then, and every part that is not as it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from brigade.errors import BrigadeError
from brigade.server.dashboard.pages import overview, queue, system, workers
from brigade.server.dashboard.visit import Visit
from brigade.server.dashboard.watch import Looker

__all__ = ["live"]

MOST_STREAMS = 200
QUIET = 15.0
"""Seconds after which a stream with nothing to say says so, for proxies."""

RETRY = 1000
COMMON = "parts/common.html"
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def live(visit: Visit) -> Response:
    desk = visit.desk
    if desk.streams >= MOST_STREAMS or desk.watch.closed:
        return PlainTextResponse("too many tabs look at this server", 503, {"Retry-After": "5"})
    view, name = visit.query("view"), visit.query("queue")
    if name:
        visit.visitor.need("read", name)
        await desk.service.queue(name)
    if view == "system":
        visit.visitor.need("read")
    last = visit.request.headers.get("last-event-id") or visit.query("last")
    since = int(last) if last.isascii() and last.isdigit() and len(last) < 16 else 0
    return StreamingResponse(_events(visit, view, name, since), media_type="text/event-stream", headers=HEADERS)


def _looked_at(visit: Visit, view: str, name: str) -> AbstractContextManager[Looker]:
    watch = visit.desk.watch
    if view in ("overview", "workers", "system"):
        return watch.look(everything=True)
    return watch.look(name or None if view == "queue" else None)


def _parts(visit: Visit, view: str, name: str) -> Callable[[], Awaitable[dict[str, str]]]:
    if view == "overview":
        return lambda: overview.parts(visit)
    if view == "queue":
        return lambda: queue.parts(visit, name)
    if view == "workers":
        return lambda: workers.parts(visit)
    if view == "system":
        return lambda: system.parts(visit)
    return _nothing


async def _nothing() -> dict[str, str]:
    return {}


async def _events(visit: Visit, view: str, name: str, since: int) -> AsyncIterator[bytes]:
    desk, watch = visit.desk, visit.desk.watch
    parts = _parts(visit, view, name)
    sent: dict[str, str] = {}
    names: list[str] = []
    seen = -1
    desk.streams += 1
    try:
        with _looked_at(visit, view, name):
            yield f"retry: {RETRY}\n\n".encode()
            while not watch.closed:
                seen = await watch.tick(seen, QUIET) if seen >= 0 else watch.ticks
                try:
                    made = await parts()
                except BrigadeError as error:
                    made = {}
                    watch.trouble = str(error)
                made["jobs"] = desk.render.part(COMMON, "jobs_part", desk.jobs.shown(visit.visitor), visit.token)
                made["trouble"] = desk.render.part(COMMON, "trouble_part", watch.trouble)
                changed = {id: html for id, html in made.items() if sent.get(id) != html}
                event: dict[str, Any] = {"parts": changed, "every": round(watch.interval, 1)}
                if view == "overview" and watch.names != names:
                    event["reload"] = bool(names)
                    names = watch.names
                if view == "queue":
                    event["series"] = watch.figures(name).series(since)
                    newest = watch.figures(name).last
                    since = newest.at if newest is not None else since
                else:
                    since = visit.now
                sent = made
                if changed or event.get("series") or event.get("reload"):
                    yield _event("tick", since, event)
                else:
                    yield b": quiet\n\n"
            yield _event("bye", since, {})
    finally:
        desk.streams -= 1


def _event(kind: str, id: int, value: Any) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (id, kind.encode(), msgspec.json.encode(value))
