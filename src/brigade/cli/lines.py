"""JSON lines as messages: in batches, with a progress bar, each line a payload or a payload with options."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, Any, cast

import click
import msgspec

from brigade.cli.common import console, counted
from brigade.errors import ConfigError
from brigade.payload import NewMessage, outgoing
from brigade.sync import Queue

__all__ = ["Done", "enqueue_lines"]

LINES_AT_ONCE = 1000
FIELDS = msgspec.structs.fields(NewMessage)
NAMES = {field.name for field in FIELDS}


class Done(msgspec.Struct):
    """How many messages went in, and how many had been enqueued before."""

    added: int = 0
    duplicates: int = 0

    def told(self) -> str:
        again = f"; {self.duplicates:,} more had been enqueued before" if self.duplicates else ""
        return f"{counted(self.added, 'message')} enqueued{again}"


def enqueue_lines(queue: Queue, source: IO[bytes], options: dict[str, Any], *, fields: bool) -> Done:
    """Each line is a message; a bad line stops before anything of its batch is written."""
    done = Done()
    numbered = enumerate(source, 1)
    with _progress(source) as advance:
        while batch := list(itertools.islice(numbered, LINES_AT_ONCE)):
            filled = [(number, line) for number, line in batch if line.strip()]
            values = [_value(line, number, done) for number, line in filled]
            numbers = [number for number, _ in filled]
            if fields:
                values = [_message(value, number, done, options) for value, number in zip(values, numbers, strict=True)]
            try:
                receipts = queue.enqueue_many(values, **options)
            except ConfigError:
                _blame(values, numbers, done, options)
                raise
            again = sum(receipt.duplicate for receipt in receipts)
            done.duplicates += again
            done.added += len(receipts) - again
            advance(sum(len(line) for _, line in batch))
    return done


def _value(line: bytes, number: int, done: Done) -> Any:
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _refused(number, f"is not JSON ({error})", done) from None


def _message(value: Any, number: int, done: Done, options: dict[str, Any]) -> NewMessage:
    """A line that brings options of its own."""
    if not isinstance(value, dict) or "payload" not in value:
        raise _refused(number, 'is not an object with a "payload"', done)
    given = cast("dict[str, Any]", value)
    unknown = sorted(given.keys() - NAMES)
    if unknown:
        raise _refused(number, f"has the unknown field {unknown[0]!r}; use {', '.join(sorted(NAMES))}", done)
    try:
        return msgspec.convert({**options, **given}, NewMessage)
    except msgspec.ValidationError as error:
        raise _refused(number, f"has a bad field: {error}", done) from None


def _blame(values: list[Any], numbers: list[int], done: Done, options: dict[str, Any]) -> None:
    """Name the line that was refused. Nothing is written before all of a batch has been checked."""
    for value, number in zip(values, numbers, strict=True):
        try:
            outgoing(value if isinstance(value, NewMessage) else NewMessage(payload=value, **options))
        except ConfigError as error:
            raise _refused(number, f"is refused: {error}", done) from None


def _refused(number: int, what: str, done: Done) -> click.ClickException:
    before = done.added + done.duplicates
    return click.ClickException(
        f"line {number} {what}; of the lines before it {before:,} were enqueued, the last batch was not"
    )


@contextlib.contextmanager
def _progress(source: IO[bytes]) -> Generator[Callable[[int], None], None, None]:
    """A bar on standard error while a file is read, if that is a terminal."""
    errors = console(stderr=True)
    if not errors.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    size = Path(source.name).stat().st_size if source is not sys.stdin.buffer else None
    columns = (TextColumn("enqueue"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as progress:
        task = progress.add_task("enqueue", total=size)
        yield lambda count: progress.advance(task, count)
