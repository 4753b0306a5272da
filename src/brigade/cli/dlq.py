"""`brigade dlq`: look at what failed, bring it back, or drop it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Sequence

import click

from brigade.cli.app import Nothing
from brigade.cli.common import (
    age,
    confirm,
    connected,
    console,
    counted,
    json_option,
    print_json,
    queue_argument,
    say,
    table,
    url_option,
    when,
    yes_option,
)
from brigade.cli.failures import MOST, Failures, Found
from brigade.cli.show import print_facts
from brigade.cli.text import cell, short
from brigade.clock import SystemClock, to_datetime

__all__ = ["dlq"]

ROUND = 1000


@click.group(short_help="Failures: list, show, redrive, purge.")
def dlq() -> None:
    """Failures of a queue: those parked in it, and its dead letters.

    QUEUE may be the queue in which messages failed, or a dead-letter queue. A failure that somebody has claimed is
    not listed.

    \b
    Examples:
      brigade dlq list tasks --group
      brigade dlq show tasks order-42
      brigade dlq redrive tasks --id order-42
    """


@dlq.command("list", short_help="List failures.")
@queue_argument()
@click.option("--limit", type=click.IntRange(1, MOST), help="At most this many. Default: 50, or all with --group.")
@click.option("--group", "grouped", is_flag=True, help="Count by reason and error.")
@url_option
@json_option
def list_(queue: str, limit: int | None, grouped: bool, url: str, as_json: bool) -> None:
    """List the failures of QUEUE, oldest first: reason, error, attempts and age.

    \b
    Examples:
      brigade dlq list tasks
      brigade dlq list tasks --group
      brigade dlq list tasks --json | jq -r '.[].id'
    """
    most = limit or (MOST if grouped else 50)
    with connected(url) as hub:
        found = Failures(hub, queue).find(min(most + 1, MOST))
    more, found = len(found) > most, found[:most]
    if as_json:
        print_json(_groups(found) if grouped else [one.facts() for one in found])
    if not found:
        raise Nothing(f"queue {queue!r} has no failures")
    if as_json:
        return
    if grouped:
        _print_groups(found)
    else:
        _print_list(found)
    if more:
        say(f"there are more than {most:,}; --limit shows more", err=True)


def _print_list(found: Sequence[Found]) -> None:
    shown = table("id", "queue", "reason", "tries", "age", "error")
    now = SystemClock().now()
    for one in found:
        failure = one.failure
        since = age((now - failure.failed_at_ms) / 1000)
        error = cell(short(failure.error or "", 80))
        shown.add_row(cell(one.id), cell(failure.queue), cell(failure.reason), str(failure.attempts), since, error)
    console().print(shown)


def _groups(found: Sequence[Found]) -> list[dict[str, object]]:
    """Counts by reason and error, the most frequent first."""
    counts = Counter((one.failure.reason, one.failure.error) for one in found)
    latest: dict[tuple[str, str | None], int] = {}
    for one in found:
        key = (one.failure.reason, one.failure.error)
        latest[key] = max(latest.get(key, 0), one.failure.failed_at_ms)
    return [
        {"count": count, "reason": key[0], "error": key[1], "latest": when(to_datetime(latest[key]))}
        for key, count in counts.most_common()
    ]


def _print_groups(found: Sequence[Found]) -> None:
    shown = table("count", "reason", "error", "latest")
    shown.columns[0].justify = "right"
    for group in _groups(found):
        shown.add_row(*(cell(group[name]) for name in ("count", "reason", "error", "latest")))
    console().print(shown)


@dlq.command(short_help="Show one failure.")
@queue_argument()
@click.argument("id", metavar="ID")
@url_option
@json_option
def show(queue: str, id: str, url: str, as_json: bool) -> None:
    """Show all about the failure ID of QUEUE, with its payload. A payload over 256 KiB is stored apart, not shown.

    ID is the id that the message had where it failed, or the id of the dead letter.

    \b
    Examples:
      brigade dlq show tasks order-42
      brigade dlq show tasks order-42 --json | jq .data
    """
    with connected(url) as hub:
        found = Failures(hub, queue).find()
    for one in found:
        if id in (one.id, one.message.id):
            if as_json:
                print_json(one.facts())
            else:
                print_facts(one.facts())
            return
    raise Nothing(f"queue {queue!r} has no failure {id!r}; `brigade dlq list {queue}` shows those it has")


@dlq.command(short_help="Bring failures back.")
@queue_argument()
@click.option("--id", "ids", multiple=True, metavar="ID", help="Only this one. May be given several times.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most this many.")
@url_option
@json_option
def redrive(queue: str, ids: tuple[str, ...], limit: int | None, url: str, as_json: bool) -> None:
    """Bring failures of QUEUE back to the queue that they failed in, with fresh attempts.

    It goes in rounds of a thousand: when interrupted, what was brought back stays so, and the rest is still there.

    \b
    Examples:
      brigade dlq redrive tasks
      brigade dlq redrive tasks --id order-42 --id order-43
      brigade dlq redrive tasks_dlq --limit 100
    """
    wanted = sorted(set(ids)) or None
    most = len(wanted) if wanted and limit is None else limit
    with connected(url) as hub:
        failures = Failures(hub, queue)
        done = _redrive(failures, wanted, most)
    if as_json:
        print_json({"queue": queue, "redriven": done})
    elif done:
        say(f"{counted(done, 'message')} brought back")
    if not done:
        raise Nothing(f"queue {queue!r} has no such failures" if wanted else f"queue {queue!r} has no failures")
    if wanted and most is not None and done < min(len(wanted), most):
        raise Nothing(f"{done} of {len(wanted)} ids were brought back; the others are no failures of queue {queue!r}")


def _redrive(failures: Failures, ids: list[str] | None, most: int | None) -> int:
    done = 0
    with _progress(failures, most) as advance:
        while most is None or done < most:
            count = failures.redrive(ids, _round(ids, most, done))
            done += count
            advance(count)
            if count == 0 or ids:
                break
    return done


def _round(ids: list[str] | None, most: int | None, done: int) -> int:
    """How many to bring back next. Chosen ids are looked for once, all together."""
    if most is None:
        return ROUND
    return most if ids else min(ROUND, most - done)


@contextlib.contextmanager
def _progress(failures: Failures, most: int | None) -> Generator[Callable[[int], None], None, None]:
    """A bar on standard error, if that is a terminal."""
    errors = console(stderr=True)
    if not errors.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    total = failures.count() if most is None else min(most, failures.count())
    columns = (TextColumn("redrive"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("redrive", total=total or None)
        yield lambda count: progress.advance(task, count)


@dlq.command(short_help="Drop failures.")
@queue_argument()
@yes_option
@url_option
@json_option
def purge(queue: str, yes: bool, url: str, as_json: bool) -> None:
    """Drop the failures of QUEUE for good. Messages that wait stay, and so do other queues' dead letters.

    \b
    Examples:
      brigade dlq purge tasks
      brigade dlq purge tasks_dlq --yes
    """
    with connected(url) as hub:
        failures = Failures(hub, queue)
        if not yes:
            confirm(f"Drop {counted(len(failures.find()), 'failure')} of queue {queue} for good?", yes=yes)
        dropped = failures.purge()
    if as_json:
        print_json({"queue": queue, "purged": dropped})
    else:
        say(f"{counted(dropped, 'failure')} dropped")
