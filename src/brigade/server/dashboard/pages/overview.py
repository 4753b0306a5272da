"""All queues at a glance."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.responses import Response

from brigade.server.dashboard.figures import Figures, Rates
from brigade.server.dashboard.visit import Visit

__all__ = ["overview", "parts"]

TEMPLATE = "overview.html"
PARTS = "parts/overview.html"
SORTS = ("name", "depth", "oldest", "failed")


@dataclass(frozen=True, slots=True)
class Row:
    """A queue on the overview."""

    name: str
    figures: Figures
    rates: Rates | None

    @property
    def depth(self) -> int:
        stats = self.figures.stats
        return stats.ready + stats.delayed + stats.in_flight if stats else 0


@dataclass(frozen=True, slots=True)
class Totals:
    """All queues that the visitor sees, together."""

    queues: int
    waiting: int
    in_flight: int
    failed: int
    oldest: float
    rates: Rates


def _rows(visit: Visit, sort: str) -> list[Row]:
    watch = visit.desk.watch
    rows = [
        Row(name, watch.figures(name), watch.figures(name).rates())
        for name in watch.names
        if visit.visitor.may("read", name)
    ]
    if sort == "depth":
        rows.sort(key=lambda row: -row.depth)
    elif sort == "oldest":
        rows.sort(key=lambda row: -(row.figures.stats.oldest_age if row.figures.stats else 0))
    elif sort == "failed":
        rows.sort(key=lambda row: -(row.figures.stats.failed if row.figures.stats else 0))
    return rows


def _totals(rows: list[Row]) -> Totals:
    stats = [row.figures.stats for row in rows if row.figures.stats is not None]
    rates = [row.rates for row in rows if row.rates is not None]
    return Totals(
        queues=len(rows),
        waiting=sum(one.ready + one.delayed for one in stats),
        in_flight=sum(one.in_flight for one in stats),
        failed=sum(one.failed for one in stats),
        oldest=max((one.oldest_age for one in stats), default=0.0),
        rates=Rates(*(sum(one[place] for one in rates) for place in range(3))),
    )


def _sort(visit: Visit) -> str:
    given = visit.query("sort", "name")
    return given if given in SORTS else "name"


async def overview(visit: Visit) -> Response:
    await visit.desk.watch.glimpse()
    sort = _sort(visit)
    rows = _rows(visit, sort)
    known = all(row.figures.samples for row in rows)
    return visit.page(
        TEMPLATE,
        rows=rows,
        totals=_totals(rows),
        spending=visit.desk.watch.spending(),
        sort=sort,
        sorts=SORTS,
        gathering=not known or not visit.desk.watch.ticks,
    )


async def parts(visit: Visit) -> dict[str, str]:
    """The rows one by one; a row that is new comes with the whole table."""
    render, rows = visit.desk.render, _rows(visit, _sort(visit))
    made = {f"q-{row.name}": render.part(PARTS, "queue_row", row) for row in rows}
    made["totals"] = render.part(PARTS, "totals_part", _totals(rows), visit.desk.watch.spending(), visit.desk.watch)
    return made
