"""Reads history on executors: the driver lists its parts, tasks fetch and decode them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from brigade.errors import ConfigError
from brigade.hub import AsyncHub
from brigade.spark.arrow import Batch
from brigade.spark.history.columns import RECORDS
from brigade.spark.history.rows import to_batch
from brigade.stores.history import HistoryPart, HistoryStore, Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Listed", "list_history", "read_records"]

TASK_RECORDS = 50_000
BATCH_RECORDS = 10_000
AT_ONCE = 8


class Listed:
    """What there is to read: parts of history, and each queue's ordering."""

    def __init__(self, parts: Sequence[HistoryPart], orderings: dict[str, str], *, lists_files: bool) -> None:
        self.parts = list(parts)
        self.orderings = orderings
        self.lists_files = lists_files


def list_history(
    url: str,
    since: Callable[[str], int],
    queues: Sequence[str] | None = None,
    *,
    skip: Callable[[HistoryPart], bool] | None = None,
    **options: Any,
) -> Listed:
    """The parts of history of these queues, or of all, written since the time that `since` gives for each."""

    async def look() -> Listed:
        async with AsyncHub(url, **options) as hub:
            store = _history_of(hub)
            names = await hub.queues() if queues is None else list(queues)
            orderings: dict[str, str] = {}
            parts: list[HistoryPart] = []
            for name in names:
                queue = await hub.queue(name, create=False)
                orderings[name] = queue.policy.ordering
                parts += await store.history_parts(name, since(name))
            files = any(part.key.endswith(".gz") for part in parts)
            kept = [part for part in parts if skip is None or not skip(part)]
            return Listed(kept, orderings, lists_files=files)

    return asyncio.run(look())


def _history_of(hub: AsyncHub) -> HistoryStore:
    store = hub.store
    if not isinstance(store, HistoryStore):
        raise ConfigError(
            f"{hub.address[0]} doesn't hand out its history; give the URL of the bucket or database behind it"
        )
    return store


def read_records(spark: SparkSession, url: str, listed: Listed, **options: Any) -> DataFrame:
    """The records of these parts, with the columns of `RECORDS`. A record may come twice."""
    bins = _bins(listed.parts)
    orderings = listed.orderings

    def read(batches: Iterable[Batch]) -> Iterator[Batch]:
        numbers: list[int] = [number for batch in batches for number in batch.column(0).to_pylist()]
        return _read(url, options, [part for number in numbers for part in bins[number]], orderings)

    ddl = ", ".join(f"{name} {kind}" for name, kind in RECORDS.items())
    count = max(1, len(bins))
    tasks: Any = spark.range(0, len(bins), 1, count)
    return tasks.mapInArrow(read, ddl)


def _bins(parts: Iterable[HistoryPart]) -> list[list[HistoryPart]]:
    """Parts for each task, neighbours together: about as many records each."""
    bins: list[list[HistoryPart]] = []
    held = TASK_RECORDS
    for part in parts:
        if held >= TASK_RECORDS:
            bins.append([])
            held = 0
        bins[-1].append(part)
        held += max(part.count, 100)
    return bins


def _read(url: str, options: dict[str, Any], parts: list[HistoryPart], orderings: dict[str, str]) -> Iterator[Batch]:
    """In a task: fetch several parts at a time, and hand their records on in batches."""
    loop = asyncio.new_event_loop()
    hub = AsyncHub(url, **options)
    try:
        loop.run_until_complete(hub.open())
        store = _history_of(hub)

        async def fetch(some: Sequence[HistoryPart]) -> list[list[Record]]:
            return await asyncio.gather(*(store.read_history(part) for part in some))

        for start in range(0, len(parts), AT_ONCE):
            some = parts[start : start + AT_ONCE]
            for part, records in zip(some, loop.run_until_complete(fetch(some)), strict=True):
                for at in range(0, len(records), BATCH_RECORDS):
                    yield to_batch(records[at : at + BATCH_RECORDS], orderings[part.queue])
    finally:
        loop.run_until_complete(hub.close())
        loop.close()
