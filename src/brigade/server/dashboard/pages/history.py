"""What has ended, day by day: outcomes, and how long messages waited and ran."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response

from brigade.operator import Operator
from brigade.server.dashboard.figures import quantile
from brigade.server.dashboard.visit import Visit
from brigade.survey import Day, Ended

__all__ = ["history"]

SAMPLE = 500
CHOICES = (7, 14, 30)


@dataclass(frozen=True, slots=True)
class Row:
    """A day: how messages ended, and percentiles of a sample of them, in seconds."""

    day: Day
    total: int
    share: float
    failed_share: float
    waits: tuple[float | None, float | None, float | None]
    runs: tuple[float | None, float | None, float | None]


def _percentiles(values: list[float]) -> tuple[float | None, float | None, float | None]:
    values.sort()
    return quantile(values, 0.5), quantile(values, 0.95), quantile(values, 0.99)


def _rows(days: list[Day]) -> list[Row]:
    totals = [day.processed + day.failed + day.dead_lettered for day in days]
    most = max([*totals, 1])
    return [
        Row(
            day,
            total,
            total / most,
            (day.failed + day.dead_lettered) / most,
            _percentiles([one.waited for one in day.sample if one.waited is not None]),
            _percentiles([one.ran for one in day.sample if one.ran is not None]),
        )
        for day, total in zip(days, totals, strict=True)
    ]


async def history(visit: Visit) -> Response:
    await visit.desk.watch.glimpse()
    names = [name for name in visit.desk.watch.names if visit.visitor.may("read", name)]
    chosen = visit.query("queue") or _busiest(visit, names)
    days = visit.number("days", 7, most=90)
    rows: list[Row] = []
    newest: list[Ended] = []
    if chosen:
        visit.visitor.need("read", chosen)
        queue = await visit.desk.service.queue(chosen)
        rows = _rows(await Operator(queue).outcomes(max(1, days), sample=SAMPLE))
        newest = sorted((one for row in rows for one in row.day.sample), key=lambda one: -one.finished_at_ms)[:20]
    return visit.page(
        "history.html",
        names=names,
        chosen=chosen,
        days=days,
        choices=CHOICES,
        rows=rows,
        newest=newest,
        sample=SAMPLE,
        redact=visit.desk.redaction,
    )


def _busiest(visit: Visit, names: list[str]) -> str:
    def ended(name: str) -> int:
        stats = visit.desk.watch.figures(name).stats
        return stats.succeeded + stats.failed + stats.dead_lettered if stats else 0

    return max(names, key=ended, default="")
