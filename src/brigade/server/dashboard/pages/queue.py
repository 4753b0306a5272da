"""One queue: live figures and charts, its policy and groups; pause, resume, purge and sweep."""

from __future__ import annotations

from typing import Any, cast

from starlette.responses import Response

from brigade.policy import encode_policy
from brigade.server.dashboard.confirm import confirm
from brigade.server.dashboard.render import age, size
from brigade.server.dashboard.visit import Visit, queue_path

__all__ = ["parts", "pause", "purge", "queue", "resume", "sweep"]

TEMPLATE = "queue.html"
PARTS = "parts/queue.html"


async def queue(visit: Visit) -> Response:
    found, operator = await visit.operator()
    watch = visit.desk.watch
    await watch.glimpse(found.name)
    return visit.page(
        TEMPLATE,
        queue=found,
        figures=watch.figures(found.name),
        policy=_policy(encode_policy(found.policy)),
        groups=await operator.groups(50),
    )


_SECONDS = {"visibility_timeout", "execution_timeout", "ttl", "retention", "backoff.base", "backoff.maximum"}
_BYTES = {"max_payload", "segment_bytes"}


def _policy(policy: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Names and values for people."""
    rows: list[tuple[str, str]] = []
    for name, value in policy.items():
        full = f"{prefix}{name}"
        if isinstance(value, dict):
            rows += _policy(cast("dict[str, Any]", value), f"{name}.")
        elif value is None:
            rows.append((full, "–"))
        elif full in _SECONDS:
            rows.append((full, age(float(value)) if value else "0 s"))
        elif full in _BYTES:
            rows.append((full, size(value)))
        else:
            rows.append((full, str(value).lower() if isinstance(value, bool) else str(value)))
    return rows


async def parts(visit: Visit, name: str) -> dict[str, str]:
    watch = visit.desk.watch
    figures = watch.figures(name)
    return {"figures": visit.desk.render.part(PARTS, "figures_part", name, figures, figures.rates(), watch)}


async def pause(visit: Visit) -> Response:
    found = await visit.queue("admin")
    await visit.form()
    await found.pause()
    visit.desk.watch.hurry(found.name)
    return visit.back(queue_path(found.name), "paused")


async def resume(visit: Visit) -> Response:
    found = await visit.queue("admin")
    await visit.form()
    await found.resume()
    visit.desk.service.dispatcher.news(found.name)
    visit.desk.watch.hurry(found.name)
    return visit.back(queue_path(found.name), "resumed")


async def purge(visit: Visit) -> Response:
    found = await visit.queue("admin")
    form = await visit.form()
    failed_only = form.get("failed_only") == "yes"
    stats = await found.stats()
    number = stats.failed if failed_only else stats.ready + stats.delayed + stats.failed
    what = "failed messages" if failed_only else "messages that wait or have failed"
    asked = confirm(
        visit,
        form,
        title=f"Purge {found.name}?",
        text=f"This drops {number:,} {what}. What is in flight stays. It cannot be undone.",
        button="Purge",
        cancel=queue_path(found.name),
    )
    if asked is not None:
        return asked
    dropped = await found.purge(failed_only=failed_only)
    visit.desk.watch.hurry(found.name)
    return visit.back(queue_path(found.name), "purged", dropped)


async def sweep(visit: Visit) -> Response:
    found = await visit.queue("admin")
    await visit.form()
    done = await found.sweep()
    visit.desk.watch.hurry(found.name)
    return visit.back("/system", "swept", sum(done.values()))
