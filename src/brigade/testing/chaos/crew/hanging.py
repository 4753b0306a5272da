"""Where a process is that should have ended: the stacks of its threads and tasks, for whoever has to find out why."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import io
import sys
import threading
from typing import Any

__all__ = ["tell_where_it_hangs"]

AFTER = 25.0


def tell_where_it_hangs(after: float = AFTER) -> None:
    """Write to standard error, if this process is still there then."""
    timer = threading.Timer(after, _tell)
    timer.daemon = True
    timer.start()


def _tell() -> None:
    print(f"still here {AFTER:g} s after SIGTERM:", file=sys.stderr)
    faulthandler.dump_traceback(file=sys.stderr)
    tasks: list[asyncio.Task[Any]] = [one for one in gc.get_objects() if isinstance(one, asyncio.Task)]
    for task in tasks:
        if not task.done():
            text = io.StringIO()
            task.print_stack(file=text)
            print(text.getvalue(), file=sys.stderr, flush=True)
