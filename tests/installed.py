"""Where the installed `brigade` command is, and what it is run with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["BRIGADE", "environment"]

BRIGADE = Path(sys.executable).parent / "brigade"


def environment(**more: str) -> dict[str, str]:
    """This process's environment without any of Brigade's variables, and with the command on the path."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("BRIGADE_")}
    return {**known, "PATH": f"{BRIGADE.parent}:{known['PATH']}", **more}
