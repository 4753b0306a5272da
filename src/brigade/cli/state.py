"""`brigade state`: the workflow state beside a message, loaded and saved by compare-and-swap."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from brigade.cli.app import Nothing
from brigade.cli.common import connected, json_option, print_json, say, url_option
from brigade.cli.lease import PREFIX, lease_options, shell, told
from brigade.cli.text import ascii_json

__all__ = ["state"]

_NOTHING_SAVED = object()


@click.group(short_help="Workflow state beside a message.")
def state() -> None:
    """Load and save the JSON value beside a message. It survives retries and goes along to the dead-letter queue.

    The message is the one that `dequeue --stateful` exported, or that the options name.

    \b
    Examples:
      brigade state load
      eval "$(brigade state save '{"step": 2}')"
    """


@state.command(short_help="Print the state.")
@lease_options(token=False)
@url_option
@json_option
def load(url: str, as_json: bool, **lease: Any) -> None:
    """Print the workflow state of a message as JSON. Where nothing was saved yet, ends with 3.

    \b
    Examples:
      brigade state load | jq .step
      brigade state load --queue tasks --id order-42 --json
    """
    which = told(lease)
    with connected(url) as hub:
        queue = hub.queue(which.name, create=False)
        message = which.message(queue, token=False)
        handle = queue.state(message)
        value = handle.load(_NOTHING_SAVED)
    if value is _NOTHING_SAVED:
        raise Nothing(f"message {message.id!r} has no workflow state yet; `brigade state save` makes one")
    if as_json:
        print_json({"queue": message.queue, "id": message.id, "etag": handle.etag, "state": value})
    else:
        click.echo(ascii_json(msgspec.json.encode(value).decode()))


@state.command(short_help="Replace the state.")
@click.argument("value", metavar="JSON")
@lease_options(token=False)
@click.option("--etag", metavar="ETAG", help="What `load` or the last `save` gave; also BRIGADE_QUEUE_STATE_ETAG.")
@url_option
@json_option
def save(value: str, etag: str | None, url: str, as_json: bool, **lease: Any) -> None:
    """Save a JSON value, or standard input with `-`, over the state that was last loaded or saved.

    If somebody else has saved since, ends with 4 and changes nothing: load again and decide. Without an etag it is
    the first save. Standard output is an export of the new BRIGADE_QUEUE_STATE_ETAG, for `eval`; the next save
    needs it.

    \b
    Examples:
      eval "$(brigade state save '{"step": 2}')"
      jq '.step += 1' "$BRIGADE_QUEUE_STATE_PATH" | brigade state save -
    """
    which = told(lease)
    wanted = _parsed(sys.stdin.buffer.read() if value == "-" else value.encode())
    with connected(url) as hub:
        queue = hub.queue(which.name, create=False)
        message = which.message(queue, token=False)
        handle = queue.state(message, etag=etag or which.etag)
        handle.save(wanted)
        now = handle.etag
    path = os.environ.get(f"{PREFIX}STATE_PATH") if which.exported else None
    if path and Path(path).is_file():
        Path(path).write_bytes(msgspec.json.encode(wanted))
    if as_json:
        print_json({"queue": message.queue, "id": message.id, "etag": now})
        return
    click.echo(shell({f"{PREFIX}STATE_ETAG": now}, terminal=sys.stdout.isatty()), nl=False)
    say(f"workflow state of {message.id} saved", err=True)


def _parsed(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise click.UsageError(f"the state is not JSON ({error}); text needs quotes: '\"text\"'") from None
