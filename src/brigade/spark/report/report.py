"""The report: asks the tables, and adds what requests cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from brigade.clock import SystemClock, to_datetime
from brigade.cost import Prices
from brigade.errors import ConfigError
from brigade.spark.history.engines import Engine, SparkEngine
from brigade.spark.report.questions import QUESTIONS, step_for

__all__ = ["TABLES", "Report", "report", "save_tables"]

HISTORY_FILE_RECORDS = 20_000
DELETED_AT_ONCE = 1000
TABLES = ("queues", "minutes", "errors", "slowest", "workers", "requests")
Rows = list[dict[str, Any]]


class Report(msgspec.Struct):
    """All that a page shows. Times are UTC; `step` is how many seconds a point of a chart stands for."""

    made_at: datetime
    kind: str
    first_at: datetime
    last_at: datetime
    step: int
    queues: Rows
    timeline: Rows
    arrivals: Rows
    minutes: Rows
    errors: Rows
    slowest: Rows
    workers: Rows
    requests: Rows

    @property
    def seconds(self) -> float:
        return max(0.001, (self.last_at - self.first_at).total_seconds())

    def total(self, column: str) -> int:
        return sum(row[column] or 0 for row in self.queues)


def report(engine: Engine, *, prices: Prices | None = None, progress: Callable[[str], None] | None = None) -> Report:
    """Ask everything that a report shows."""
    if isinstance(engine, SparkEngine):
        engine.keep()
    try:
        (span,) = engine.rows("SELECT min(enqueued_at) AS first_at, max(finished_at) AS last_at FROM messages")
        if span["first_at"] is None:
            raise ConfigError("none of these queues has a finished message in the tables; leave --queue out to see all")
        step = step_for((span["last_at"] - span["first_at"]).total_seconds())
        found: dict[str, Rows] = {}
        for name, sql in QUESTIONS.items():
            if progress is not None:
                progress(name)
            found[name] = engine.rows(sql.replace("{step}", str(step)))
    finally:
        if isinstance(engine, SparkEngine):
            engine.release()
    _price(found["requests"], found["queues"], engine.kind, prices or Prices())
    now = to_datetime(SystemClock().now())
    return Report(now, engine.kind, span["first_at"], span["last_at"], step, **found)


def _price(requests: Rows, queues: Rows, kind: str, prices: Prices) -> None:
    """Estimate storage requests from what history shows: writes, claims, settlements, and the share of the rest.

    Listings, heartbeats and idle polls leave no trace in history and are not in it.
    """
    messages = {row["queue"]: row["messages"] for row in queues}
    for row in requests:
        segments, total = row["segments"], messages.get(row["queue"], 0)
        made: Mapping[str, float] = {
            "create": segments + min(segments, row["claims"]) + -(-total // HISTORY_FILE_RECORDS),
            "swap": max(0, row["claims"] - segments) + row["swaps"],
            "get": row["claims"],
            "delete": 2 * -(-segments // DELETED_AT_ONCE),
        }
        row["requests"] = round(sum(made.values()))
        row["per_message"] = row["requests"] / total if total else 0.0
        row["dollars"] = prices.of(made)
        row["billed"] = kind in ("s3", "az", "gs")


def save_tables(engine: Engine, made: Report, place: str) -> None:
    """Write the tables of a report as Parquet, a folder each."""
    for name in TABLES:
        if name == "requests":
            continue
        sql = QUESTIONS[name].replace("{step}", str(made.step))
        engine.save(f"SELECT * FROM ({sql}) answer", f"{place}/{name}")
