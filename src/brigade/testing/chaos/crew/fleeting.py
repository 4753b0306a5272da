"""A Spark job in the crew: a fleet of workers in Spark tasks, with a driver, a Java and executors of its own.

Tasks run in processes that Spark starts. So the handler brings the journal along: wherever it arrives, all hubs of
that process write down what they were asked and told, as everywhere in the crew.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brigade import Message, StoreUnavailable
from brigade.testing.chaos.crew.hanging import tell_where_it_hangs
from brigade.testing.chaos.crew.recording import record_everything
from brigade.testing.chaos.crew.working import handle, note_in
from brigade.testing.chaos.journal import Journal
from brigade.testing.chaos.plan import JOBS, LETTERS, LINE, Brief
from brigade.worker import Context

__all__ = ["Carried", "lead_fleet"]

TURNS = (JOBS, JOBS, LINE, LETTERS)
"""A fleet works on one queue; it goes from one to the next."""

TURN = 6.0
AGAIN = 0.5
TASKS = 2


class Carried:
    """The handler as it travels to Spark's processes."""

    def __init__(self, brief: Brief) -> None:
        self._brief = brief

    def __call__(self, message: Message, context: Context) -> dict[str, int]:
        return handle(message, context)

    def __reduce__(self) -> tuple[Callable[[Brief], Carried], tuple[Brief]]:
        return _arrive, (self._brief,)


_arrived: list[Journal] = []


def _arrive(brief: Brief) -> Carried:
    """In a process of Spark's: open a journal of its own, once. Spark uses its processes again."""
    if not _arrived:
        path = Path(brief.journal)
        name = f"{brief.name}-{os.getpid()}"
        _arrived.append(Journal(str(path.with_name(f"{name}.jsonl")), name))
        note_in(_arrived[0])
        record_everything(_arrived[0], brief.number, brief.skew)
    return Carried(brief)


def lead_fleet(brief: Brief, journal: Journal) -> None:
    """Turn after turn, until SIGTERM; the one under way then ends in good order."""
    from brigade.spark.fleet import run
    from brigade.spark.session import local_session

    stop = threading.Event()

    def end(_number: int, _frame: Any) -> None:
        stop.set()
        tell_where_it_hangs()

    # A driver that ends while its Java starts would leave that behind: it dies of nothing that it is told then.
    signal.signal(signal.SIGTERM, end)
    session = local_session("brigade-chaos", cores=TASKS, settings=small(Path(brief.journal).parent.parent))
    journal.write("born", count=1)
    for queue in itertools.cycle(TURNS):
        if stop.is_set():
            break
        try:
            done = run(
                session,
                brief.url,
                queue,
                Carried(brief),
                tasks=TASKS,
                concurrency=2,
                until="stopped",
                duration=TURN,
                grace=brief.lease,
            )
            journal.write("fleet round", count=done.rounds)
        except StoreUnavailable:
            journal.write("fleet turn failed", count=1)
            stop.wait(AGAIN)
    session.stop()


def small(folder: Path) -> dict[str, str]:
    """Settings of a session that shares its machine with many; what it leaves when it is killed goes with the run."""
    from brigade.spark.session import sockets_in

    own = folder / "spark"
    own.mkdir(exist_ok=True)
    return {
        **sockets_in(str(own)),
        "spark.driver.memory": "640m",
        "spark.local.dir": str(own),
        "spark.sql.warehouse.dir": (own / "warehouse").as_uri(),
        "spark.driver.defaultJavaOptions": f"-Djava.io.tmpdir={own} -XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
