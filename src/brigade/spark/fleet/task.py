"""A worker inside a Spark task. It claims, runs handlers and settles like any other; Spark only gives it a place.

What is acked is acked for good and its result is in history, so a task that dies loses nothing: the leases it held run
out, and whoever claims next takes them over.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from brigade.clock import SystemClock
from brigade.errors import ConfigError
from brigade.spark.arrow import Batch, pa
from brigade.spark.garbage import spare_modules
from brigade.sync import Hub
from brigade.worker import Worker

__all__ = ["COUNTS", "Named", "Shift", "resolve", "work"]

WATCH_EVERY = 0.5
COUNTS = (
    "task int, worker string, processed bigint, failed bigint, released bigint, lost bigint, requests bigint, "
    "seconds double"
)
"""What a task tells when it has ended."""


class Named(msgspec.Struct, frozen=True):
    """A handler that executors import by its name; `folder` is looked through first."""

    module: str
    path: str
    folder: str


class Shift(msgspec.Struct, frozen=True):
    """How a task works: `seconds` is how long at the most, None for until all is done."""

    run: str
    concurrency: int
    seconds: float | None
    until_empty: bool
    grace: float
    options: dict[str, Any]


def resolve(handler: Named | Callable[..., Any]) -> Callable[..., Any]:
    """The function itself."""
    if not isinstance(handler, Named):
        return handler
    if handler.folder not in sys.path:
        sys.path.insert(0, handler.folder)
    try:
        found: Any = importlib.import_module(handler.module)
    except ImportError as error:
        raise ConfigError(
            f"executors can't import {handler.module!r} ({error}); install it there, or ship it by spark.submit.pyFiles"
        ) from None
    for part in handler.path.split("."):
        found = getattr(found, part)
    return found


def work(
    url: str,
    store_options: Mapping[str, Any],
    queue: str,
    handler: Named | Callable[..., Any],
    shift: Shift,
    batches: Iterator[Batch],
) -> Iterator[Batch]:
    """Work until the queue is empty, time is up, or nobody waits for this task any more; then tell what was done."""
    from pyspark import TaskContext

    context = TaskContext.get()
    task = context.partitionId() if context is not None else 0
    attempt = context.taskAttemptId() if context is not None else 0
    for _ in batches:
        pass
    spare_modules()
    clock = SystemClock()
    began = clock.monotonic()
    owner = f"{shift.run}-{task}-{attempt}"
    with Hub(url, **store_options) as hub:
        opened = hub.queue(queue, create=False)
        worker = Worker(
            opened,
            resolve(handler),
            worker_id=owner,
            concurrency=shift.concurrency,
            grace=shift.grace,
            **shift.options,
        )
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(worker, shift.seconds, over), name="brigade-fleet", daemon=True)
        watch.start()
        try:
            worker.run(until_empty=shift.until_empty)
        finally:
            over.set()
        watch.join()
        done = worker.status()
    row = {
        "task": [task],
        "worker": [owner],
        "processed": [done.processed],
        "failed": [done.failed],
        "released": [done.released],
        "lost": [done.lost],
        "requests": [sum(hub.requests().values())],
        "seconds": [clock.monotonic() - began],
    }
    kinds = [pa.int32(), pa.string(), *[pa.int64()] * 5, pa.float64()]
    yield pa.record_batch([pa.array(values, kind) for values, kind in zip(row.values(), kinds, strict=True)], list(row))


def _watch(worker: Worker, seconds: float | None, over: threading.Event) -> None:
    """Stop the worker when its time is up, or when whoever started this process is gone: nobody else will."""
    parent = os.getppid()
    clock = SystemClock()
    end = None if seconds is None else clock.monotonic() + seconds
    while not over.wait(WATCH_EVERY if end is None else max(0.01, min(WATCH_EVERY, end - clock.monotonic()))):
        if os.getppid() != parent:
            worker.stop(0.0)
            os._exit(1)
        if end is not None and clock.monotonic() >= end:
            worker.stop()
            return
