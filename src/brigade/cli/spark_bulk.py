"""`brigade spark redrive`, `cancel`, `reprioritize` and `enqueue`: many messages at once, on Spark's executors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brigade.cli.common import (
    check_place,
    confirm,
    counted,
    json_option,
    print_json,
    queue_argument,
    say,
    url_option,
    yes_option,
)
from brigade.stores.opening import everywhere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from brigade.spark.bulk import Done

__all__ = ["cancel", "enqueue", "redrive", "reprioritize"]

FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


def _where(command: Any) -> Any:
    command = click.option("--dry-run", is_flag=True, help="Only count what would be chosen.")(command)
    return click.option("--where", metavar="SQL", help="A predicate in Spark's SQL; without it, all.")(command)


def _session() -> Any:
    from brigade.spark.session import local_session

    return local_session("brigade bulk")


def _tell(queue: str, verb: str, done: Done, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"queue": queue, "chosen": done.chosen, verb.replace(" ", "_"): done.done, "dry_run": dry_run})
    elif dry_run:
        say(f"{counted(done.chosen, 'message')} would be {verb}")
    else:
        left = done.chosen - done.done
        rest = f"; {left:,} were claimed, moved or ended meanwhile, or can't be" if left else ""
        say(f"{counted(done.done, 'message')} {verb}{rest}")


@click.command(short_help="Bring failures back that SQL chooses.")
@queue_argument()
@_where
@url_option
@json_option
def redrive(queue: str, where: str | None, dry_run: bool, url: str, as_json: bool) -> None:
    """Bring failures of QUEUE back to it: parked ones and dead letters, with fresh attempts.

    Columns: id, lies_in, reason, error, attempts, failed_at, enqueued_at, priority, group, correlation_id, attributes,
    content_type, size, data (the payload as text).

    \b
    Examples:
      brigade spark redrive orders --where "error like '%Timeout%' and attempts < 5" --dry-run
      brigade spark redrive orders --where "get_json_object(data, '$.country') = 'NO'"
    """
    from brigade.spark.bulk import redrive as act

    check_place(url)
    done = act(_session(), everywhere(url), queue, where, dry_run=dry_run)
    _tell(queue, "brought back", done, dry_run=dry_run, as_json=as_json)


@click.command(short_help="End waiting messages that SQL chooses.")
@queue_argument()
@_where
@yes_option
@url_option
@json_option
def cancel(queue: str, where: str | None, dry_run: bool, yes: bool, url: str, as_json: bool) -> None:
    """End waiting messages of QUEUE without working on them; history tells that they were cancelled.

    Columns: id, priority, enqueued_at, due_at, attempts, max_attempts, correlation_id, attributes, content_type, size,
    error, data (the payload as text). What is in flight, or in a strict queue or group, is left alone.

    \b
    Examples:
      brigade spark cancel mails --where "enqueued_at < current_timestamp() - interval 2 days" --dry-run
      brigade spark cancel mails --where "get_json_object(data, '$.campaign') = 'spring'" --yes
    """
    from brigade.spark.bulk import cancel as act

    check_place(url)
    if not dry_run:
        confirm(f"End messages of queue {queue}{' where ' + where if where else ', all of them'}?", yes=yes)
    done = act(_session(), everywhere(url), queue, where, dry_run=dry_run)
    _tell(queue, "cancelled", done, dry_run=dry_run, as_json=as_json)


@click.command(short_help="Give waiting messages another priority.")
@queue_argument()
@click.option("--priority", type=click.IntRange(0, 9), required=True, help="0 is the most urgent, 9 the least.")
@_where
@url_option
@json_option
def reprioritize(queue: str, priority: int, where: str | None, dry_run: bool, url: str, as_json: bool) -> None:
    """Give waiting messages of QUEUE another priority. The columns are those of `cancel`.

    In a bucket they are written again and the originals end, so their ids change; messages with ids of your own and
    payloads over 256 KiB keep their priority there. In PostgreSQL nothing but the priority changes.

    \b
    Examples:
      brigade spark reprioritize orders --priority 0 --where "get_json_object(data, '$.vip') = 'true'"
      brigade spark reprioritize orders --priority 9 --where "size > 100000" --dry-run
    """
    from brigade.spark.bulk import reprioritize as act

    check_place(url)
    done = act(_session(), everywhere(url), queue, priority, where, dry_run=dry_run)
    _tell(queue, "given the priority", done, dry_run=dry_run, as_json=as_json)


@click.command(short_help="Fill a queue from Parquet, CSV or JSON.")
@click.option("--from", "source", required=True, metavar="FILE", help="A file or folder that Spark can read.")
@click.option("--format", "kind", type=click.Choice(["parquet", "csv", "json"]), help="Default: by the file's name.")
@click.option("--queue", required=True, metavar="QUEUE", help="Where to; it is created if need be.")
@click.option("--select", metavar="SQL", help='Columns to take, such as "to_json(struct(*)) as payload, id".')
@click.option("--where", metavar="SQL", help="Only rows that this holds for.")
@url_option
@json_option
def enqueue(
    source: str, kind: str | None, queue: str, select: str | None, where: str | None, url: str, as_json: bool
) -> None:
    """Make a message of each row, all of them or, if anything fails, none.

    A column `payload` is the message, or else all columns together, as JSON. Columns named id, priority, delay, due_at,
    group, attributes, correlation_id, ttl and max_attempts are its options. CSV has a header line.

    \b
    Examples:
      brigade spark enqueue --from orders.parquet --queue orders
      brigade spark enqueue --from urls.csv --queue pages --select "url as payload, 3 as priority"
    """
    from brigade.clock import SystemClock
    from brigade.spark.bulk.chosen import choose
    from brigade.spark.source import BrigadeSource

    form = kind or FORMATS.get(Path(source).suffix.lower())
    if form is None:
        raise click.UsageError(f"--from {source!r} doesn't tell its format; add --format parquet, csv or json")
    if "://" not in source and not Path(source).exists():
        raise click.UsageError(f"--from {source!r} is not there")
    clock = SystemClock()
    session = _session()
    session.dataSource.register(BrigadeSource)
    began = clock.monotonic()
    rows: DataFrame = session.read.option("header", "true").format(form).load(source)
    rows = choose(rows, where)
    if select is not None:
        rows.createOrReplaceTempView("brigade_rows")
        rows = session.sql(f"SELECT {select} FROM brigade_rows")  # noqa: S608 - the user's own query, on their own data
    count = rows.count()
    if not as_json:
        say(f"writing {counted(count, 'message')} to queue {queue}", err=True)
    rows.write.format("brigade").option("url", everywhere(url)).option("queue", queue).mode("append").save()
    seconds = clock.monotonic() - began
    if as_json:
        print_json({"queue": queue, "enqueued": count, "seconds": round(seconds, 3)})
    else:
        say(f"{counted(count, 'message')} enqueued in {seconds:.1f} s")
