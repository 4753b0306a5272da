"""Keeps the tables in shape: many small files become one, and old days go."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from brigade.checks import check_limit
from brigade.clock import SystemClock
from brigade.ids import Ids
from brigade.spark.history.folder import Folder
from brigade.spark.history.tables import KEYS, TABLES, ddl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Tidied", "compact", "drop_old", "finish_compaction"]

JOURNAL = "_brigade/compaction.json"
STAGED = "_brigade/compacted"
MOST_FILES = 8


class Tidied(msgspec.Struct):
    """What upkeep has done: files that became fewer, and days that went."""

    before: int = 0
    after: int = 0
    dropped: int = 0


class Journal(msgspec.Struct):
    """A partition whose new files are ready: moving them in and taking the old ones away may be repeated."""

    partition: str
    old: list[str]
    new: list[str]


def compact(spark: SparkSession, output: str, *, most_files: int = MOST_FILES) -> Tidied:
    """Rewrite partitions that have more than `most_files` files as one file each."""
    check_limit(most_files, 10_000, "most_files")
    folder = Folder(spark, output)
    done = Tidied()
    with folder.held():
        finish_compaction(folder)
        for name in TABLES:
            for partition in partitions(folder, name):
                files = _files(folder, partition)
                if len(files) > most_files:
                    done.before += len(files)
                    done.after += _rewrite(spark, folder, name, partition, files)
    return done


def _rewrite(spark: SparkSession, folder: Folder, name: str, partition: str, files: list[str]) -> int:
    """New files are made aside; a journal says so; then they take the place of the old ones."""
    folder.delete(STAGED)
    inner = {column: kind for column, kind in TABLES[name].items() if column not in ("queue", "date")}
    keys = [key for key in KEYS[name] if key in inner]
    rows = spark.read.schema(ddl(inner)).parquet(*(folder.at(f"{partition}/{file}") for file in files))
    rows.dropDuplicates(keys).coalesce(1).write.option("compression", "zstd").parquet(folder.at(STAGED))
    made = [file for file in folder.names(STAGED) if file.endswith(".parquet")]
    uid = f"{Ids().bits(48):012x}"
    journal = Journal(partition, files, [f"compact-{uid}-{file}" for file in made])
    for file in made:
        folder.move(f"{STAGED}/{file}", f"{STAGED}/compact-{uid}-{file}")
    folder.write(JOURNAL, msgspec.json.encode(journal).decode())
    finish_compaction(folder)
    return len(made)


def finish_compaction(folder: Folder) -> None:
    """Complete a compaction that stopped half-way. Until the old files are gone, a row may be seen twice."""
    text = folder.read(JOURNAL)
    if text is None:
        return
    journal = msgspec.json.decode(text, type=Journal)
    for file in journal.new:
        if folder.exists(f"{STAGED}/{file}"):
            folder.move(f"{STAGED}/{file}", f"{journal.partition}/{file}")
    for file in journal.old:
        folder.delete(f"{journal.partition}/{file}")
    folder.delete(JOURNAL)
    folder.delete(STAGED)


def drop_old(spark: SparkSession, output: str, keep_days: int) -> Tidied:
    """Drop the days that ended more than `keep_days` days ago."""
    check_limit(keep_days, 100_000, "keep_days")
    folder = Folder(spark, output)
    today = datetime.fromtimestamp(SystemClock().now() / 1000, UTC).date()
    oldest = today - timedelta(days=keep_days)
    done = Tidied()
    with folder.held():
        finish_compaction(folder)
        for name in TABLES:
            for partition in partitions(folder, name):
                if date.fromisoformat(partition.rpartition("date=")[2]) < oldest:
                    folder.delete(partition)
                    done.dropped += 1
    return done


def partitions(folder: Folder, name: str) -> list[str]:
    """A table's folders by queue and day."""
    return [
        f"{name}/{queue}/{day}"
        for queue in folder.names(name)
        if queue.startswith("queue=")
        for day in folder.names(f"{name}/{queue}")
        if day.startswith("date=")
    ]


def _files(folder: Folder, partition: str) -> list[str]:
    return [file for file in folder.names(partition) if file.endswith(".parquet") and not file.startswith((".", "_"))]
