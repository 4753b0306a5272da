"""`brigade work`: runs a handler on the messages of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from brigade.cli.common import connected, json_option, queue_argument, url_option
from brigade.cli.work_handler import find_handler
from brigade.cli.work_screen import Screen, start_logging

if TYPE_CHECKING:
    from brigade.sync import Hub, Queue

__all__ = ["work"]

EXECUTORS = ("thread", "process")
LEVELS = ("debug", "info", "warning", "error")


@click.command(short_help="Run a handler on a queue's messages.")
@queue_argument()
@click.argument("handler", metavar="MODULE:FUNCTION")
@click.option("--concurrency", type=int, default=8, show_default=True, metavar="N", help="Handlers at a time.")
@click.option("--executor", type=click.Choice(EXECUTORS), default="thread", show_default=True, help="Where they run.")
@click.option("--queue", "others", multiple=True, metavar="NAME[=WEIGHT]", help="Another queue. May be given again.")
@click.option("--grace", type=float, default=30.0, show_default=True, metavar="SECONDS", help="At the end.")
@click.option("--drain", is_flag=True, help="End when all work is done.")
@click.option("--max-idle", type=float, metavar="SECONDS", help="End after this long with nothing to do.")
@click.option("--worker-id", metavar="NAME", help="Under which name leases are held.")
@click.option("--execution-timeout", type=float, metavar="SECONDS", help="A limit on handlers. Default: the policy's.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="What is logged.")
@url_option
@json_option
def work(
    queue: str,
    handler: str,
    others: tuple[str, ...],
    drain: bool,
    max_idle: float | None,
    log_level: str,
    url: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Run FUNCTION of MODULE on each message of QUEUE, which is created if need be. MODULE may lie in this directory.

    FUNCTION takes a message, and a context if it wants; it may be `async def`. What it returns is the result; if it
    raises, the message is retried. Leases are kept while it runs. SIGTERM or Ctrl-C: no more messages are claimed,
    handlers may finish within --grace, the rest is given back, and it ends with 0. A second one doesn't wait.

    On a terminal there is a status line, elsewhere log lines on standard error; with --json, each event is a line on
    standard output.

    \b
    Examples:
      brigade work tasks tasks:handle
      brigade work images resize:handle --executor process --concurrency 4
      brigade work tasks tasks:handle --queue urgent=3 --drain
    """
    from brigade.worker import Worker

    function = find_handler(handler)
    start_logging("error" if as_json and log_level == "info" else log_level)
    with connected(url, create=True) as hub:
        worker = Worker(_queues(hub, queue, others), function, **options)
        with Screen(hub, worker, as_json=as_json, max_idle=max_idle):
            worker.run(until_empty=drain)


def _queues(hub: Hub, first: str, others: tuple[str, ...]) -> dict[Queue, int]:
    """Each queue and its weight."""
    chosen = {hub.queue(first): 1}
    for other in others:
        name, mark, weight = other.partition("=")
        if mark and not (weight.isascii() and weight.isdigit()):
            raise click.UsageError(f"--queue {other!r} is not NAME or NAME=WEIGHT; the weight is a whole number")
        chosen[hub.queue(name)] = int(weight) if mark else 1
    return chosen
