"""A policy from options or a JSON file, and a policy as a table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import msgspec

from brigade.cli.common import table
from brigade.cli.text import cell
from brigade.errors import ConfigError
from brigade.policy import QueuePolicy, decode_policy, encode_policy

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["changed", "policy_options", "policy_table"]

F = TypeVar("F", bound=Callable[..., Any])
MODES = ("retry", "dead-letter", "hybrid")
FIELDS: dict[str, tuple[str, ...]] = {
    "ordering": ("ordering",),
    "strict": ("ordering_guarantee",),
    "visibility": ("visibility_timeout",),
    "execution_timeout": ("execution_timeout",),
    "mode": ("failure", "mode"),
    "max_retries": ("failure", "max_retries"),
    "dead_letter_queue": ("failure", "dead_letter_queue"),
    "backoff_base": ("backoff", "base"),
    "backoff_maximum": ("backoff", "maximum"),
    "jitter": ("backoff", "jitter"),
    "ttl": ("ttl",),
    "retention": ("retention",),
    "max_payload": ("max_payload",),
}
"""An option and the field that it sets."""


def _seconds_or_none(_: click.Context, option: click.Parameter, value: str | None) -> float | str | None:
    if value is None or value == "none":
        return value
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number of seconds nor 'none'", param=option) from None


def policy_options(command: F) -> F:
    """An option for each field of a policy, and --policy for all of it."""
    seconds: dict[str, Any] = {"type": float, "metavar": "SECONDS"}
    limit: dict[str, Any] = {"callback": _seconds_or_none, "metavar": "SECONDS|none"}
    options = [
        click.option("--ordering", type=click.Choice(["fifo", "lifo"]), help="Which message is next. Default: fifo."),
        click.option("--strict/--no-strict", default=None, help="Strict order: one message in flight at a time."),
        click.option("--visibility", **seconds, help="How long a lease lasts. Default: 30."),
        click.option("--execution-timeout", **limit, help="A limit on handlers. Default: none."),
        click.option("--mode", type=click.Choice(MODES), help="What becomes of failures. Default: retry."),
        click.option("--max-retries", type=int, metavar="N", help="Retries before it fails for good. Default: 3."),
        click.option("--dead-letter-queue", metavar="QUEUE", help="Where dead letters go: dead-letter and hybrid."),
        click.option("--backoff-base", **seconds, help="The wait before the first retry; doubles. Default: 0.5."),
        click.option("--backoff-maximum", **seconds, help="The longest wait before a retry. Default: 30."),
        click.option("--jitter", type=click.Choice(["full", "none"]), help="Wait a random part of it. Default: full."),
        click.option("--ttl", **limit, help="Unclaimed messages older than this fail. Default: none."),
        click.option("--retention", **seconds, help="How long history is kept. Default: 604800, a week."),
        click.option("--max-payload", type=int, metavar="BYTES", help="Larger is refused. Default: 1 GiB."),
        click.option("--policy", "source", metavar="FILE", help="A policy as JSON, or - for standard input."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def changed(base: QueuePolicy, options: dict[str, Any]) -> QueuePolicy:
    """The policy with what --policy holds, or else `base`, and then the given options over it."""
    source: str | None = options["source"]
    start = base if source is None else decode_policy(_read(source), source=source)
    fields = encode_policy(start)
    for name, (*path, last) in FIELDS.items():
        value = options[name]
        if value is not None:
            holder = fields[path[0]] if path else fields
            holder[last] = None if value == "none" else value
    if options["mode"] == "retry" and options["dead_letter_queue"] is None:
        fields["failure"]["dead_letter_queue"] = None
    return decode_policy(fields, source="the policy")


def _read(source: str) -> Any:
    text = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{source} is not JSON ({error}); see `brigade queue policy NAME --json`") from None


def policy_table(policy: QueuePolicy) -> Table:
    """Each field on a line, named as its option where it has one."""
    shown = table("field", "value")
    for name, value in encode_policy(policy).items():
        inner = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        for part, held in inner.items():
            shown.add_row(f"{name}.{part}", cell("none" if held is None else held))
        if not inner:
            shown.add_row(name, cell("none" if value is None else value))
    return shown
