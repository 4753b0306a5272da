"""`brigade peek` and `brigade get`: looking at messages without touching them."""

from __future__ import annotations

import base64
import sys
from typing import Any

import click
import msgspec

from brigade.cli.app import Nothing
from brigade.cli.common import age, connected, console, json_option, print_json, table, url_option, when
from brigade.clock import SystemClock
from brigade.model import FailureInfo, MessageInfo

__all__ = ["get", "peek"]


@click.command(short_help="Show what would be handed out next.")
@click.argument("queue")
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
        print_json([_plain(info) for info in found])
    if not found:
        raise Nothing(f"queue {queue!r} has nothing to hand out now")
    if as_json:
        return
    shown = table("id", "prio", "tries", "age", "payload")
    shown.columns[0].no_wrap = True
    now = SystemClock().now()
    for info in found:
        waited = age((now - info.enqueued_at_ms) / 1000)
        tries = f"{info.attempts} of {info.max_attempts}"
        shown.add_row(info.id, str(info.priority), tries, waited, _short(info))
    console().print(shown)


@click.command(short_help="Show one message by its id.")
@click.argument("queue")
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
        sys.stdout.buffer.write(info.body)
        return
    if as_json:
        print_json(_plain(info))
        return
    shown = table("", "")
    shown.show_header = False
    for name, value in _plain(info).items():
        if value is not None and value != {}:
            shown.add_row(name, value if isinstance(value, str) else msgspec.json.encode(value).decode())
    console().print(shown)


def _plain(info: MessageInfo) -> dict[str, Any]:
    """The message as JSON values. Bytes are given as base64."""
    return {
        "id": info.id,
        "queue": info.queue,
        "state": info.state.value,
        "outcome": info.outcome,
        "priority": info.priority,
        "attempts": info.attempts,
        "max_attempts": info.max_attempts,
        "enqueued_at": when(info.enqueued_at),
        "due_at": when(info.due_at),
        "finished_at": when(info.finished_at),
        "owner": info.owner,
        "lease_version": info.lease_version or None,
        "correlation_id": info.correlation_id,
        "group": info.group,
        "attributes": dict(info.attributes),
        "content_type": info.content_type,
        "size": info.size,
        "data": _data(info),
        "error": info.error,
        "result": info.result,
        "failure": None if info.failure is None else _failure(info.failure),
    }


def _data(info: MessageInfo) -> Any:
    value = info.data
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _failure(failure: FailureInfo) -> dict[str, Any]:
    return {
        "queue": failure.queue,
        "id": failure.id,
        "reason": failure.reason,
        "error": failure.error,
        "attempts": failure.attempts,
        "failed_at": when(failure.failed_at),
        "enqueued_at": when(failure.enqueued_at),
    }


def _short(info: MessageInfo) -> str:
    if info.body is None:
        return f"({info.size:,} bytes, {info.content_type})"
    value = _data(info)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:59]}…"
