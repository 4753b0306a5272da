"""The server and its store: the doctor's report, requests, conflicts, sweeps, and the configuration without secrets."""

from __future__ import annotations

import asyncio
import platform
from typing import Any

from starlette.responses import Response

from brigade._version import __version__
from brigade.doctor import examine
from brigade.errors import BrigadeError
from brigade.server.dashboard.desk import Desk, Examination
from brigade.server.dashboard.visit import Visit
from brigade.stores.opening import open_store
from brigade.stores.operating import OperatedStore

__all__ = ["doctor", "parts", "system"]

TEMPLATE = "system.html"
PARTS = "parts/system.html"
LIMITS = {
    "most_messages": "messages a request",
    "most_listed": "messages a listing",
    "most_wait": "longest wait, seconds",
    "most_body": "bytes of JSON",
    "most_stream": "bytes of a payload",
    "most_consumers": "consumers that wait",
}


def _upkeep(visit: Visit) -> dict[str, Any]:
    store = visit.desk.hub.store
    upkeep = store.upkeep() if isinstance(store, OperatedStore) else None
    swept = sorted(upkeep.swept.items(), key=lambda one: -one[1]) if upkeep else []
    return {
        "conflicts": upkeep.conflicts if upkeep else None,
        "swept": [(name, ago) for name, ago in swept if visit.visitor.may("read", name)][:20],
        "requests": sorted(visit.desk.hub.requests().items(), key=lambda one: -one[1]),
        "spending": visit.desk.watch.spending(),
        "watch": visit.desk.watch,
        "consumers": visit.desk.service.dispatcher.consumers,
        "streams": visit.desk.streams,
    }


async def system(visit: Visit) -> Response:
    visit.visitor.need("read")
    await visit.desk.watch.glimpse()
    desk = visit.desk
    limits = desk.service.limits
    settings: list[tuple[str, str]] = [
        ("store", desk.shown_url),
        *((f"option {name}", value) for name, value in desk.options().items()),
        ("server", desk.service.name),
        ("version", __version__),
        ("python", platform.python_version()),
        *((LIMITS.get(name, name), f"{getattr(limits, name):,}") for name in limits.__slots__),
        ("authentication", "tokens" if desk.access.required else "none"),
        ("redaction of payloads", "on" if desk.redaction else "off"),
    ]
    return visit.page(
        TEMPLATE,
        upkeep=_upkeep(visit),
        examination=desk.examination,
        settings=settings,
        names=[name for name in desk.watch.names if visit.visitor.may("admin", name)][:200],
        started=desk.started_ms,
    )


async def parts(visit: Visit) -> dict[str, str]:
    render, now = visit.desk.render, visit.now
    return {
        "upkeep": render.part(PARTS, "upkeep_part", _upkeep(visit)),
        "doctor": render.part(PARTS, "doctor_part", visit.desk.examination, now),
    }


async def doctor(visit: Visit) -> Response:
    """Examine the store. It writes under names of its own and takes them away again."""
    visit.visitor.need("admin")
    await visit.form()
    desk = visit.desk
    running = desk.examination is not None and desk.examination.report is None and desk.examination.error is None
    if not running:
        desk.examination = Examination()
        desk.hub.background(_examine(desk, desk.examination))
    return visit.back("/system", "doctor")


async def _examine(desk: Desk, examination: Examination) -> None:
    url, options = desk.hub.address

    def tell(step: str, number: int, of: int) -> None:
        examination.step, examination.number, examination.of = step, number, of
        desk.watch.tell()

    try:
        examination.report = await examine(lambda: open_store(url, dict(options)), quick=True, tell=tell)
    except (BrigadeError, asyncio.CancelledError) as error:
        examination.error = str(error) or "it was stopped"
    finally:
        examination.at_ms = desk.hub.clock.now()
        desk.watch.tell()
