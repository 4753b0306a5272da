"""A fleet: workers in Spark tasks, round after round, until the queue is empty, for a time, or for ever.

The tasks of a round end when it is over. A round that fails, because an executor died too often or Spark lost a
process, is followed by the next: what it held comes back when its leases run out.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from brigade.checks import check_limit, seconds
from brigade.clock import SystemClock
from brigade.errors import BrigadeError, ConfigError
from brigade.ids import Ids
from brigade.model import Stats
from brigade.policy import QueuePolicy
from brigade.spark.arrow import Batch
from brigade.spark.fleet.results import Results
from brigade.spark.fleet.task import COUNTS, Named, Shift, work
from brigade.stores.opening import everywhere
from brigade.sync import Hub
from brigade.worker.handlers import Handler

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Fleet", "Progress", "named", "run"]

_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Unavailable|NotFound|Denied)\w*: ")

log = logging.getLogger("brigade.spark")
MOST_TASKS = 100_000
TELL_EVERY = 1.0
TELL_EVERY_IN_CLOUD = 10.0
MOST_FAILURES = 5
AFTER_FAILURE = 1.0
"""Seconds before the round after a failed one, doubled after each further one: a store may be away for a while."""


class Progress(msgspec.Struct, frozen=True):
    """How things stand while a fleet works."""

    seconds: float
    stats: Stats


class Fleet:
    """What a fleet has done. `results` are the messages that it ended, with what their handlers gave back."""

    def __init__(
        self, spark: SparkSession, url: str, queue: str, run: str, since: int, options: dict[str, Any]
    ) -> None:
        self._spark = spark
        self._place = (url, queue, run, since, options)
        self.run = run
        self.queue = queue
        self.tasks: list[dict[str, Any]] = []
        self.rounds = 0
        self.failed_rounds = 0
        self.seconds = 0.0

    def total(self, name: str) -> int:
        """`processed`, `failed`, `released`, `lost` or `requests`, over all tasks that came to their end."""
        return sum(row[name] for row in self.tasks)

    @property
    def results(self) -> DataFrame:
        """One row a message that this fleet ended: id, outcome, result, error, attempts, times, worker.

        They come from history, where a result is written together with its ack: none is missing because a task died.
        A message is there when all that were written together with it have ended.
        """
        url, queue, run, since, options = self._place
        return Results(url, queue, run, since, options).read(self._spark)


def named(place: str) -> Named:
    """The handler `module:function`, to be imported on executors."""
    module, _, path = place.partition(":")
    if not module or not path:
        raise ConfigError(f"the handler is {place!r}; write it as module:function, such as crawl:fetch")
    return Named(module, path, str(Path.cwd()))


def run(
    spark: SparkSession,
    url: str,
    queue: str,
    handler: Callable[..., Any] | str,
    *,
    tasks: int | None = None,
    concurrency: int = 8,
    until: str = "empty",
    duration: float | None = None,
    round_seconds: float = 300.0,
    grace: float = 30.0,
    policy: QueuePolicy | None = None,
    output: str | None = None,
    progress: Callable[[Progress], None] | None = None,
    store_options: dict[str, Any] | None = None,
    **worker_options: Any,
) -> Fleet:
    """Work off a queue on Spark's executors: `tasks` workers, each with `concurrency` handlers at a time.

    `handler` is what a `Worker` takes, or `"module:function"`. It goes on until the queue is empty, for `duration`
    seconds, or with `until="stopped"` until it is interrupted. `output` is a folder that results are added to as
    Parquet after each round. Other options are the worker's: `execution_timeout`, `prefetch`, `max_prefetch`, ….
    """
    if until not in ("empty", "stopped"):
        raise ConfigError(f"until is {until!r}; use 'empty' or 'stopped', or give a duration")
    given = named(handler) if isinstance(handler, str) else handler
    if not isinstance(given, Named):
        Handler(given)
    url = everywhere(url)
    options = dict(store_options or {})
    count = check_limit(tasks if tasks is not None else _slots(spark), MOST_TASKS, "tasks")
    limit = None if duration is None else seconds(duration, "duration", low=0.1)
    each = seconds(round_seconds, "round_seconds", low=1.0)
    clock, name = SystemClock(), f"fleet-{Ids().bits(40):010x}"
    began = clock.monotonic()
    with Hub(url, **options) as hub:
        opened = hub.queue(queue, policy=policy) if policy is not None else hub.queue(queue, create=False)
        since = opened.asynchronous.hub.clock.now() - 60_000
        fleet = Fleet(spark, url, queue, name, since, options)
        results = Results(url, queue, name, since, options)
        with _telling(opened.stats, progress, began, TELL_EVERY_IN_CLOUD if _bills(url) else TELL_EVERY):
            while True:
                left = None if limit is None else limit - (clock.monotonic() - began)
                if left is not None and left <= 0:
                    break
                shift = Shift(
                    name,
                    check_limit(concurrency, 10_000, "concurrency"),
                    each if left is None else min(each, left),
                    until == "empty",
                    seconds(grace, "grace"),
                    worker_options,
                )
                _round(spark, fleet, url, options, queue, given, shift, count)
                if fleet.failed_rounds:
                    _pause(AFTER_FAILURE * 2 ** (fleet.failed_rounds - 1), limit, clock.monotonic() - began)
                if output is not None:
                    results.add_to(spark, output)
                if until == "empty" and _is_empty(opened.stats()):
                    break
    fleet.seconds = clock.monotonic() - began
    return fleet


def _round(
    spark: SparkSession,
    fleet: Fleet,
    url: str,
    options: dict[str, Any],
    queue: str,
    handler: Named | Callable[..., Any],
    shift: Shift,
    tasks: int,
) -> None:
    """One job: every task works for a while. Rounds that fail in a row are given up in the end."""
    from pyspark.errors import PySparkException

    def task(batches: Iterator[Batch]) -> Iterator[Batch]:
        return work(url, options, queue, handler, shift, batches)

    frame: Any = spark.range(0, tasks, 1, tasks)
    fleet.rounds += 1
    try:
        with _shipped(handler):
            rows = frame.mapInArrow(task, COUNTS).collect()
    except (PySparkException, _java_error()) as error:
        fleet.failed_rounds += 1
        if fleet.failed_rounds >= MOST_FAILURES or "ConfigError" in str(error):
            raise BrigadeError(f"the fleet can't go on: {_reason(error)}") from None
        log.warning("a round of the fleet failed, and is followed by another: %s", _reason(error))
        return
    fleet.failed_rounds = 0
    fleet.tasks += [row.asDict() for row in rows]


def _pause(wanted: float, limit: float | None, gone: float) -> None:
    """Wait before another try, not beyond the time that the fleet has."""
    threading.Event().wait(wanted if limit is None else max(0.0, min(wanted, limit - gone)))


def _java_error() -> type[Exception]:
    return import_module("py4j.protocol").Py4JJavaError


def _reason(error: Exception) -> str:
    """The line of a long trace that says what happened: the first that names an exception and what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = next((line for line in lines if _RAISED.match(line)), None)
    return said or (lines[0] if lines else repr(error))


