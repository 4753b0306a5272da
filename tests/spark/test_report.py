"""The report: what it counts, and a page that stands on its own."""

from __future__ import annotations

import html.parser
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from planted import lease, record, segment, write

from brigade.spark.history import collect
from brigade.spark.history.engines import DuckEngine, Engine, SparkEngine
from brigade.spark.report import page, report, save_tables
from brigade.spark.report.questions import step_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("reported")
    name = segment(100)
    good = [record(f"{name}-{place}", [lease(1, 0, place + 1)]) for place in range(98)]
    retried = record(f"{name}-98", [lease(1, 0, 2, "nacked", "v"), lease(2, 4, 5)])
    hostile = record(
        f"{name}-99",
        [lease(1, 0, 2, "nacked", "v")],
        outcome="dead-lettered",
        reason="failed",
        error="<script>alert(1)</script>",
        dead_letter_queue="letters",
        id="<b>id</b>",
    )
    hostile.attempts[0].error = hostile.error
    write(f"file://{root}/store", [*good, retried, hostile])
    collect(spark, f"file://{root}/store", f"{root}/tables")
    return f"{root}/tables"


@pytest.mark.parametrize("engine", ["spark", "duckdb"])
def test_a_report_counts_what_happened(spark: SparkSession, tables: str, engine: str, tmp_path: Path) -> None:
    opened: Engine = SparkEngine(spark, tables) if engine == "spark" else DuckEngine(tables)
    made = report(opened)
    (queue,) = made.queues
    assert (queue["messages"], queue["processed"], queue["dead"], queue["retried"]) == (100, 99, 1, 1)
    assert queue["attempts"] == 101
    assert queue["run_p50"] == pytest.approx(48_500, abs=1500)
    assert queue["run_p99"] == pytest.approx(97_000, abs=1500)
    assert sum(row["finished"] for row in made.timeline) == 100
    assert sum(row["finished"] for row in made.minutes) == 100
    assert {row["error"]: row["times"] for row in made.errors} == {"no": 1, "<script>alert(1)</script>": 1}
    assert [row["owner"] for row in made.workers] == ["w", "v"]
    assert float(made.workers[0]["share"]) == pytest.approx(99 / 101)
    assert made.slowest[0]["run_ms"] == 98_000
    (requests,) = made.requests
    assert (requests["segments"], requests["claims"]) == (1, 2)
    assert requests["dollars"] > 0
    save_tables(opened, made, str(tmp_path / "out"))
    assert spark.read.parquet(str(tmp_path / "out" / "queues")).collect()[0]["messages"] == 100


class Page(html.parser.HTMLParser):
    """What a browser would fetch or run, and whether every element is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href", "action", "srcset")]
        if tag not in ("meta", "line", "polyline", "polygon"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_and_believes_nobody(tables: str) -> None:
    text = page(report(DuckEngine(tables)))
    read = Page()
    read.feed(text)
    assert read.fetched == []
    assert read.open == []
    assert "script" not in read.seen
    assert "b" not in read.seen
    assert {"svg", "table", "figure"} <= read.seen
    assert not re.search(r"https?://|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text


def test_duckdb_needs_no_spark(tables: str) -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'pyarrow', 'pandas')))"
    ask = (
        "from brigade.spark.history.engines import DuckEngine; from brigade.spark.audit import audit; "
        f"from brigade.spark.report import page, report; engine = DuckEngine({tables!r}); "
        "page(report(engine)); assert audit(engine).holds"
    )
    subprocess.run([sys.executable, "-c", f"{blocked}; {ask}"], check=True, timeout=100)


def test_a_chart_has_no_more_points_than_eyes_can_see() -> None:
    assert [step_for(seconds) for seconds in (1, 100, 600, 3600, 86_400, 30 * 86_400)] == [1, 1, 5, 30, 900, 14_400]


def test_commands_report_and_audit_without_java(tables: str, run: Any, tmp_path: Path) -> None:
    made = run("spark", "report", tables, "--engine", "duckdb", "--html", "r.html", "--json")
    assert json.loads(made.stdout)["queues"][0]["messages"] == 100
    assert "<svg" in (tmp_path / "r.html").read_text()
    run("spark", "audit", tables, "--engine", "duckdb", code=0)
    (tmp_path / "ids.txt").write_text("nobody\n")
    run("enqueue", "tasks", "x")
    broken = run("spark", "audit", tables, "--engine", "duckdb", "--expect", "ids.txt", code=1)
    assert b"BROKEN [G1]" in broken.stdout
    nothing = run("spark", "report", "nowhere", "--engine", "duckdb", code=2)
    assert b"brigade spark history" in nothing.stderr
