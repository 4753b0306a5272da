"""What the commands share: the store they work on, and how they print."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import click
import msgspec

import brigade
from brigade.cli.app import Nothing

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["age", "connected", "console", "json_option", "print_json", "table", "url_option", "when"]

DEFAULT_URL = "file://./.brigade"
F = TypeVar("F", bound=Callable[..., Any])


def url_option(command: F) -> F:
    """The store's URL: after the command, before it, from BRIGADE_URL, or the default."""
    return click.option(
        "--url", metavar="URL", callback=_url, help="The store. Also BRIGADE_URL; default file://./.brigade"
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")(command)


def _url(context: click.Context, _: click.Parameter, value: str | None) -> str:
    url = value or context.find_root().obj or os.environ.get("BRIGADE_URL") or DEFAULT_URL
    if url.startswith("memory:"):
        raise click.UsageError("memory:// lives inside one process and ends with this command; use file://PATH")
    return url


@contextlib.contextmanager
def connected(url: str, *, create: bool = False) -> Generator[brigade.Hub, None, None]:
    """An open hub. Looking at a store that isn't there makes none: that is `Nothing`."""
    hub = brigade.Hub(url)
    if not create and url.startswith("file://"):
        place = unquote(url.removeprefix("file://").partition("?")[0])
        if place and not Path(place).exists():
            raise Nothing(f"there is no store at {place}; `brigade enqueue` makes one")
    with hub:
        yield hub


def print_json(value: Any) -> None:
    """One JSON document, indented."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def table(*columns: str, numbers: bool = False) -> Table:
    """A plain table; with `numbers` all columns but the first are aligned to the right."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, name in enumerate(columns):
        made.add_column(name, justify="right" if numbers and place else "left", overflow="fold")
    return made


def age(seconds: float) -> str:
    """A length of time in its largest unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return "–" if seconds <= 0 else "< 1 s"


def when(moment: datetime | None) -> str | None:
    """A time as ISO 8601 in UTC, to the millisecond."""
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
