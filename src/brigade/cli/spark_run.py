"""`brigade spark run`: a fleet of workers on Spark's executors."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from brigade.cli.common import check_place, console, json_option, print_json, say, url_option
from brigade.cli.work_handler import find_handler
from brigade.stores.opening import everywhere

if TYPE_CHECKING:
    from brigade.spark.fleet import Progress

__all__ = ["run"]


@click.command(short_help="Work off a queue on Spark's executors.")
@click.option("--queue", required=True, metavar="QUEUE", help="The queue to work off.")
@click.option("--handler", required=True, metavar="MODULE:FUNCTION", help="What to run on each message.")
@click.option("--output", metavar="parquet:DIR", help="Add results to this folder, as Parquet.")
@click.option("--tasks", type=click.IntRange(min=1), metavar="N", help="Workers; default as many as tasks can run.")
@click.option(
    "--concurrency", type=click.IntRange(1, 10_000), default=8, show_default=True, help="Handlers at a time, each."
)
@click.option("--duration", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Stop after so long.")
@click.option("--forever", is_flag=True, help="Go on when the queue is empty, until Ctrl-C.")
@click.option(
    "--round",
    "round_seconds",
    type=click.FloatRange(min=1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Tasks end, and results are written, this often.",
)
@url_option
@json_option
def run(
    queue: str,
    handler: str,
    output: str | None,
    tasks: int | None,
    concurrency: int,
    duration: float | None,
    forever: bool,
    round_seconds: float,
    url: str,
    as_json: bool,
) -> None:
    """Run FUNCTION of MODULE on each message of QUEUE, in Spark tasks, until the queue is empty.

    Everything that works in `brigade work` works here: leases are kept, failures are retried and dead-lettered by the
    queue's policy, Retry, Reject and Snooze are heeded. An executor or this process may be killed at any time: what is
    acked is done and has its result in history, and the rest is claimed again when its lease runs out.

    \b
    Examples:
      brigade spark run --queue pages --handler crawl:fetch --output parquet:./results
      brigade spark run --queue pages --handler crawl:fetch --tasks 8 --concurrency 32 --duration 600
    """
    from brigade.spark.fleet import run as work
    from brigade.spark.session import local_session

    place = None
    if output is not None:
        kind, mark, place = output.partition(":")
        if not mark or kind != "parquet" or not place:
            raise click.UsageError(f"--output is {output!r}; write it as parquet:DIR")
    find_handler(handler)
    check_place(url)
    session = local_session("brigade run")
    told = not as_json and sys.stderr.isatty()
    done = work(
        session,
        everywhere(url),
        queue,
        handler,
        tasks=tasks,
        concurrency=concurrency,
        until="stopped" if forever else "empty",
        duration=duration,
        round_seconds=round_seconds,
        output=place,
        progress=_tell if told else None,
    )
    if told:
        click.echo("", err=True)
    facts = {name: done.total(name) for name in ("processed", "failed", "released", "lost", "requests")}
    if as_json:
        print_json({"queue": queue, "run": done.run, "seconds": round(done.seconds, 3), **facts, "tasks": done.tasks})
        return
    rate = facts["processed"] / done.seconds if done.seconds else 0.0
    say(
        f"{facts['processed']:,} done, {facts['failed']:,} failed attempts, in {done.seconds:,.1f} s "
        f"({rate:,.0f}/s), by {len({row['worker'] for row in done.tasks})} workers"
    )
    if place is not None:
        say(f"results are in {place}")


def _tell(now: Progress) -> None:
    stats = now.stats
    left = stats.ready + stats.delayed
    line = f"{now.seconds:,.0f} s: {left:,} to do, {stats.in_flight:,} in flight, {stats.succeeded:,} done"
    console(stderr=True).print(f"{line}, {stats.failed + stats.dead_lettered:,} failed", end="\r")
