"""The worker as users hold it: `run()`, `start()` and `stop()`, `with` and `async with`."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec

from brigade.checks import check_limit, seconds
from brigade.errors import ConfigError
from brigade.hub import AsyncHub
from brigade.names import check_owner
from brigade.queue import AsyncQueue
from brigade.sync import Hub, Queue
from brigade.worker.engine import Engine, Settings
from brigade.worker.executors import Executor, LoopSlots, ThreadSlots
from brigade.worker.handlers import Handler
from brigade.worker.jobs import Source
from brigade.worker.reach import Reach
from brigade.worker.relay import Relay
from brigade.worker.restart import Restart
from brigade.worker.signals import heard

__all__ = ["Worker", "WorkerStatus"]

log = logging.getLogger("brigade.worker")
T = TypeVar("T")
MOST_SLOTS = 10_000
MOST_WEIGHT = 1000
SLICE = 0.5
AnyQueue = Queue | AsyncQueue


class WorkerStatus(msgspec.Struct, frozen=True):
    """What a worker does now, and what it has done: `failed` counts attempts, `lost` leases that others took."""

    running: int = 0
    waiting: int = 0
    processed: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0


class Worker:
    """Runs handlers on the messages of one queue, or of several by weight.

    `queue` is a queue, a list of queues, or a dict of queues and weights. `handler` takes a message and, if it
    wants, a context; a dict of queue names and functions gives each queue its own. `def` handlers run in threads,
    or in processes with `executor="process"`; `async def` handlers on an event loop.

    A handler's return value is the result. It may raise `Retry`, `Reject` or `Snooze`; any other exception is a
    failed attempt. The worker extends leases by itself and claims about `prefetch` seconds of work ahead.
    """

    def __init__(
        self,
        queue: AnyQueue | Sequence[AnyQueue] | Mapping[Any, int],
        handler: Callable[..., Any] | Mapping[str, Callable[..., Any]],
        *,
        concurrency: int = 8,
        executor: Literal["thread", "process"] = "thread",
        worker_id: str | None = None,
        execution_timeout: float | None = None,
        grace: float = 30.0,
        prefetch: float = 2.0,
        max_prefetch: int = 1000,
        linger: float = 0.1,
        processed_cache_ttl: float = 300.0,
        restart: Restart | None = None,
    ) -> None:
        weights = _weights(queue)
        first = next(iter(weights))
        self._hub = _hub_of(first)
        self._is_async = isinstance(first, AsyncQueue)
        if any(_hub_of(one) is not self._hub for one in weights):
            raise ConfigError("all queues of a worker must come from one hub; make a worker for each hub")
        if executor not in ("thread", "process"):
            raise ConfigError(f"executor is {executor!r}; use 'thread' or 'process'")
        self._executor = executor
        self._queues = {one.name: (_async(one), weight) for one, weight in weights.items()}
        self._handlers = _handlers(handler, self._queues, executor)
        self._timeout = (
            None if execution_timeout is None else seconds(execution_timeout, "execution_timeout", low=0.001)
        )
        self._grace = seconds(grace, "grace")
        if restart is not None and not isinstance(restart, Restart):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"restart must be a Restart(...), not {restart!r}")
        self._settings = Settings(
            worker_id=self._hub.owner if worker_id is None else check_owner(worker_id),
            concurrency=check_limit(concurrency, MOST_SLOTS, "concurrency"),
            prefetch=seconds(prefetch, "prefetch"),
            max_prefetch=check_limit(max_prefetch, MOST_SLOTS, "max_prefetch"),
            linger=seconds(linger, "linger"),
            processed_cache_ttl=seconds(processed_cache_ttl, "processed_cache_ttl"),
            restart=restart or Restart(),
        )
        self._changing = threading.Lock()
        self._own_hub: Hub | None = None
        self._engine: Engine | None = None
        self._slots: Executor | None = None
        self._last = WorkerStatus()
        self._relay: Relay | None = None
        self._failure: BaseException | None = None
        self._asked: SimpleQueue[None] = SimpleQueue()
        self._signalled = False

    @property
    def worker_id(self) -> str:
        return self._settings.worker_id

    @property
    def queues(self) -> list[str]:
        return list(self._queues)

    def status(self) -> WorkerStatus:
        """What it does now, and what it has done since it was started."""
        engine = self._engine
        if engine is None:
            return self._last
        return WorkerStatus(running=engine.backlog.running, waiting=engine.backlog.waiting, **engine.counts)

    def run(self, *, until_empty: bool = False) -> None:
        """Work until SIGTERM or SIGINT, or `stop()` from another thread; with `until_empty`, until all work is done.

        At a signal it stops claiming, lets handlers finish within the grace period and gives the rest back at once.
        A second signal doesn't wait for handlers any longer.
        """
        self._must_be_sync("run")
        self._asked, self._signalled = SimpleQueue(), False
        with heard(self._ask):
            self.start()
            try:
                self._end_when_empty(until_empty)
                self._wait_asked()
            finally:
                self.stop()
        self._raise_failure()

    async def serve(self, *, until_empty: bool = False) -> None:
        """`run` for async programs."""
        self._asked, self._signalled = SimpleQueue(), False
        with heard(self._ask):
            async with self:
                self._end_when_empty(until_empty)
                asked = asyncio.ensure_future(_in_thread(self._asked.get))
                try:
                    while not asked.done():
                        await asyncio.wait([asked], timeout=SLICE)
                finally:
                    self._asked.put(None)
        self._raise_failure()

    def start(self) -> None:
        """Begin to work, in the background."""
        self._must_be_sync("start")
        self._open()

    def stop(self, grace: float | None = None) -> None:
        """Stop claiming, let handlers finish within the grace period, give the rest back, and let go."""
        self._must_be_sync("stop")
        self._close(grace)

    async def drain(self, grace: float | None = None) -> None:
        """`stop` for async programs."""
        await _in_thread(self._close, grace)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await _in_thread(self._open)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain()

    def _must_be_sync(self, verb: str) -> None:
        if self._is_async:
            instead = "await worker.serve()" if verb == "run" else "async with worker"
            raise ConfigError(f"{verb}() would block the event loop that async queues live on; use `{instead}`")

    def _open(self) -> None:
        """The engine gets a hub of its own: nothing that others do on the user's hub can hold up a heartbeat."""
        with self._changing:
            if self._engine is not None:
                raise ConfigError("the worker is running already; stop() it first")
            loop = self._hub.loop
            twin = self._hub.twin()
            twin.events = self._relay = Relay(self._hub.events, loop)
            self._failure = None
            hub = Hub.over(twin).open()
            try:
                hub.call(self._begin(hub, twin, loop if self._is_async else None))
            except BaseException:
                hub.close()
                raise
            self._own_hub = hub
            hub.submit(self._mind(self._engine))

    async def _mind(self, engine: Engine | None) -> None:
        """A part of the engine that gives up for good ends the worker."""
        assert engine is not None
        self._failure = await engine.failure()
        if self._failure is not None:
            log.error("worker %s can't go on: %r; stop() it", self.worker_id, self._failure)
            self._asked.put(None)

    async def _begin(self, hub: Hub, twin: AsyncHub, loop: asyncio.AbstractEventLoop | None) -> None:
        sources: list[Source] = []
        for name, (queue, weight) in self._queues.items():
            own = await twin.queue(queue.name, create=False)
            timeout = self._timeout if self._timeout is not None else own.policy.execution_timeout
            sources.append(Source(own, self._handlers[name], weight, timeout))
        engine = Engine(twin, sources, self._settings)
        self._slots = self._make_slots(hub, twin, engine, {one.name: one.queue for one in sources}, loop)
        self._tell_started()
        engine.start(self._slots)
        self._engine = engine

    def _make_slots(
        self,
        hub: Hub,
        twin: AsyncHub,
        engine: Engine,
        queues: dict[str, AsyncQueue],
        loop: asyncio.AbstractEventLoop | None,
    ) -> Executor:
        concurrency, worker_id = self._settings.concurrency, self.worker_id
        reach = Reach(hub, queues, engine.extended)
        if self._executor == "process":
            from brigade.worker.child import ChildSettings
            from brigade.worker.processes import ProcessSlots

            functions = {name: handler.function for name, handler in self._handlers.items()}
            return ProcessSlots(
                engine.backlog,
                engine.report,
                reach,
                ChildSettings(functions, worker_id, twin.tracer),
                concurrency,
                restart=self._settings.restart,
                clock=twin.clock,
                changed=engine.changed,
            )
        if next(iter(self._handlers.values())).is_async:
            return LoopSlots(engine.backlog, engine.report, reach, twin.tracer, worker_id, concurrency, loop)
        return ThreadSlots(engine.backlog, engine.report, reach, twin.tracer, worker_id, concurrency)

    def _close(self, grace: float | None) -> None:
        with self._changing:
            engine, hub, slots = self._engine, self._own_hub, self._slots
            if engine is None or hub is None or slots is None:
                return
            limit = self._grace if grace is None else seconds(grace, "grace")
            try:
                hub.call(engine.stop(limit))
            finally:
                engine.backlog.close()
                slots.stop()
                self._last = self.status()
                self._engine = self._own_hub = self._slots = None
                hub.close()
                self._asked.put(None)
        self._emit("workers-stopped")

    def _end_when_empty(self, wanted: bool) -> None:
        """Have `run` told when nothing is left to do."""
        engine, hub = self._engine, self._own_hub
        if not wanted or engine is None or hub is None:
            return

        async def watch() -> None:
            await engine.until_empty()
            self._asked.put(None)

        hub.submit(watch())

    def _wait_asked(self) -> None:
        """Python runs signal handlers only between its own steps: wait in slices, or one may wait for ever."""
        while True:
            try:
                return self._asked.get(timeout=SLICE)
            except Empty:
                continue

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _ask(self) -> None:
        """A signal: stop. A second one: don't wait for handlers any longer."""
        engine, hub = self._engine, self._own_hub
        if self._signalled and engine is not None and hub is not None:
            hub.soon(engine.hurry)
        self._signalled = True
        self._asked.put(None)

    def _tell_started(self) -> None:
        self._emit("workers-started", concurrency=self._settings.concurrency, queues=self.queues)
        for name, (queue, _) in self._queues.items():
            if not queue.policy.ordering_guarantee:
                self._emit("ordering-best-effort", queue=name, ordering=queue.policy.ordering)

    def _emit(self, name: str, queue: str | None = None, **fields: Any) -> None:
        if self._relay is not None:
            self._relay.emit(name, queue or self.queues[0], None, worker_id=self.worker_id, **fields)


