"""What the commands share: the store they work on, what they ask, and how they print."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Generator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

import brigade
from brigade.cli.app import Nothing
from brigade.cli.text import ascii_json, visible
from brigade.stores.opening import local_place

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "age",
    "check_place",
    "confirm",
    "connected",
    "console",
    "counted",
    "json_option",
    "print_json",
    "queue_argument",
    "say",
    "table",
    "url_option",
    "when",
    "yes_option",
]

DEFAULT_URL = "file://./.brigade"
COMPLETION_PATIENCE = 1.0
F = TypeVar("F", bound=Callable[..., Any])


def url_option(command: F) -> F:
    """The store's URL: after the command, before it, from BRIGADE_URL, or the default."""
    taken = click.option(
        "--token-file",
        metavar="FILE",
        callback=_token_file,
        expose_value=False,
        help="Holds the token for http(s)://. Also BRIGADE_TOKEN_FILE, BRIGADE_TOKEN.",
    )(command)
    return click.option(
        "--url", metavar="URL", callback=_url, help="The store. Also BRIGADE_URL; default file://./.brigade"
    )(taken)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for machines.")(command)


def yes_option(command: F) -> F:
    return click.option("--yes", "-y", is_flag=True, help="Don't ask.")(command)


def queue_argument(name: str = "queue", **options: Any) -> Callable[[F], F]:
    """A queue's name, completed from the store."""
    return click.argument(name, shell_complete=_complete_queue, **options)


def _url(context: click.Context, _: click.Parameter, value: str | None) -> str:
    url = value or context.find_root().params.get("url") or os.environ.get("BRIGADE_URL") or DEFAULT_URL
    if url.startswith("memory:"):
        raise click.UsageError("memory:// lives inside one process and ends with this command; use file://PATH")
    return url


def _token_file(_context: click.Context, _: click.Parameter, value: str | None) -> None:
    """A token's file reaches every connection of this command, those of its workers included, and no process list."""
    if value is not None:
        os.environ.pop("BRIGADE_TOKEN", None)
        os.environ["BRIGADE_TOKEN_FILE"] = str(Path(value).absolute())


def _complete_queue(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The queues of the store that begin like this; none if anything at all goes wrong, or takes long."""
    found: list[str] = []

    def look() -> None:
        with contextlib.suppress(Exception), connected(context.params.get("url") or _url(context, _, None)) as hub:
            found.extend(hub.queues())

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(COMPLETION_PATIENCE)
    return [name for name in found if name.startswith(incomplete)]


def check_place(url: str) -> None:
    """Looking at a store that isn't there makes none: that is `Nothing`."""
    place = local_place(url)
    if place and not Path(place).exists():
        raise Nothing(f"there is no store at {place}; `brigade enqueue` makes one")


@contextlib.contextmanager
def connected(url: str, *, create: bool = False) -> Generator[brigade.Hub, None, None]:
    """An open hub. Without `create` the store must be there."""
    hub = brigade.Hub(url)
    if not create:
        check_place(url)
    with hub:
        yield hub


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if the user says so. Where nobody can be asked, that takes --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask at; say --yes if you mean it")
    click.confirm(visible(question), abort=True, err=True)


def print_json(value: Any) -> None:
    """One JSON document, indented."""
    click.echo(ascii_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()))


def say(text: str, *, err: bool = False) -> None:
    """One line for people, whatever is in it."""
    click.echo(visible(text), err=err)


def counted(number: int, what: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def table(*columns: str, numbers: bool = False) -> Table:
    """A plain table; with `numbers` all columns but the first are aligned to the right."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0) if len(columns) > 8 else (0, 1))
    for place, name in enumerate(columns):
        number = numbers and place > 0
        made.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=number)
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
