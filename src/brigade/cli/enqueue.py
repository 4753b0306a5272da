"""`brigade enqueue`: messages from arguments, standard input, a file or JSON lines."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from brigade.cli.common import connected, json_option, print_json, queue_argument, say, url_option
from brigade.cli.lines import enqueue_lines
from brigade.cli.text import visible
from brigade.model import JSON_TYPE, TEXT_TYPE

__all__ = ["enqueue"]

SNIFFED = 256 * 1024


@click.command(short_help="Add messages to a queue.")
@queue_argument()
@click.argument("payloads", nargs=-1, metavar="[PAYLOAD]...")
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Send this file.")
@click.option("--lines", is_flag=True, help="Read JSON lines, from --file or standard input: one message each.")
@click.option("--fields", is_flag=True, help="Each line is an object with a payload and options of its own.")
@click.option("--text", is_flag=True, help="Store as text even what looks like JSON.")
@click.option("--priority", type=click.IntRange(0, 9), default=5, show_default=True, help="0 is the most urgent.")
@click.option("--delay", type=float, default=0.0, metavar="SECONDS", help="Hand it out only after this long.")
@click.option("--id", "own_id", metavar="ID", help="An id of your own: a second message with it is not added.")
@click.option("--group", metavar="NAME", help="Messages of a group are handed out strictly in order.")
@click.option("--ttl", type=float, metavar="SECONDS", help="Fail it if nobody has claimed it by then.")
@click.option("--max-attempts", type=int, metavar="N", help="Hand it out at most N times.")
@click.option("--attribute", "attributes", multiple=True, metavar="KEY=VALUE", help="May be given several times.")
@click.option("--correlation-id", metavar="ID", help="Follows the message everywhere.")
@click.option("--content-type", metavar="TYPE", help="The media type of the payload.")
@url_option
@json_option
def enqueue(
    queue: str,
    payloads: tuple[str, ...],
    path: Path | None,
    lines: bool,
    fields: bool,
    text: bool,
    own_id: str | None,
    attributes: tuple[str, ...],
    content_type: str | None,
    url: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Add messages to QUEUE, which is created if need be, and print their ids.

    Each PAYLOAD is a message. Without one, or with `-`, standard input is one message, of any size. A JSON
    object or array is stored as JSON, other text as text, anything else, and all over 256 KiB, as bytes.

    With --fields a line is such as {"payload": …, "id": …, "priority": …, "delay": …, "group": …, "ttl": …,
    "max_attempts": …, "attributes": …, "correlation_id": …, "content_type": …}; what it leaves out is taken from the
    options.

    \b
    Examples:
      brigade enqueue tasks '{"type": "email"}'
      brigade enqueue tasks hello --priority 0 --delay 60
      brigade enqueue videos --file film.mp4 --content-type video/mp4
      jq -c '.[]' orders.json | brigade enqueue orders --lines
      jq -c '.[] | {id, payload: .}' orders.json | brigade enqueue orders --fields
    """
    lines = lines or fields
    if path and payloads:
        raise click.UsageError("give payloads or --file, not both")
    if lines and (payloads or own_id):
        raise click.UsageError("--lines and --fields take neither payloads nor --id")
    if own_id and len(payloads) > 1:
        raise click.UsageError("--id names one message; give one payload")
    options["attributes"] = _attributes(attributes)
    with connected(url, create=True) as hub:
        target = hub.queue(queue)
        if lines:
            with _opened(path) as source:
                done = enqueue_lines(target, source, {**options, "content_type": content_type}, fields=fields)
            if as_json:
                print_json({"queue": queue, "enqueued": done.added, "duplicates": done.duplicates})
            else:
                say(done.told())
            return
        receipts = [
            target.enqueue(payload, id=own_id, content_type=content_type or kind, **options)
            for payload, kind in _payloads(payloads, path, text=text, plain=content_type is not None)
        ]
    if as_json:
        print_json(receipts)
        return
    for receipt in receipts:
        # A pipe gets the id as it is, to go on with; a terminal gets it so that it does no harm.
        print(visible(receipt.id) if sys.stdout.isatty() else receipt.id)
        if receipt.duplicate:
            say(f"brigade: {receipt.id} had been enqueued before; it was not added again", err=True)


def _attributes(pairs: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        key, mark, value = pair.partition("=")
        if not mark or not key:
            raise click.UsageError(f"--attribute {pair!r} is not KEY=VALUE")
        found[key] = value
    return found


@contextlib.contextmanager
def _opened(path: Path | None) -> Generator[IO[bytes], None, None]:
    """The file, or standard input."""
    if path is None:
        yield sys.stdin.buffer
        return
    with path.open("rb") as file:
        yield file


def _payloads(
    given: tuple[str, ...], path: Path | None, *, text: bool, plain: bool
) -> Iterator[tuple[bytes | Iterator[bytes], str | None]]:
    """What to enqueue, byte for byte, and what it seems to be: something to stream from where it is large."""
    if not given and path is None and sys.stdin.isatty():
        raise click.UsageError("give a payload, --file, or something on standard input")
    for payload in given or ("-",):
        if payload != "-":
            raw = os.fsencode(payload)
            yield raw, _kind(raw, text=text)
            continue
        with _opened(path) as source:
            head = source.read(SNIFFED + 1)
            if len(head) > SNIFFED:
                yield itertools.chain((head,), iter(lambda: source.read(SNIFFED), b"")), None
            else:
                yield head, None if plain else _kind(head, text=text)


def _kind(payload: bytes, *, text: bool) -> str | None:
    """JSON if it is an object or array, text if it is text, else None."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return None
    if not text and payload.lstrip()[:1] in (b"{", b"["):
        try:
            msgspec.json.decode(payload)
        except (msgspec.DecodeError, RecursionError):
            return TEXT_TYPE
        return JSON_TYPE
    return TEXT_TYPE
