"""Where handlers run: threads, or an event loop. (Processes have a module of their own.)

An executor pulls jobs from the backlog into slots and reports what came out.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from msgspec.structs import force_setattr

from brigade.tracing import Tracer
from brigade.worker.context import AsyncContext, Context
from brigade.worker.jobs import Backlog, Job
from brigade.worker.outcomes import DONE, Failed, Outcome, outcome_of_error, outcome_of_result
from brigade.worker.reach import Reach

__all__ = ["Executor", "LoopSlots", "Report", "ThreadSlots"]

log = logging.getLogger("brigade.worker")
Report = Callable[[Job, Outcome], None]
STOP_WITHIN = 2.0


class Executor(Protocol):
    """Runs handlers. Its methods are called by the engine."""

    @property
    def slots(self) -> int:
        """How many handlers can run now."""
        ...

    def start(self) -> None: ...

    def tell(self, job: Job) -> None:
        """Let a running handler know that its result no longer counts."""
        ...

    def end(self, job: Job) -> bool:
        """Make a running handler end as far as that can be done; True if its slot is free at once."""
        ...

    def stop(self) -> None:
        """Let go of threads and processes. Nothing runs any more, but for what can't be ended."""
        ...


class ThreadSlots:
    """`def` handlers, each in a thread. A thread can't be ended: one whose time is up is replaced and left behind."""

    def __init__(
        self, backlog: Backlog, report: Report, reach: Reach, tracer: Tracer, worker_id: str, concurrency: int
    ) -> None:
        self._backlog = backlog
        self._report = report
        self._reach = reach
        self._tracer = tracer
        self._worker_id = worker_id
        self.slots = concurrency
        self._lock = threading.Lock()
        self._left_behind: set[Job] = set()
        self._count = 0

    def start(self) -> None:
        for _ in range(self.slots):
            self._add()

    def _add(self) -> None:
        self._count += 1
        # Daemon threads: a handler that hangs must not keep the process from ending.
        threading.Thread(target=self._slot, name=f"brigade-slot-{self._count}", daemon=True).start()

    def _slot(self) -> None:
        while (job := self._backlog.take()) is not None:
            outcome = self._run(job)
            with self._lock:
                job.ended = True
                replaced = job in self._left_behind
                self._left_behind.discard(job)
            self._report(job, outcome)
            if replaced:
                return

    def _run(self, job: Job) -> Outcome:
        message = job.message
        force_setattr(message, "opener", self._reach.open)
        handler, context = job.source.handler, None
        if handler.wants_context:
            context = Context(message, self._worker_id, job.stop, self._reach.extend)
        try:
            with self._tracer.handling(message, self._worker_id):
                result = handler(message, context)
                if result is None:
                    return DONE
                if inspect.iscoroutine(result):
                    result = asyncio.run(result)
        except BaseException as error:
            return outcome_of_error(error)
        return outcome_of_result(message, result)

    def tell(self, job: Job) -> None:
        job.stop.set()

    def end(self, job: Job) -> bool:
        """At most as many threads are left behind as there are slots; more stay in their slots."""
        job.stop.set()
        with self._lock:
            if job.ended or job in self._left_behind or len(self._left_behind) >= self.slots:
                return False
            self._left_behind.add(job)
        name = job.source.handler.name
        log.warning("handler %s goes on with message %s; its result will be discarded", name, job.message.id)
        self._add()
        return True

    def stop(self) -> None:
        """Idle threads end as the backlog closes; a thread that is busy with lost work ends with the process."""


class LoopSlots:
    """`async def` handlers, on an event loop: the caller's own, or one in a thread made for it."""

    def __init__(
        self,
        backlog: Backlog,
        report: Report,
        reach: Reach,
        tracer: Tracer,
        worker_id: str,
        concurrency: int,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._backlog = backlog
        self._report = report
        self._reach = reach
        self._tracer = tracer
        self._worker_id = worker_id
        self.slots = concurrency
        self._loop = loop or asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        if loop is None:
            self._thread = threading.Thread(target=self._serve, name="brigade-handlers", daemon=True)
        self._tasks: dict[Job, asyncio.Task[Outcome]] = {}
        backlog.on_put = self._poke

    def start(self) -> None:
        if self._thread is not None:
            self._thread.start()
        self._poke()

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def _poke(self) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._pump)

    def _pump(self) -> None:
        while len(self._tasks) < self.slots and (job := self._backlog.try_take()) is not None:
            task = self._tasks[job] = self._loop.create_task(self._handle(job))
            task.add_done_callback(partial(self._ended, job))

    async def _handle(self, job: Job) -> Outcome:
        message = job.message
        force_setattr(message, "opener", self._reach.open_async)
        handler, context = job.source.handler, None
        if handler.wants_context:
            context = AsyncContext(message, self._worker_id, job.stop, self._reach.extend_async)
        try:
            with self._tracer.handling(message, self._worker_id):
                result = await handler(message, context)
        except BaseException as error:
            return outcome_of_error(error)
        return outcome_of_result(message, result)

    def _ended(self, job: Job, task: asyncio.Task[Outcome]) -> None:
        del self._tasks[job]
        self._report(job, Failed("the handler was cancelled") if task.cancelled() else task.result())
        self._pump()

    def tell(self, job: Job) -> None:
        """An async handler is told by cancelling it: that ends it, too, unless it won't."""
        self.end(job)

    def end(self, job: Job) -> bool:
        job.stop.set()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel, job)
        return False

    def _cancel(self, job: Job) -> None:
        task = self._tasks.get(job)
        if task is not None:
            task.cancel()

    def stop(self) -> None:
        if self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._finish(), self._loop)
            self._thread.join(STOP_WITHIN * 2)

    async def _finish(self) -> None:
        """Give cancelled handlers a moment, then end the loop; what ignores its cancellation is dropped."""
        rest: list[asyncio.Task[Any]] = list(self._tasks.values())
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=STOP_WITHIN)
        await self._loop.shutdown_asyncgens()
        self._loop.call_soon(self._loop.stop)
