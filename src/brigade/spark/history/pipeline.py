"""Turns history into tables, a bit at a time. Each run adds what is new; a run that died is made good by the next.

Rows that are in the tables already are not added again, so nothing depends on what a run that died had written, nor
on whether history tells a message twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from brigade.clock import SystemClock
from brigade.spark.history.columns import ATTEMPTS, MESSAGES
from brigade.spark.history.folder import Folder
from brigade.spark.history.reading import Listed, list_history, read_records
from brigade.spark.history.state import State, load_state, save_state
from brigade.spark.history.tables import KEYS, read_table
from brigade.spark.history.upkeep import finish_compaction
from brigade.stores.history import HistoryPart
from brigade.stores.opening import everywhere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Collected", "collect"]

LOOKBACK = 3600.0
"""Seconds for which a part of history may come late: a file is named before it is written."""

LOOKBACK_ROWS = 600.0
"""The same for a database, where a row's time is its statement's: all rows of that time are read again."""

ROUND_RECORDS = 2_000_000
FILE_ROWS = 500_000


class Collected(msgspec.Struct):
    """What a run has added. `records` were read; those that were there before are not among `messages`."""

    parts: int = 0
    records: int = 0
    messages: int = 0
    attempts: int = 0
    queues: list[str] = []
    seconds: float = 0.0


def collect(
    spark: SparkSession,
    url: str,
    output: str,
    *,
    queues: Sequence[str] | None = None,
    lookback: float | None = None,
    progress: Callable[[Collected], None] | None = None,
    **options: Any,
) -> Collected:
    """Bring the tables in the folder `output` up to date with a store's history."""
    url = everywhere(url)
    clock = SystemClock()
    began = clock.monotonic()
    folder = Folder(spark, output)
    done = Collected()
    with folder.held():
        finish_compaction(folder)
        state = load_state(folder, url)
        assert state is not None
        files = state.kind not in ("postgresql", "postgres")
        span = round(1000 * (lookback if lookback is not None else LOOKBACK if files else LOOKBACK_ROWS))
        listed = list_history(
            url, lambda queue: state.since(queue, span), queues, skip=state.has if files else None, **options
        )
        done.queues = sorted(listed.orderings)
        for some in _rounds(listed.parts):
            _add(spark, folder, url, Listed(some, listed.orderings, lists_files=files), done, options)
            _commit(folder, state, some, span)
            done.seconds = clock.monotonic() - began
            if progress is not None:
                progress(done)
    done.seconds = clock.monotonic() - began
    return done


def _commit(folder: Folder, state: State, parts: list[HistoryPart], span: int) -> None:
    state.note(parts, span)
    save_state(folder, state)


def _rounds(parts: list[HistoryPart]) -> list[list[HistoryPart]]:
    """What is read at a time: a long history doesn't start over when it is interrupted."""
    rounds: list[list[HistoryPart]] = []
    held = ROUND_RECORDS
    for part in parts:
        if held >= ROUND_RECORDS:
            rounds.append([])
            held = 0
        rounds[-1].append(part)
        held += part.count
    return rounds


def _add(
    spark: SparkSession, folder: Folder, url: str, listed: Listed, done: Collected, options: dict[str, Any]
) -> None:
    """Read these parts, and add the rows that the tables don't have."""
    from pyspark import StorageLevel

    records = read_records(spark, url, listed, **options).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        touched = records.groupBy("queue", "date").count().collect()
        read = sum(row["count"] for row in touched)
        done.parts += len(listed.parts)
        done.records += read
        if read:
            places = [(row["queue"], row["date"]) for row in touched]
            done.messages += _append(spark, folder, "messages", records.select(*MESSAGES), places)
            done.attempts += _append(spark, folder, "attempts", _leases(records), places)
    finally:
        records.unpersist()


def _leases(records: DataFrame) -> DataFrame:
    """One row for each lease of these records."""
    from pyspark.sql import functions as f

    each = records.select("queue", "date", "ref", "id", "outcome", f.posexplode("leases").alias("place", "lease"))
    held = "cast(unix_millis(lease.ended_at) - unix_millis(lease.claimed_at) as bigint) as held_ms"
    made = each.selectExpr("queue", "date", "ref", "id", "outcome", "place + 1 as number", "lease.*", held)
    return made.select(*ATTEMPTS)


def _append(spark: SparkSession, folder: Folder, name: str, rows: DataFrame, places: list[tuple[str, Any]]) -> int:
    """Add rows to a table, each once; returns how many."""
    from pyspark.sql import functions as f

    keys = KEYS[name]
    fresh = rows.dropDuplicates(keys)
    known = read_table(spark, folder, name)
    if known is not None:
        near = (f.col("queue").isin(sorted({queue for queue, _ in places}))) & (
            f.col("date").isin(sorted({date for _, date in places}))
        )
        fresh = fresh.join(known.where(near).select(*keys), keys, "left_anti").select(*rows.columns)
    fresh = fresh.persist()
    try:
        count = fresh.count()
        if count:
            files = max(1, -(-count // FILE_ROWS))
            writer = fresh.coalesce(files).write.mode("append").partitionBy("queue", "date")
            writer.option("compression", "zstd").parquet(folder.at(name))
        return count
    finally:
        fresh.unpersist()
