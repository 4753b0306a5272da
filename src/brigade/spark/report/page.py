"""The report as one page of HTML: everything in it, nothing fetched, light or dark as the reader likes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from typing import Any

from brigade.spark.report.charts import Line, bar, chart, short
from brigade.spark.report.report import Report

__all__ = ["page"]

MOST_QUEUES = 12
Cell = Callable[[dict[str, Any]], str]


def page(made: Report) -> str:
    """The whole page."""
    style = files(__package__ or "").joinpath("page.css").read_text(encoding="utf-8")
    body = "".join(
        (
            _head(made),
            _tiles(made),
            _queues(made),
            *(_charts(made, row["queue"]) for row in made.queues[:MOST_QUEUES]),
            _errors(made),
            _workers(made),
            _slowest(made),
            _requests(made),
            f"<footer>Made {_when(made.made_at)} by <code>brigade spark report</code>. Times are UTC.</footer>",
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><title>Brigade report</title>'
        f"<style>{style}</style></head><body><main>{body}</main></body></html>\n"
    )


def _when(moment: datetime | None) -> str:
    return "–" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _time(ms: float | None) -> str:
    """A length of time that was measured in milliseconds."""
    if ms is None:
        return "–"
    if ms < 1000:
        return f"{ms:,.0f} ms"
    return f"{ms / 1000:,.1f} s" if ms < 120_000 else f"{ms / 60_000:,.1f} min"


def _share(part: float, whole: float) -> str:
    if not whole:
        return "–"
    return f"{100 * part / whole:.2f} %"


def _dollars(value: float) -> str:
    return f"${value:,.2f}" if value >= 1 else f"${value:.4f}"


def _head(made: Report) -> str:
    queues = f"{len(made.queues)} queue{'' if len(made.queues) == 1 else 's'}"
    return (
        f"<header><h1>Brigade report</h1><p>{_number(made.total('messages'))} messages in {queues}, "
        f"{_when(made.first_at)} to {_when(made.last_at)}</p></header>"
    )


def _tiles(made: Report) -> str:
    messages, attempts = made.total("messages"), made.total("attempts")
    ended_badly = made.total("failed") + made.total("dead")
    worst_wait = max((row["wait_p95"] or 0 for row in made.queues), default=0)
    worst_run = max((row["run_p95"] or 0 for row in made.queues), default=0)
    tiles = [
        ("finished", _number(messages), f"{attempts:,} leases"),
        ("throughput", f"{short(messages / made.seconds)}/s", "over the whole time"),
        ("time to start, p95", _time(worst_wait), "slowest queue"),
        ("run time, p95", _time(worst_run), "slowest queue"),
        ("retried", _share(made.total("retried"), messages), f"{made.total('retried'):,} messages"),
        ("failed for good", _share(ended_badly, messages), f"{ended_badly:,} messages"),
    ]
    return (
        '<section class="tiles">'
        + "".join(
            f"<div><span>{name}</span><strong>{value}</strong><small>{note}</small></div>"
            for name, value, note in tiles
        )
        + "</section>"
    )


def _table(title: str, note: str, columns: Sequence[tuple[str, Cell]], rows: Iterable[dict[str, Any]]) -> str:
    """A table; the first column is text, cells that begin with a digit line up to the right."""
    rows = list(rows)
    if not rows:
        return f"<section><h2>{title}</h2><p class='none'>None.</p></section>"
    head = "".join(f"<th>{escape(name)}</th>" for name, _ in columns)
    lines = "".join("<tr>" + "".join(f"<td>{cell(row)}</td>" for _, cell in columns) + "</tr>" for row in rows)
    said = f"<p>{note}</p>" if note else ""
    return (
        f"<section><h2>{title}</h2>{said}<div class='wide'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div></section>"
    )


def _text(name: str) -> Cell:
    return lambda row: escape(str(row[name])) if row[name] is not None else "–"


def _code(name: str) -> Cell:
    return lambda row: f"<code>{escape(str(row[name]))}</code>"


def _count(name: str) -> Cell:
    return lambda row: _number(row[name])


def _ms(name: str) -> Cell:
    return lambda row: _time(row[name])


def _queues(made: Report) -> str:
    columns: list[tuple[str, Cell]] = [
        ("queue", _text("queue")),
        ("messages", _count("messages")),
        ("processed", _count("processed")),
        ("retried", lambda row: _share(row["retried"], row["messages"])),
        ("dead", _count("dead")),
        ("failed", _count("failed")),
        ("start p50", _ms("wait_p50")),
        ("p95", _ms("wait_p95")),
        ("p99", _ms("wait_p99")),
        ("run p50", _ms("run_p50")),
        ("p95", _ms("run_p95")),
        ("p99", _ms("run_p99")),
    ]
    note = "<em>start</em>: from due to the first claim; <em>run</em>: from the last claim to its end."
    return _table("Queues", note, columns, made.queues)


def _steps(made: Report) -> list[int]:
    """Every point in time that a chart shows."""
    size = made.step * 1000
    low = int(made.first_at.timestamp() * 1000) // size * size
    high = int(made.last_at.timestamp() * 1000) // size * size
    return list(range(low, high + 1, size))


def _charts(made: Report, queue: str) -> str:
    times = _steps(made)
    ended = {row["at_ms"]: row for row in made.timeline if row["queue"] == queue}
    came = {row["at_ms"]: row["enqueued"] for row in made.arrivals if row["queue"] == queue}

    def rate(name: str, colour: int, values: dict[int, float]) -> Line:
        return Line(name, colour, [(at, values.get(at, 0) / made.step) for at in times])

    def percentiles(prefix: str) -> list[Line]:
        return [
            Line(f"p{share}", colour, [(at, ended[at][f"{prefix}_p{share}"] if at in ended else None) for at in times])
            for share, colour in ((50, 0), (95, 1), (99, 2))
        ]

    bad = {at: row["failed"] + row["dead"] for at, row in ended.items()}
    flow = [
        rate("finished", 0, {at: row["finished"] for at, row in ended.items()}),
        rate("enqueued", 3, came),
        rate("failed for good", 2, bad),
    ]
    drawn = "".join(
        (
            chart("Throughput", flow, "messages/s", filled=True),
            chart("Time to start", percentiles("wait"), "ms"),
            chart("Run time", percentiles("run"), "ms"),
        )
    )
    return f"<section><h2>{escape(queue)}</h2><div class='charts'>{drawn}</div></section>"


def _errors(made: Report) -> str:
    most = max((row["times"] for row in made.errors), default=1)
    columns: list[tuple[str, Cell]] = [
        ("error", _code("error")),
        ("queue", _text("queue")),
        ("times", _count("times")),
        ("", lambda row: bar(row["times"] / most, 2)),
        ("messages", _count("messages")),
        ("last", lambda row: _when(row["last_at"])),
    ]
    return _table("Top errors", "", columns, made.errors)


def _workers(made: Report) -> str:
    columns: list[tuple[str, Cell]] = [
        ("worker", _code("owner")),
        ("leases", _count("leases")),
        ("share", lambda row: f"{100 * row['share']:.1f} %"),
        ("", lambda row: bar(float(row["share"]))),
        ("acked", _count("acked")),
        ("nacked", _count("nacked")),
        ("expired", _count("expired")),
        ("released", _count("released")),
        ("last seen", lambda row: _when(row["last_at"])),
    ]
    return _table("Workers", "", columns, made.workers)


def _slowest(made: Report) -> str:
    columns: list[tuple[str, Cell]] = [
        ("message", _code("id")),
        ("queue", _text("queue")),
        ("outcome", _text("outcome")),
        ("run", _ms("run_ms")),
        ("start", _ms("wait_ms")),
        ("in all", _ms("total_ms")),
        ("leases", _count("attempts")),
        ("worker", _code("worker")),
    ]
    return _table("Slowest messages", "", columns, made.slowest[:10])


def _requests(made: Report) -> str:
    if not made.requests:
        return ""
    columns: list[tuple[str, Cell]] = [
        ("queue", _text("queue")),
        ("segments", _count("segments")),
        ("claims", _count("claims")),
        ("settlements", _count("swaps")),
        ("requests", _count("requests")),
        ("a message", lambda row: f"{row['per_message']:.4f}"),
        ("dollars", lambda row: _dollars(row["dollars"])),
    ]
    free = "" if any(row["billed"] for row in made.requests) else " This store bills none: it is what S3 would ask."
    note = f"Estimated from what history shows; listings, heartbeats and idle polls leave no trace in it.{free}"
    return _table("Storage requests", note, columns, made.requests)
