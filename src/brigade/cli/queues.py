"""`brigade queues`, `brigade stats` and `brigade sweep`: queues as a whole."""

from __future__ import annotations

import click
import msgspec

from brigade.cli.app import Nothing
from brigade.cli.bench import cost_line
from brigade.cli.common import age, connected, console, json_option, print_json, table, url_option
from brigade.sync import Hub

__all__ = ["queues", "stats", "sweep"]

COUNTS = {
    "ready": "ready",
    "delayed": "delayed",
    "in_flight": "in flight",
    "succeeded": "succeeded",
    "failed": "failed",
    "dead_lettered": "dead",
}


@click.command(short_help="List the queues of a store.")
@url_option
@json_option
def queues(url: str, as_json: bool) -> None:
    """List the queues of the store, one name a line.

    \b
    Examples:
      brigade queues
      BRIGADE_URL=file:///var/lib/jobs brigade queues --json
    """
    with connected(url) as hub:
        names = hub.queues()
    if as_json:
        print_json(names)
    if not names:
        raise Nothing("the store has no queues yet; `brigade enqueue` makes one")
    if not as_json:
        click.echo("\n".join(names))


@click.command(short_help="Count messages by state.")
@click.argument("names", nargs=-1, metavar="[QUEUE]...")
@url_option
@json_option
def stats(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """Count the messages of each QUEUE, or of all queues, by state.

    \b
    Examples:
      brigade stats
      brigade stats tasks --json | jq .tasks.ready
    """
    with connected(url) as hub:
        found = {name: hub.queue(name, create=False).stats() for name in _chosen(hub, names)}
    if as_json:
        print_json(found)
        return
    shown = table("queue", *COUNTS.values(), "oldest", numbers=True)
    for name, counts in found.items():
        values = msgspec.structs.asdict(counts)
        label = f"{name} (paused)" if counts.paused else name
        shown.add_row(label, *(f"{values[count]:,}" for count in COUNTS), age(counts.oldest_age))
    console().print(shown)
    if line := cost_line(url, hub.requests()):
        click.echo(line)


@click.command(short_help="Finish what crashes left behind.")
@click.argument("names", nargs=-1, metavar="[QUEUE]...")
@url_option
@json_option
def sweep(names: tuple[str, ...], url: str, as_json: bool) -> None:
    """Finish what crashed processes left in each QUEUE, or in all queues, and drop history past its retention.

    Claimers do this by themselves now and then; this does it at once. It is safe at any time.

    \b
    Examples:
      brigade sweep
      brigade sweep tasks --json
    """
    with connected(url) as hub:
        found = {name: hub.queue(name, create=False).sweep() for name in _chosen(hub, names)}
    if as_json:
        print_json(found)
        return
    kinds = list(dict.fromkeys(kind for done in found.values() for kind in done))
    shown = table("queue", *kinds, numbers=True)
    for name, done in found.items():
        shown.add_row(name, *(f"{done[kind]:,}" for kind in kinds))
    console().print(shown)


def _chosen(hub: Hub, names: tuple[str, ...]) -> list[str]:
    found = list(names) or hub.queues()
    if not found:
        raise Nothing("the store has no queues yet; `brigade enqueue` makes one")
    return found
