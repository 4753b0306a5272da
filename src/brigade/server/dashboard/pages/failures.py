"""Messages that failed for good, parked or in a dead-letter queue: by error, and their way back."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from starlette.responses import Response

from brigade.errors import ConfigError, QueueNotFound
from brigade.model import FailureInfo, Stats
from brigade.operator import Operator
from brigade.queue import AsyncQueue
from brigade.server.dashboard.confirm import confirm
from brigade.server.dashboard.pages.messages import shown_payload
from brigade.server.dashboard.visit import Visit, queue_path

__all__ = ["delete", "failures", "of_queue", "redrive", "stop_job"]

LOOKED_AT = 1000
SHOWN = 200
CHUNK = 100
_VARYING = re.compile(r"0x[0-9a-fA-F]+|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9]+|'[^']{0,200}'|\"[^\"]{0,200}\"")


@dataclass(frozen=True, slots=True)
class Row:
    """A failure: where it lies, and why it came there."""

    id: str
    queue: str
    letter: bool
    failure: FailureInfo
    error: str
    payload: str
    kind: str


@dataclass(frozen=True, slots=True)
class Group:
    """Failures whose errors differ only in numbers, ids and quoted words."""

    kind: str
    count: int
    newest: int
    example: str


def kind_of(error: str) -> str:
    """An error without what differs from message to message."""
    return _VARYING.sub("…", error.strip().splitlines()[0] if error.strip() else "")[:160]


async def failures(visit: Visit) -> Response:
    """Which queues have failures."""
    watch = visit.desk.watch
    await watch.glimpse()
    rows: list[tuple[str, Stats]] = []
    for name in watch.names:
        stats = watch.figures(name).stats
        if stats is not None and (stats.failed or stats.dead_lettered) and visit.visitor.may("read", name):
            rows.append((name, stats))
    rows.sort(key=lambda row: (-row[1].failed, -row[1].dead_lettered, row[0]))
    return visit.page("failures.html", rows=rows)


async def of_queue(visit: Visit) -> Response:
    queue, _ = await visit.operator()
    rows, more = await _rows(visit, queue)
    wanted = visit.query("kind")
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.kind, []).append(row)
    shown = [row for row in rows if not wanted or row.kind == wanted]
    return visit.page(
        "queue_failures.html",
        queue=queue,
        groups=sorted(
            (
                Group(kind, len(members), max(one.failure.failed_at_ms for one in members), members[0].error)
                for kind, members in groups.items()
            ),
            key=lambda group: -group.count,
        ),
        rows=shown[:SHOWN],
        total=len(rows),
        matching=len(shown),
        more=more,
        wanted=wanted,
        letters=queue.policy.failure.dead_letter_queue,
        looked_at=LOOKED_AT,
    )


async def _rows(visit: Visit, queue: AsyncQueue) -> tuple[list[Row], bool]:
    """Failures of a queue, newest first: parked ones, its dead letters, and dead letters that lie in it."""
    redact = visit.desk.redaction

    def row(message: object, id: str, letter: bool, failure: FailureInfo) -> Row:
        error = str(redact(failure.error or failure.reason, queue=failure.queue, kind="error"))
        return Row(id, queue.name, letter, failure, error, shown_payload(visit, failure.queue, message), kind_of(error))

    parked = await queue.failed(LOOKED_AT)
    rows = [row(one, one.id, False, one.failure) for one in parked]
    more = len(parked) == LOOKED_AT
    letters = queue.policy.failure.dead_letter_queue
    for name, origin in ((letters, queue.name), (queue.name, None)):
        if name is None:
            continue
        try:
            place = queue if name == queue.name else await visit.desk.service.queue(name)
        except QueueNotFound:
            continue

        page = await Operator(place).browse(
            match=lambda info, origin=origin: info.failure is not None and origin in (None, info.failure.queue),
            limit=LOOKED_AT,
            look_at=LOOKED_AT if origin is None else 5 * LOOKED_AT,
        )
        rows += [row(one, one.id, True, one.failure) for one in page.messages if one.failure is not None]
        more = more or page.after is not None
    rows.sort(key=lambda one: (-one.failure.failed_at_ms, one.id))
    return rows, more


async def redrive(visit: Visit) -> Response:
    """Bring back what was chosen, all of one kind of error, or everything; a job that can be watched."""
    queue, _ = await visit.operator("admin")
    form = await visit.form()
    kind, scope = form.get("kind"), form.get("scope", "chosen")
    here = queue_path(queue.name, "failures", kind=kind)
    ids: list[str] | None = form.all("id")
    total = len(ids)
    if scope == "kind":
        ids = [row.id for row in (await _rows(visit, queue))[0] if row.kind == kind]
        total = len(ids)
    elif scope == "all":
        ids, total = None, len((await _rows(visit, queue))[0])
    if ids == []:
        raise ConfigError("no failure was chosen; tick some, or redrive all")
    asked = confirm(
        visit,
        form,
        title=f"Redrive {total:,} {'message' if total == 1 else 'messages'}?"
        if ids is not None
        else f"Redrive all failures of {queue.name}?",
        text="They go back to the queue they failed in, with fresh attempts.",
        button="Redrive",
        cancel=here,
    )
    if asked is not None:
        return asked
    title = f"Redrive of {queue.name}"
    visit.desk.jobs.start(queue.name, title, total, _redriving(visit, queue, ids))
    return visit.back(here)


async def _redriving(visit: Visit, queue: AsyncQueue, ids: Sequence[str] | None) -> AsyncIterator[int]:
    """Some at a time, so that it can be watched and stopped."""
    if ids is not None:
        for at in range(0, len(ids), CHUNK):
            yield await queue.redrive(ids[at : at + CHUNK])
            visit.desk.service.dispatcher.news(queue.name)
        return
    while moved := await queue.redrive(limit=CHUNK):
        visit.desk.service.dispatcher.news(queue.name)
        yield moved


async def delete(visit: Visit) -> Response:
    """Drop failures that were chosen."""
    queue, operator = await visit.operator("admin")
    form = await visit.form()
    ids = form.all("id")
    here = queue_path(queue.name, "failures", kind=form.get("kind"))
    if not ids:
        raise ConfigError("no failure was chosen; tick some")
    asked = confirm(
        visit,
        form,
        title=f"Delete {len(ids):,} {'failure' if len(ids) == 1 else 'failures'}?",
        text="They are dropped, payloads included. It cannot be undone.",
        button="Delete",
        cancel=here,
    )
    if asked is not None:
        return asked
    count = await operator.discard(ids)
    letters = queue.policy.failure.dead_letter_queue
    if letters is not None and count < len(ids):
        visit.visitor.need("admin", letters)
        count += await Operator(await visit.desk.service.queue(letters)).discard(ids)
    visit.desk.watch.hurry(queue.name)
    return visit.back(here, "delete", count)


async def stop_job(visit: Visit) -> Response:
    form = await visit.form()
    job = visit.desk.jobs.get(visit.request.path_params["id"])
    if job is not None:
        visit.visitor.need("admin", job.queue)
        visit.desk.jobs.stop(job.id)
        return visit.back(queue_path(job.queue, "failures"))
    return visit.back("/failures" if form else "/")
