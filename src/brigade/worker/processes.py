"""Handlers in processes of their own: CPU-bound work can't starve a heartbeat, and time that is up ends for real."""

from __future__ import annotations

import atexit
import io
import itertools
import logging
import multiprocessing
import pickle
import signal
import threading
from collections.abc import Callable
from importlib import import_module
from multiprocessing.process import BaseProcess

from msgspec.structs import replace

from brigade.clock import Clock
from brigade.errors import BrigadeError, ConfigError, StaleLease
from brigade.ids import Ids
from brigade.model import Message
from brigade.worker.child import Answer, Assignment, ChildSettings, Extension, Read, Stop, main
from brigade.worker.executors import Report
from brigade.worker.handlers import Handler
from brigade.worker.jobs import Backlog, Job
from brigade.worker.outcomes import Failed, Outcome
from brigade.worker.reach import Reach
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

    def __init__(self, settings: ChildSettings, reach: Reach) -> None:
        context = multiprocessing.get_context("spawn")
        self._reach = reach
        self._pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=main, args=(theirs, settings), name="brigade-handler", daemon=True
        )
        self.process.start()
        theirs.close()
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self.starting = True

    def ready(self) -> bool:
        """Wait until it has imported the handler; False if it died of that."""
        ready = self._heard() == "ready"
        self.starting = False
        return ready

    def next_number(self) -> int:
        return next(self._numbers)

    def run(self, number: int, message: Message) -> Outcome:
        readers: dict[int, io.BufferedReader] = {}
        said: object = Assignment(number, replace(message, opener=None))
        try:
            self._tell(said)
            while not isinstance(said := self._heard(), Outcome | None):
                self._tell(self._answer(said, number, message, readers))
        except OSError:
            said = None
        finally:
            for reader in readers.values():
                reader.close()
        return Failed(self._epitaph()) if said is None else said

    def _answer(self, asked: object, number: int, message: Message, readers: dict[int, io.BufferedReader]) -> Answer:
        """What the store says to a handler's request."""
        try:
            if not isinstance(asked, Read | Extension) or asked.number != number:
                raise StaleLease("that message is no longer in hand; its handler has ended")
            if isinstance(asked, Extension):
                return Answer(value=self._reach.extend(message, asked.seconds))
            if asked.reader not in readers:
                readers[asked.reader] = self._reach.open(message)
            return Answer(value=readers[asked.reader].read(asked.size))
        except BrigadeError as error:
            return Answer(error=error)
        except Exception as error:
            return Answer(error=BrigadeError(f"{type(error).__name__}: {error}"))

    def stop(self, number: int) -> None:
        """Tell a handler that its result no longer counts."""
        try:
            self._tell(Stop(number))
        except OSError:
            log.debug("the handler's process is gone already")

    def _tell(self, what: object) -> None:
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
    """Each slot is a process, looked after by a thread here. `changed` is called when a slot becomes usable."""

    def __init__(
        self,
        backlog: Backlog,
        report: Report,
        reach: Reach,
        settings: ChildSettings,
        concurrency: int,
        *,
        restart: Restart,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self._backlog = backlog
        self._report = report
        self._reach = reach
        self._settings = settings
        self._concurrency = concurrency
        self._trouble = Trouble("starting processes for handlers", restart, Ids(), clock)
        self._changed = changed
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._children: set[_Child] = set()
        self._running: dict[Job, tuple[_Child, int]] = {}
        self._threads: list[threading.Thread] = []
        self.slots = 0

    def start(self) -> None:
        # Registered after multiprocessing's own, which waits for children: so this one runs first.
        import_module("multiprocessing.util")
        atexit.register(self._at_exit)
        for number in range(self._concurrency):
            thread = threading.Thread(target=self._slot, name=f"brigade-slot-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _slot(self) -> None:
        child: _Child | None = None
        while not self._closing.is_set():
            if child is None and (child := self._hired()) is None:
                break
            job = self._backlog.take()
            if job is None:
                break
            self._work(child, job)
            if not child.process.is_alive():
                self._dismiss(child)
                child = None
        if child is not None:
            self._dismiss(child)

    def _hired(self) -> _Child | None:
        """A process that is ready. One that dies as it starts costs no message an attempt."""
        while not self._closing.is_set():
            child = _Child(self._settings, self._reach)
            with self._lock:
                self._children.add(child)
                if self._closing.is_set():
                    child.process.kill()
            if child.ready():
                with self._lock:
                    self._trouble.over()
                    self.slots += 1
                self._changed()
                return child
            self._bury(child)
            if self._closing.is_set():
                break
            with self._lock:
                delay = self._trouble.strikes(RuntimeError("one died before it was ready; its own output says why"))
            self._closing.wait(delay)
        return None

    def _dismiss(self, child: _Child) -> None:
        with self._lock:
            self.slots -= 1
        self._bury(child)

    def _bury(self, child: _Child) -> None:
        with self._lock:
            self._children.discard(child)
        child.close()

    def _work(self, child: _Child, job: Job) -> None:
        number = child.next_number()
        with self._lock:
            self._running[job] = child, number
            stopped = job.stop.is_set()
        outcome: Outcome = Failed("it was stopped before it began")
        if not stopped:
            try:
                outcome = child.run(number, job.message)
            except Exception as error:
                outcome = Failed(f"the message could not be handed to the handler's process: {error}")
        with self._lock:
            del self._running[job]
        self._report(job, outcome)

    def tell(self, job: Job) -> None:
        with self._lock:
            job.stop.set()
            found = self._running.get(job)
        if found is not None:
            # Not from here: a child that does not read would hold up the engine.
            child, number = found
            threading.Thread(target=child.stop, args=(number,), name="brigade-tell", daemon=True).start()

    def end(self, job: Job) -> bool:
        with self._lock:
            job.stop.set()
            found = self._running.get(job)
            if found is not None:
                found[0].process.kill()
        return False

    def stop(self) -> None:
        """What runs or is still starting is killed; who waits for work ends by itself."""
        self._closing.set()
        with self._lock:
            busy = {child for child, _ in self._running.values()}
            for child in self._children:
                if child in busy or child.starting:
                    child.process.kill()
        for thread in self._threads:
            thread.join(STOP_WITHIN)
        atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        """The program ends without having stopped its worker: children must not keep it."""
        self._closing.set()
        with self._lock:
            for child in self._children:
                child.process.kill()
