"""The `brigade` command: finds commands when they are asked for, and turns every error into one line and an exit code.

Exit codes: 0 done, 1 an error, 2 wrong usage, 3 nothing there (no such queue or message, or nothing to show),
4 the lease is stale, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import NoReturn

import click

from brigade._version import __version__
from brigade.cli.text import visible
from brigade.errors import BrigadeError, ConfigError, MessageNotFound, QueueNotFound, QueuePaused, StaleLease

__all__ = ["COMMANDS", "Nothing", "Terminated", "cli", "explained", "run"]

OK, ERROR, USAGE, NOTHING, STALE, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 130, 143
COMMANDS = {
    "ack": "brigade.cli.settle:ack",
    "bench": "brigade.cli.bench:bench",
    "completion": "brigade.cli.completion:completion",
    "cost": "brigade.cli.bench:cost",
    "demo": "brigade.cli.demo:demo",
    "dequeue": "brigade.cli.dequeue:dequeue",
    "dlq": "brigade.cli.dlq:dlq",
    "doctor": "brigade.cli.doctor:doctor",
    "enqueue": "brigade.cli.enqueue:enqueue",
    "extend": "brigade.cli.settle:extend",
    "get": "brigade.cli.look:get",
    "key": "brigade.cli.key:key",
    "migrate": "brigade.cli.migrate:migrate",
    "nack": "brigade.cli.settle:nack",
    "peek": "brigade.cli.look:peek",
    "queue": "brigade.cli.queue:queue",
    "queues": "brigade.cli.queues:queues",
    "release": "brigade.cli.settle:release",
    "serve": "brigade.cli.serve:serve",
    "spark": "brigade.cli.spark:spark",
    "state": "brigade.cli.state:state",
    "stats": "brigade.cli.stats:stats",
    "sweep": "brigade.cli.queues:sweep",
    "token": "brigade.cli.token:token",
    "work": "brigade.cli.work:work",
}
"""A command and where it lives. A new group of commands is a new module and a line here for each."""


class Nothing(Exception):
    """There is nothing to show. The command ends with exit code 3."""


class Terminated(Exception):
    """Somebody sent SIGTERM. The command ends with exit code 143."""

    def __str__(self) -> str:
        return "terminated"


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        return getattr(import_module(module), name)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 error, 2 wrong usage, 3 nothing there, 4 the lease is stale, 130 interrupted.",
)
@click.option("--url", metavar="URL", help="The store. Also BRIGADE_URL; default file://./.brigade")
@click.version_option(__version__, prog_name="brigade", message="%(prog)s %(version)s")
def cli(**_: object) -> None:
    """A durable job queue that lives in a bucket: no broker has to run.

    \b
    Examples:
      brigade demo
      brigade enqueue tasks '{"type": "email"}'
      eval "$(brigade dequeue tasks)" && cat "$BRIGADE_QUEUE_PAYLOAD_PATH" && brigade ack
      brigade stats --watch
    """


def run() -> NoReturn:
    """Run the command line and end the process."""
    try:
        answer = cli.main(prog_name="brigade", standalone_mode=False)
        sys.stdout.flush()
    except Exception as error:
        _end(error)
    except KeyboardInterrupt as error:
        _end(error)
    sys.exit(answer if isinstance(answer, int) else OK)


def _end(error: BaseException) -> NoReturn:
    """Say what went wrong in one line. An error that nobody foresaw keeps its traceback."""
    said = explained(error)
    if said is None:
        raise error
    reason, code = said
    _drop_output()
    if reason:
        print(f"brigade: {visible(reason)}", file=sys.stderr)
    sys.exit(code)


def explained(error: BaseException) -> tuple[str, int] | None:
    """What to say of an error, in the words of the command line, and the exit code; None for a bug."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    if isinstance(error, click.ClickException):
        return _usage(error), error.exit_code
    if isinstance(error, QueueNotFound):
        return f"{_head(error)}; `brigade queue create` makes it, `brigade queues` lists those that exist", NOTHING
    if isinstance(error, QueuePaused):
        return f"{_head(error)}; `brigade queue resume` hands messages out again", ERROR
    if isinstance(error, BrokenPipeError):
        return "", ERROR
    if isinstance(error, OSError):
        return ": ".join(str(part) for part in (error.filename, error.strerror or error) if part), ERROR
    codes = {Terminated: TERMINATED, StaleLease: STALE, Nothing: NOTHING, MessageNotFound: NOTHING, ConfigError: USAGE}
    for kind, code in codes.items():
        if isinstance(error, kind):
            return str(error), code
    return (str(error), ERROR) if isinstance(error, BrigadeError) else None


def _usage(error: click.ClickException) -> str:
    """Click's message, and where to read on. A group without a command shows its help."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()
        return ""
    text = error.format_message().rstrip(".")
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return f"{text}; see `{error.ctx.command_path} --help`"
    return text


def _head(error: Exception) -> str:
    return str(error).partition(";")[0]


def _drop_output() -> None:
    """Forget output that can't be written, so that Python doesn't try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
