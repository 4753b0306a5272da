"""`brigade stats`: counts by state, once or again and again with rates."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from brigade.cli.bench import cost_line
from brigade.cli.common import age, connected, console, json_option, print_json, queue_argument, table, url_option, when
from brigade.cli.queues import chosen
from brigade.clock import SystemClock, to_datetime
from brigade.model import Stats
from brigade.sync import Hub, Queue

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["stats"]

COUNTS = {
    "ready": "ready",
    "delayed": "delayed",
    "in_flight": "in flight",
    "succeeded": "succeeded",
    "failed": "failed",
    "dead_lettered": "dead",
}
SHORT = ("ready", "delayed", "flight", "done", "failed", "dead")
EVERY = 2.0
RELIST = 15.0
NUMBER = re.compile(r"[0-9.]+")


class _Watchable(click.Command):
    """A command in which `--watch` may stand alone or be followed by a number."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        for place, one in enumerate(given):
            if one == "--watch":
                number = place + 1 < len(given) and NUMBER.fullmatch(given[place + 1])
                given[place : place + 1 + bool(number)] = [f"--watch={given[place + 1] if number else EVERY}"]
                break
        return super().parse_args(ctx, given)


@click.command(cls=_Watchable, short_help="Count messages by state.")
@queue_argument("names", nargs=-1, metavar="[QUEUE]...")
@click.option("--watch", type=float, metavar="[SECONDS]", help="Count again and again, every 2 seconds by default.")
@url_option
@json_option
def stats(names: tuple[str, ...], watch: float | None, url: str, as_json: bool) -> None:
    """Count the messages of each QUEUE, or of all queues, by state.

    With --watch it is a live table with rates, until Ctrl-C; with --json as well, one JSON document a line. Counting
    costs storage requests, which the table shows: on a store that bills them, watch seldom.

    \b
    Examples:
      brigade stats
      brigade stats tasks --json | jq .tasks.ready
      brigade stats tasks --watch 5
    """
    if watch is not None and not 0.1 <= watch <= 86400:
        raise click.UsageError(f"--watch is {watch:g}; use 0.1 to 86400 seconds")
    with connected(url) as hub:
        if watch is not None:
            _watch(hub, names, watch, as_json=as_json)
            return
        found = {name: hub.queue(name, create=False).stats() for name in chosen(hub, names)}
    if as_json:
        print_json(found)
        return
    console().print(_table(found))
    if line := cost_line(url, hub.requests()):
        click.echo(line)


def _table(found: dict[str, Stats], rates: dict[str, Rates] | None = None) -> Table:
    heads = [*COUNTS.values(), "oldest"] if rates is None else [*SHORT, "oldest", "in/s", "done/s"]
    shown = table("queue", *heads, numbers=True)
    for name, counts in found.items():
        values = msgspec.structs.asdict(counts)
        label = f"{name} (paused)" if counts.paused else name
        flow = [] if rates is None else [_rate(rates[name].enqueued), _rate(rates[name].done)]
        shown.add_row(label, *(f"{values[count]:,}" for count in COUNTS), age(counts.oldest_age), *flow)
    return shown


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


class Rates(msgspec.Struct, frozen=True):
    """Messages a second since the last count; None where there is nothing to compare with."""

    enqueued: float | None = None
    done: float | None = None

    @classmethod
    def between(cls, before: Stats | None, now: Stats, seconds: float) -> Rates:
        """A purge, or history that was dropped, makes counts fall: that is no rate."""
        if before is None or seconds <= 0:
            return cls()
        added, ended = now.total - before.total, _ended(now) - _ended(before)
        return cls(added / seconds if added >= 0 else None, ended / seconds if ended >= 0 else None)


def _ended(counts: Stats) -> int:
    return counts.succeeded + counts.failed + counts.dead_lettered


class Sample(msgspec.Struct, frozen=True):
    """One count of all queues, and what it cost."""

    found: dict[str, Stats]
    rates: dict[str, Rates]
    requests: int

    def line(self) -> dict[str, Any]:
        queues = {
            name: {
                **msgspec.structs.asdict(counts),
                "enqueued_per_second": self.rates[name].enqueued,
                "done_per_second": self.rates[name].done,
            }
            for name, counts in self.found.items()
        }
        return {"at": when(to_datetime(SystemClock().now())), "requests": self.requests, "queues": queues}


def _samples(hub: Hub, names: tuple[str, ...]) -> Iterator[Sample]:
    """A count whenever one is asked for. New queues are found now and then."""
    opened: dict[str, Queue] = {}
    last: dict[str, Stats] = {}
    counted = listed = float("-inf")
    while True:
        before = sum(hub.requests().values())
        if time.monotonic() - listed > RELIST:
            opened = {name: opened.get(name) or hub.queue(name, create=False) for name in chosen(hub, names)}
            listed = time.monotonic()
        found = {name: queue.stats() for name, queue in opened.items()}
        now = time.monotonic()
        rates = {name: Rates.between(last.get(name), counts, now - counted) for name, counts in found.items()}
        last, counted = found, now
        yield Sample(found, rates, sum(hub.requests().values()) - before)


def _watch(hub: Hub, names: tuple[str, ...], every: float, *, as_json: bool) -> None:
    """Show counts until somebody presses Ctrl-C, which is how this is meant to end."""
    samples = _samples(hub, names)
    screen = console()
    with contextlib.suppress(KeyboardInterrupt):
        if as_json or not screen.is_terminal:
            for sample in samples:
                if as_json:
                    click.echo(msgspec.json.encode(sample.line()))
                else:
                    screen.print(_table(sample.found, sample.rates))
                time.sleep(every)
        from rich.live import Live

        with Live(_picture(next(samples), every), console=screen, auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(_picture(next(samples), every), refresh=True)


def _picture(sample: Sample, every: float) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    note = f"every {every:g} s, {sample.requests} storage requests each time; Ctrl-C ends"
    return Group(_table(sample.found, sample.rates), Text(note, style="dim"))
