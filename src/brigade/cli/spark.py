"""`brigade spark`: history as tables, reports and the audit; and work on Spark's executors."""

from __future__ import annotations

import sys
import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brigade.cli.common import (
    check_place,
    connected,
    console,
    counted,
    json_option,
    print_json,
    say,
    table,
    url_option,
    when,
)
from brigade.cli.text import visible
from brigade.stores.opening import everywhere

if TYPE_CHECKING:
    from brigade.spark.audit import Verdict

__all__ = ["spark"]

ELSEWHERE = {
    "cancel": "brigade.cli.spark_bulk:cancel",
    "enqueue": "brigade.cli.spark_bulk:enqueue",
    "redrive": "brigade.cli.spark_bulk:redrive",
    "reprioritize": "brigade.cli.spark_bulk:reprioritize",
    "run": "brigade.cli.spark_run:run",
}
MOST_SHOWN = 5


class SparkGroup(click.Group):
    """Finds the commands that live in modules of their own when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*self.commands, *ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = ELSEWHERE.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = place.partition(":")
        return getattr(import_module(module), name)


@click.group(cls=SparkGroup, short_help="History as tables, reports, an audit; and work on Spark.")
def spark() -> None:
    """History as tables, reports and an audit; a fleet of workers on Spark, and bulk operations.

    Needs `pip install 'bucket-brigade[spark]'` and Java 17 or newer. Spark runs on this machine, on all cores;
    under `spark-submit`, or in a program of yours, brigade.spark does the same on a cluster.

    \b
    Examples:
      brigade spark history --output ./history
      brigade spark report ./history --html report.html
      brigade spark audit ./history
      brigade spark run --queue pages --handler crawl:fetch
    """


def queue_option(command: Any) -> Any:
    return click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only this queue; repeatable.")(
        command
    )


def engine_option(command: Any) -> Any:
    return click.option(
        "--engine",
        type=click.Choice(["spark", "duckdb"]),
        default="spark",
        show_default=True,
        help="Who answers: Spark, or DuckDB for tables that fit on this machine.",
    )(command)


@spark.command(short_help="Turn history into Parquet tables.")
@click.option("--output", required=True, metavar="DIR", help="The folder of the tables; any path that Spark knows.")
@queue_option
@click.option("--every", type=click.FloatRange(min=1), metavar="SECONDS", help="Go on, looking for more this often.")
@click.option("--keep-days", type=click.IntRange(min=1), metavar="N", help="Drop days older than this.")
@click.option("--compact/--no-compact", default=True, show_default=True, help="Make one file of many small ones.")
@url_option
@json_option
def history(
    output: str,
    queues: tuple[str, ...],
    every: float | None,
    keep_days: int | None,
    compact: bool,
    url: str,
    as_json: bool,
) -> None:
    """Bring the tables `messages` and `attempts` in DIR up to date with the history of the store.

    One row a message and one row a lease, as Parquet by queue and date. Each run adds what is new, each row once; it
    may be stopped, killed and started again at any time. With --every it goes on until Ctrl-C.

    \b
    Examples:
      brigade spark history --output ./history
      brigade spark history --output ./history --every 60 --keep-days 90
      brigade spark history --url s3://bucket/jobs --output /data/history --queue orders --json
    """
    from brigade.spark.history import collect, drop_old
    from brigade.spark.history import compact as tidy
    from brigade.spark.session import local_session

    check_place(url)
    session = local_session("brigade history")
    stop = threading.Event()
    while True:
        done = collect(session, everywhere(url), output, queues=list(queues) or None)
        tidied = tidy(session, output) if compact else None
        dropped = drop_old(session, output, keep_days).dropped if keep_days is not None else 0
        facts = {
            "output": output,
            "read": done.records,
            "messages": done.messages,
            "attempts": done.attempts,
            "queues": done.queues,
            "files_compacted": tidied.before if tidied else 0,
            "partitions_dropped": dropped,
            "seconds": round(done.seconds, 3),
        }
        if as_json:
            print_json(facts)
        else:
            say(
                f"{counted(done.messages, 'message')} and {counted(done.attempts, 'lease')} added to {output} "
                f"in {done.seconds:.1f} s"
            )
        if every is None or stop.wait(every):
            return


@spark.command(short_help="What happened: throughput, times, errors, cost.")
@click.argument("tables", metavar="DIR")
@queue_option
@click.option("--html", metavar="FILE", help="Write the page here; default DIR/report.html.")
@click.option("--parquet", metavar="DIR", help="Write the report's tables here as well.")
@click.option("--prices", metavar="FILE", help="TOML or JSON with put, list, get, delete: dollars for a thousand.")
@engine_option
@json_option
def report(
    tables: str,
    queues: tuple[str, ...],
    html: str | None,
    parquet: str | None,
    prices: str | None,
    engine: str,
    as_json: bool,
) -> None:
    """Make a report of the tables in DIR, which `brigade spark history` has filled: one HTML page that needs no other.

    \b
    Examples:
      brigade spark report ./history
      brigade spark report ./history --queue orders --html orders.html
      brigade spark report ./history --engine duckdb --json | jq .queues
    """
    from brigade.cost import load_prices
    from brigade.spark.history.engines import open_engine
    from brigade.spark.report import page, save_tables
    from brigade.spark.report import report as ask

    charged = load_prices(prices)
    opened = open_engine(engine, tables, list(queues) or None)
    made = ask(opened, prices=charged)
    place = html or (None if "://" in tables else str(Path(tables) / "report.html"))
    if place is not None:
        Path(place).write_text(page(made), encoding="utf-8")
    if parquet is not None:
        save_tables(opened, made, parquet)
    if as_json:
        print_json(made)
        return
    shown = table(
        "queue", "messages", "retried", "dead", "failed", "start p50", "p95", "run p50", "p95", "p99", numbers=True
    )
    for row in made.queues:
        times = (row[name] for name in ("wait_p50", "wait_p95", "run_p50", "run_p95", "run_p99"))
        counts = (f"{row[name]:,}" for name in ("messages", "retried", "dead", "failed"))
        shown.add_row(visible(row["queue"]), *counts, *("–" if ms is None else f"{ms:,.0f} ms" for ms in times))
    console().print(shown)
    if place is not None:
        say(f"the page is {place}")


@spark.command(short_help="Check the guarantees over the whole history.")
@click.argument("tables", metavar="DIR")
@queue_option
@click.option("--slack", type=click.FloatRange(min=0), metavar="SECONDS", help="By how much clocks may differ.")
@click.option("--expect", metavar="FILE", help="Ids that were enqueued, one a line: each must have ended, or be there.")
@click.option("--violations", metavar="DIR", help="Where offending rows go as Parquet; default DIR/violations.")
@engine_option
@url_option
@json_option
def audit(
    tables: str,
    queues: tuple[str, ...],
    slack: float | None,
    expect: str | None,
    violations: str | None,
    engine: str,
    url: str,
    as_json: bool,
) -> None:
    """Check the guarantees of docs/reliability.md over the tables in DIR, and end with 1 if one is broken.

    It looks for lost messages, deliveries after an ack, leases that overlap, versions that don't grow, attempts over
    the limit, and strict lanes out of order. --expect takes ids, or receipts as JSON lines; those that have not
    ended are looked for in the store. By default clocks may differ by 0 s (PostgreSQL), 0.02 s (files), 2 s (clouds).

    \b
    Examples:
      brigade spark audit ./history
      brigade spark audit ./history --expect ids.txt --url file://./jobs
      brigade spark audit ./history --engine duckdb --json
    """
    from brigade.spark.audit import audit as check
    from brigade.spark.history.engines import open_engine

    expected = None if expect is None else _ids(expect)
    opened = open_engine(engine, tables, list(queues) or None)
    place = violations or f"{tables.rstrip('/')}/violations"
    if expected is None:
        verdict = check(opened, slack=slack, violations=place)
    else:
        with connected(url) as hub:
            verdict = check(opened, slack=slack, expected=expected, hub=hub, violations=place)
    if as_json:
        print_json(verdict)
    else:
        _show(verdict)
    sys.exit(0 if verdict.holds else 1)


def _ids(path: str) -> list[str]:
    """Ids from a file: one a line, or as JSON with an `id`."""
    import msgspec

    found: list[str] = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text:
            continue
        if text.startswith("{"):
            try:
                text = msgspec.json.decode(text)["id"]
            except (msgspec.DecodeError, KeyError):
                raise click.UsageError(f"{path}, line {number}: this is no JSON object with an id") from None
        found.append(text)
    return found


def _show(verdict: Verdict) -> None:
    for finding in verdict.findings:
        mark = "ok    " if finding.holds else "BROKEN"
        say(f"{mark} [{finding.guarantee}] {finding.title}: {finding.found:,}")
        for row in finding.rows[:MOST_SHOWN]:
            moment = f" at {when(row.happened_at)}" if row.happened_at is not None else ""
            say(f"         {row.queue} {row.id}{moment}: {row.detail}")
    span = f", {when(verdict.first)} to {when(verdict.last)}" if verdict.first else ""
    of = f"{counted(verdict.messages, 'message')} and {counted(verdict.attempts, 'lease')}{span}"
    if verdict.waiting:
        say(f"{counted(verdict.waiting, 'expected message')} still in a queue")
    if verdict.holds:
        say(f"every guarantee holds over {of}")
    else:
        say(f"guarantees are broken over {of}; all offending rows: {verdict.written}")
