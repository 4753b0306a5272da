"""One process of the crew: reads its brief, opens its journal, and does its part until SIGTERM."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from brigade.testing.chaos.crew.calling import call_by_threads
from brigade.testing.chaos.crew.consuming import consume
from brigade.testing.chaos.crew.draining import drain, sweep
from brigade.testing.chaos.crew.fleeting import lead_fleet
from brigade.testing.chaos.crew.hanging import tell_where_it_hangs
from brigade.testing.chaos.crew.producing import produce
from brigade.testing.chaos.crew.recording import record_everything
from brigade.testing.chaos.crew.working import work
from brigade.testing.chaos.journal import Journal, wall_ms
from brigade.testing.chaos.plan import CALLERS, FLEET, Brief
from brigade.testing.sim import records as r

__all__ = ["main"]

Role = Callable[[Brief, Journal, asyncio.Event], Awaitable[Any]]
DOING: dict[str, Role] = {
    "producer": produce,
    "consumer": consume,
    CALLERS: call_by_threads,
    "threads": work,
    "tasks": work,
    "processes": work,
    "drain": drain,
    "sweep": sweep,
}
PR_SET_PDEATHSIG = 1


def main(text: str) -> int:
    brief = msgspec.json.decode(text, type=Brief)
    _die_with(brief.parent)
    logging.basicConfig(level=logging.ERROR)
    journal = Journal(brief.journal, brief.name)
    os.environ["BRIGADE_CHAOS_JOURNAL"] = brief.journal
    if brief.role != CALLERS:
        record_everything(journal, brief.number, brief.skew)
    try:
        if brief.role == FLEET:
            lead_fleet(brief, journal)
        else:
            asyncio.run(_life(brief, journal))
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        journal.write("raised", [r.Raised(at=wall_ms(), queue="", where=brief.role, error=text)])
        return 1
    return 0


async def _life(brief: Brief, journal: Journal) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, stop)
    journal.write("born", count=1)
    answer = await DOING[brief.role](brief, journal, stop)
    if answer is not None:
        sys.stdout.buffer.write(msgspec.json.encode(answer))


def _end(stop: asyncio.Event) -> None:
    stop.set()
    tell_where_it_hangs()


def _die_with(parent: int) -> None:
    """Nobody is left over when the run itself is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
