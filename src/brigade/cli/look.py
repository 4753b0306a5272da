"""`brigade peek` and `brigade get`: looking at messages without touching them."""

from __future__ import annotations

import sys

import click

from brigade.cli.app import Nothing
from brigade.cli.common import age, connected, console, json_option, print_json, queue_argument, table, url_option
from brigade.cli.show import facts, print_facts, short_payload
from brigade.cli.text import cell
from brigade.clock import SystemClock

__all__ = ["get", "peek"]


@click.command(short_help="Show what would be handed out next.")
@queue_argument()
@click.option("--limit", type=click.IntRange(1, 10_000), default=10, show_default=True, help="At most this many.")
@url_option
@json_option
def peek(queue: str, limit: int, url: str, as_json: bool) -> None:
    """Show the messages of QUEUE that a claim would get now, in order. Nothing is leased.

    \b
    Examples:
      brigade peek tasks
      brigade peek tasks --limit 100 --json | jq '.[].data'
    """
    with connected(url) as hub:
        found = hub.queue(queue, create=False).peek(limit)
    if as_json:
        print_json([facts(info) for info in found])
    if not found:
        raise Nothing(f"queue {queue!r} has nothing to hand out now")
    if as_json:
        return
    shown = table("id", "prio", "tries", "age", "payload")
    shown.columns[0].no_wrap = max(len(info.id) for info in found) <= 60
    now = SystemClock().now()
    for info in found:
        waited = age((now - info.enqueued_at_ms) / 1000)
        tries = f"{info.attempts} of {info.max_attempts}"
        shown.add_row(cell(info.id), str(info.priority), tries, waited, cell(short_payload(info)))
    console().print(shown)


@click.command(short_help="Show one message by its id.")
@queue_argument()
@click.argument("id", metavar="ID")
@click.option("--payload", is_flag=True, help="Write only the payload, byte for byte.")
@url_option
@json_option
def get(queue: str, id: str, payload: bool, url: str, as_json: bool) -> None:
    """Show the message ID of QUEUE, waiting, in flight or ended.

    The payload of a message that has ended, or that is stored apart (over 256 KiB), is not shown.

    \b
    Examples:
      brigade get tasks order-42
      brigade get tasks order-42 --json | jq .state
    """
    with connected(url) as hub:
        info = hub.queue(queue, create=False).get(id)
    if payload:
        if info.body is None:
            raise Nothing(f"the payload of message {id!r} is stored apart, or its message has ended")
        _write(info.body)
    elif as_json:
        print_json(facts(info))
    else:
        print_facts(facts(info))


def _write(body: bytes) -> None:
    """Byte for byte, but not to a terminal that it could upset."""
    if sys.stdout.isatty() and not _harmless(body):
        raise click.UsageError("the payload has control characters; send it to a file or a pipe")
    sys.stdout.buffer.write(body)


def _harmless(body: bytes) -> bool:
    try:
        return all(line.replace("\t", "").isprintable() for line in body.decode().split("\n"))
    except UnicodeDecodeError:
        return False
