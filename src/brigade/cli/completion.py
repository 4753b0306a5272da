"""`brigade completion`: the script that makes a shell complete commands, options and queue names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL. Queue names are completed from the store of --url or BRIGADE_URL.

    \b
    Examples:
      eval "$(brigade completion bash)"
      brigade completion zsh > ~/.zfunc/_brigade
      brigade completion fish > ~/.config/fish/completions/brigade.fish
    """
    known = get_completion_class(shell)
    assert known is not None
    made = known(context.find_root().command, {}, "brigade", "_BRIGADE_COMPLETE")
    click.echo(made.source_template % made.source_vars())
