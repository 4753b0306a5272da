"""Handlers in processes of their own: CPU-bound work can't starve a heartbeat, and time that is up ends for real."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import signal
import threading
from multiprocessing.process import BaseProcess

from msgspec.structs import replace

from brigade.clock import Clock
from brigade.errors import ConfigError
from brigade.ids import Ids
from brigade.worker.child import Assignment, ChildSettings, main
from brigade.worker.executors import Report
from brigade.worker.handlers import Handler
from brigade.worker.jobs import Backlog, Job
from brigade.worker.outcomes import Failed, Outcome
from brigade.worker.restart import Restart, Trouble

__all__ = ["ProcessSlots", "check_picklable"]

log = logging.getLogger("brigade.worker")
STOP_WITHIN = 5.0


def check_picklable(handler: Handler) -> None:
    """A handler for processes must be found by name in a fresh interpreter."""
    try:
        pickle.dumps(handler.function)
    except Exception as error:
        raise ConfigError(
            f"the handler {handler.name} can't be sent to another process ({error}); "
            "use a function at the top of a module, or executor='thread'"
        ) from None


class _Child:
    """One process with a handler inside, and the pipe to it."""

    def __init__(self, settings: ChildSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=main, args=(theirs, settings), name="brigade-handler", daemon=True
        )
        self.process.start()
        theirs.close()
        self._sending = threading.Lock()

    def ready(self) -> bool:
        """Wait until it has imported the handler; False if it died of that."""
        return self._heard() == "ready"

    def run(self, assignment: Assignment) -> Outcome:
        try:
            self.tell(assignment)
        except OSError:
            return Failed(self._epitaph())
        answer = self._heard()
        return answer if isinstance(answer, Outcome) else Failed(self._epitaph())

    def tell(self, what: object) -> None:
        with self._sending:
            self._pipe.send(what)

    def _heard(self) -> object:
        try:
            return self._pipe.recv()
        except (EOFError, OSError):
            return None

    def _epitaph(self) -> str:
        self.process.join(STOP_WITHIN)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"the handler's process was killed by {signal.Signals(-code).name}"
        return f"the handler's process ended with exit code {code}"

    def close(self) -> None:
        """The process ends when its pipe does."""
        self._pipe.close()
        self.process.join(STOP_WITHIN)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class ProcessSlots:
    """Each slot is a process, looked after by a thread here."""

    def __init__(
        self,
        backlog: Backlog,
        report: Report,
        settings: ChildSettings,
        concurrency: int,
        *,
        restart: Restart,
        clock: Clock,
    ) -> None:
        self._backlog = backlog
        self._report = report
        self._settings = settings
        self._concurrency = concurrency
        self._restart = restart
        self._clock = clock
        self._closing = threading.Event()
        self._running: dict[Job, _Child] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for number in range(self._concurrency):
            thread = threading.Thread(target=self._slot, name=f"brigade-slot-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _slot(self) -> None:
        trouble = Trouble("starting a process for handlers", self._restart, Ids(), self._clock)
        child: _Child | None = None
        while not self._closing.is_set():
            if child is None and (child := self._hired(trouble)) is None:
                break
            job = self._backlog.take()
            if job is None:
                break
            child = self._work(child, job)
        if child is not None:
            child.close()

    def _hired(self, trouble: Trouble) -> _Child | None:
        """A process that is ready. One that dies as it starts costs no message an attempt."""
        while not self._closing.is_set():
            child = _Child(self._settings)
            if child.ready():
                trouble.over()
                return child
            child.close()
            delay = trouble.strikes(RuntimeError("it died before it was ready; its own output says why"))
            self._closing.wait(delay)
        return None

    def _work(self, child: _Child, job: Job) -> _Child | None:
        """Run one job; returns the child if it can take another."""
        self._running[job] = child
        message = replace(job.message, opener=None)
        try:
            outcome = child.run(Assignment(job.source.name, message))
        except Exception as error:
            outcome = Failed(f"the message could not be handed to the handler's process: {error}")
        del self._running[job]
        alive = child.process.is_alive()
        self._report(job, outcome)
        if not alive:
            child.close()
        return child if alive else None

    def interrupt(self, job: Job) -> bool:
        """A lost lease is told to the handler; time that is up ends its process."""
        job.stop.set()
        child = self._running.get(job)
        if child is None:
            return False
        if job.lost:
            try:
                child.tell("stop")
            except OSError:
                log.debug("the handler of message %s has ended already", job.message.id)
        else:
            child.process.kill()
        return False

    def stop(self) -> None:
        self._closing.set()
        for child in list(self._running.values()):
            child.process.kill()
        for thread in self._threads:
            thread.join(STOP_WITHIN)