async def _in_thread(work: Callable[..., T], *args: Any) -> T:
    """Run something that blocks in a thread of its own: the program's pool may be full of workers that wait."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work(*args))
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="brigade-wait", daemon=True).start()
    return await asyncio.wrap_future(done)


def _async(queue: AnyQueue) -> AsyncQueue:
    return queue if isinstance(queue, AsyncQueue) else queue.asynchronous


def _hub_of(queue: AnyQueue) -> AsyncHub:
    return _async(queue).hub


def _weights(given: object) -> dict[AnyQueue, int]:
    """Queues and their weights."""
    if isinstance(given, Queue | AsyncQueue):
        return {given: 1}
    if isinstance(given, Mapping):
        weights: dict[Any, Any] = dict(given)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        weights = dict.fromkeys(given, 1)  # pyright: ignore[reportUnknownArgumentType]
    else:
        raise ConfigError(f"a worker needs a queue, a list of queues, or a dict of queues and weights, not {given!r}")
    if not weights:
        raise ConfigError("a worker needs at least one queue")
    names: set[str] = set()
    for queue, weight in weights.items():
        if not isinstance(queue, Queue | AsyncQueue):
            raise ConfigError(f"{queue!r} is not a queue; open it with hub.queue(name)")
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= MOST_WEIGHT:
            raise ConfigError(f"the weight of queue {queue.name!r} is {weight!r}; use 1 to {MOST_WEIGHT}")
        if queue.name in names:
            raise ConfigError(f"queue {queue.name!r} is given twice")
        names.add(queue.name)
    return weights


def _handlers(given: object, queues: Mapping[str, Any], executor: str) -> dict[str, Handler]:
    """The handler of each queue."""
    if isinstance(given, Mapping):
        functions: dict[Any, Any] = dict(given)  # pyright: ignore[reportUnknownArgumentType]
        missing = [name for name in queues if name not in functions]
        if missing:
            raise ConfigError(f"there is no handler for queue {missing[0]!r}; give one for each queue by its name")
        handlers = {name: Handler(functions[name]) for name in queues}
    else:
        one = Handler(given)  # pyright: ignore[reportArgumentType]
        handlers = dict.fromkeys(queues, one)
    if executor == "process":
        from brigade.worker.processes import check_picklable

        for handler in handlers.values():
            check_picklable(handler)
    elif len({handler.is_async for handler in handlers.values()}) > 1:
        raise ConfigError("some handlers are async and some are not; make a worker for each kind")
    return handlers