@contextmanager
def _shipped(handler: Named | Callable[..., Any]) -> Generator[None, None, None]:
    """A function of a module that lies in this directory goes along by value: executors may not have it."""
    module = None if isinstance(handler, Named) else inspect.getmodule(handler)
    if module is None or module.__name__ == "__main__" or not _is_users(module):
        yield
        return
    cloudpickle: Any = import_module("pyspark.cloudpickle")
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_users(module: Any) -> bool:
    """Whether a module is neither installed nor part of Python."""
    file = getattr(module, "__file__", None)
    if file is None:
        return False
    parts = Path(file).resolve()
    installed = "site-packages" in parts.parts or Path(sys.base_prefix) in parts.parents
    return not installed and module.__name__.partition(".")[0] not in ("brigade", "pyspark_brigade")


def _slots(spark: SparkSession) -> int:
    """How many tasks can run at once."""
    context: Any = getattr(spark, "sparkContext", None)
    return context.defaultParallelism if context is not None else 2


def _bills(url: str) -> bool:
    """Whether looking costs money."""
    return url.startswith(("s3://", "az://", "gs://"))


def _is_empty(stats: Stats) -> bool:
    return stats.ready + stats.delayed + stats.in_flight == 0


@contextmanager
def _telling(
    stats: Callable[[], Stats], progress: Callable[[Progress], None] | None, began: float, every: float
) -> Generator[None, None, None]:
    """Tell how things stand, now and then, while the block runs."""
    if progress is None:
        yield
        return
    over, clock = threading.Event(), SystemClock()

    def tell() -> None:
        while not over.wait(every):
            try:
                progress(Progress(clock.monotonic() - began, stats()))
            except BrigadeError as error:
                log.warning("the queue could not be counted: %s", error)

    thread = threading.Thread(target=tell, name="brigade-fleet-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
