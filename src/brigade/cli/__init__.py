"""The command line. Importing this costs nothing: click and rich are imported when a command runs."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of `brigade`."""
    from brigade.cli.app import run

    run()
