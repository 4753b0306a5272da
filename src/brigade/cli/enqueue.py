"""`brigade enqueue`: messages from arguments, standard input, a file or JSON lines."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import click
import msgspec

from brigade.cli.common import connected, console, json_option, print_json, url_option
from brigade.sync import Queue

__all__ = ["enqueue"]

LINES_AT_ONCE = 1000
SNIFFED = 256 * 1024


@click.command(short_help="Add messages to a queue.")
@click.argument("queue")
@click.argument("payloads", nargs=-1, metavar="[PAYLOAD]...")
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Send this file.")
@click.option("--lines", is_flag=True, help="Read JSON lines, from --file or standard input: one message each.")
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
    text: bool,
    own_id: str | None,
    attributes: tuple[str, ...],
    url: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Add messages to QUEUE, which is created if need be, and print their ids.

    Each PAYLOAD is a message. Without one, or with `-`, standard input is one message, of any size. A JSON
    object or array is stored as JSON, other text as text, anything else as bytes.

    \b
    Examples:
      brigade enqueue tasks '{"type": "email"}'
      brigade enqueue tasks hello --priority 0 --delay 60
      brigade enqueue videos --file film.mp4 --content-type video/mp4
      jq -c '.[]' orders.json | brigade enqueue orders --lines
    """
    if path and payloads:
        raise click.UsageError("give payloads or --file, not both")
    if lines and (payloads or own_id):
        raise click.UsageError("--lines takes neither payloads nor --id")
    if own_id and len(payloads) > 1:
        raise click.UsageError("--id names one message; give one payload")
    options["attributes"] = _attributes(attributes)
    with connected(url, create=True) as hub:
        target = hub.queue(queue)
        if lines:
            with _opened(path) as source:
                count = _enqueue_lines(target, source, options)
            if as_json:
                print_json({"queue": queue, "enqueued": count})
            else:
                click.echo(f"{count} messages enqueued")
            return
        receipts = [target.enqueue(payload, id=own_id, **options) for payload in _payloads(payloads, path, text=text)]
    if as_json:
        print_json(receipts)
        return
    for receipt in receipts:
        click.echo(receipt.id)
        if receipt.duplicate:
            click.echo(f"brigade: {receipt.id} had been enqueued before; it was not added again", err=True)


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


def _payloads(given: tuple[str, ...], path: Path | None, *, text: bool) -> Iterator[Any]:
    """What to enqueue: values, or something to stream from."""
    if path is not None:
        with path.open("rb") as file:
            yield file
        return
    if not given and sys.stdin.isatty():
        raise click.UsageError("give a payload, --file, or something on standard input")
    for payload in given or ("-",):
        if payload != "-":
            yield _parsed(payload, text=text)
            continue
        head = sys.stdin.buffer.read(SNIFFED + 1)
        if len(head) > SNIFFED:
            yield _joined(head, sys.stdin.buffer)
            continue
        try:
            yield _parsed(head.decode(), text=text)
        except UnicodeDecodeError:
            yield head


def _parsed(payload: str, *, text: bool) -> Any:
    """A JSON object or array as its value; anything else as it is."""
    if text or payload.lstrip()[:1] not in ("{", "["):
        return payload
    try:
        return msgspec.json.decode(payload)
    except msgspec.DecodeError:
        return payload


def _joined(head: bytes, rest: IO[bytes]) -> Iterator[bytes]:
    yield head
    while chunk := rest.read(SNIFFED):
        yield chunk


def _enqueue_lines(queue: Queue, source: IO[bytes], options: dict[str, Any]) -> int:
    """Each line is a message; a line that is not JSON stops before anything of its batch is written."""
    total = 0
    numbered = enumerate(source, 1)
    with _progress(source) as moved:
        while batch := list(itertools.islice(numbered, LINES_AT_ONCE)):
            values = [_line(line, number, total) for number, line in batch if line.strip()]
            total += len(queue.enqueue_many(values, **options))
            moved(sum(len(line) for _, line in batch))
    return total


def _line(line: bytes, number: int, done: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise click.ClickException(
            f"line {number} is not JSON ({error}); {done} messages before it were enqueued, this batch was not"
        ) from None


@contextlib.contextmanager
def _progress(source: IO[bytes]) -> Generator[Callable[[int], None], None, None]:
    """A bar on standard error while a file is read, if that is a terminal."""
    errors = console(stderr=True)
    if not errors.is_terminal:
        yield _ignore
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    size = Path(source.name).stat().st_size if source is not sys.stdin.buffer else None
    columns = (TextColumn("enqueue"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("enqueue", total=size)

        def advance(count: int) -> None:
            progress.advance(task, count)

        yield advance


def _ignore(_: int) -> None:
    """Nobody watches."""
