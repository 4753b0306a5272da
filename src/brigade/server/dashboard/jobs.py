"""Work that takes longer than a request: it goes on here, and whoever looks sees how far it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from brigade.errors import BrigadeError
from brigade.ids import Ids
from brigade.server.dashboard.access import Visitor
from brigade.server.dashboard.watch import Watch

__all__ = ["Job", "Jobs"]

log = logging.getLogger("brigade.server")
KEPT = 50
SHOWN_FOR = 20.0


@dataclass(slots=True)
class Job:
    """One piece of work: how much of it is done, and how it ended."""

    id: str
    queue: str
    title: str
    total: int
    done: int = 0
    state: str = "running"
    error: str | None = None
    ended: float = 0.0

    @property
    def percent(self) -> int:
        return 100 if not self.total else min(100, self.done * 100 // self.total)


class Jobs:
    """The jobs of this server, the newest first."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._ids = Ids()
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, queue: str, title: str, total: int, steps: AsyncIterator[int]) -> Job:
        """Run steps, each of which yields how much more is done."""
        job = Job(self._ids.token()[:12], queue, title, total)
        self._jobs[job.id] = job
        while len(self._jobs) > KEPT:
            oldest = next((id for id, one in self._jobs.items() if one.state != "running"), None)
            if oldest is None:
                break
            del self._jobs[oldest]
        self._tasks[job.id] = asyncio.get_running_loop().create_task(self._run(job, steps))
        return job

    def stop(self, id: str) -> None:
        task = self._tasks.get(id)
        if task is not None:
            task.cancel()

    def get(self, id: str) -> Job | None:
        return self._jobs.get(id)

    def shown(self, visitor: Visitor) -> list[Job]:
        """What this visitor may see of what runs, or ended just now."""
        now = self._watch.monotonic()
        return [
            job
            for job in reversed(self._jobs.values())
            if (job.state == "running" or now - job.ended < SHOWN_FOR) and visitor.may("read", job.queue)
        ]

    async def _run(self, job: Job, steps: AsyncIterator[int]) -> None:
        try:
            async for more in steps:
                job.done += more
                job.total = max(job.total, job.done)
                self._watch.tell()
            job.state = "done"
        except asyncio.CancelledError:
            job.state = "stopped"
            if self._watch.closed:
                raise
        except BrigadeError as error:
            job.state, job.error = "failed", str(error)
        except Exception:
            log.exception("job %s failed", job.title)
            job.state, job.error = "failed", "the server failed; its log says why"
        finally:
            job.ended = self._watch.monotonic()
            self._tasks.pop(job.id, None)
            self._watch.hurry()
            self._watch.tell()

    def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()
