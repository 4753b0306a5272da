"""The `brigade` command: finds commands when they are asked for, and turns every error into one line and an exit code.

Exit codes: 0 done, 1 an error, 2 wrong usage, 3 nothing there (no such queue or message, or nothing to show).
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import NoReturn

import click

from brigade._version import __version__
from brigade.errors import BrigadeError, ConfigError, MessageNotFound, QueueNotFound

__all__ = ["Nothing", "cli", "run"]

OK, ERROR, USAGE, NOTHING, INTERRUPTED = 0, 1, 2, 3, 130
COMMANDS = {
    "demo": "brigade.cli.demo:demo",
    "enqueue": "brigade.cli.enqueue:enqueue",
    "get": "brigade.cli.look:get",
    "migrate": "brigade.cli.migrate:migrate",
    "peek": "brigade.cli.look:peek",
    "queues": "brigade.cli.queues:queues",
    "stats": "brigade.cli.queues:stats",
    "sweep": "brigade.cli.queues:sweep",
}
"""A command and where it lives. A new group of commands is a new module and a line here for each."""


class Nothing(Exception):
    """There is nothing to show. The command ends with exit code 3."""


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
    epilog="Exit codes: 0 done, 1 error, 2 wrong usage, 3 nothing there.",
)
@click.option("--url", metavar="URL", help="The store. Also BRIGADE_URL; default file://./.brigade")
@click.version_option(__version__, prog_name="brigade", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, url: str | None) -> None:
    """A durable job queue that lives in a bucket: no broker has to run.

    \b
    Examples:
      brigade demo
      brigade enqueue tasks '{"type": "email"}'
      brigade stats
    """
    context.obj = url


def run() -> NoReturn:
    """Run the command line and end the process."""
    try:
        answer = cli.main(prog_name="brigade", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(answer if isinstance(answer, int) else OK)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", INTERRUPTED)
    except (Nothing, QueueNotFound, MessageNotFound) as error:
        _fail(str(error), NOTHING)
    except ConfigError as error:
        _fail(str(error), USAGE)
    except BrigadeError as error:
        _fail(str(error), ERROR)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ERROR)
    except OSError as error:
        _fail(str(error), ERROR)


def _fail(reason: str, code: int) -> NoReturn:
    print(f"brigade: {reason}", file=sys.stderr)
    sys.exit(code)
