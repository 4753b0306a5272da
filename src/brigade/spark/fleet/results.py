"""What a fleet's handlers gave back, read from history: there a result is written together with its ack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brigade.spark.history.reading import Listed, list_history, read_records
from brigade.stores.history import HistoryPart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Results"]

COLUMNS = (
    "id",
    "outcome",
    "result",
    "error",
    "reason",
    "attempts",
    "enqueued_at",
    "started_at",
    "finished_at",
    "run_ms",
    "worker",
    "correlation_id",
    "ref",
)


class Results:
    """The messages of a queue that one fleet has ended, since it began."""

    def __init__(self, url: str, queue: str, run: str, since: int, options: dict[str, Any]) -> None:
        self._url = url
        self._queue = queue
        self._run = run
        self._since = since
        self._options = options
        self._written: set[str] = set()
        self._began = False

    def read(self, spark: SparkSession) -> DataFrame:
        listed = list_history(self._url, lambda _: self._since, [self._queue], **self._options)
        return self._frame(spark, listed)

    def _frame(self, spark: SparkSession, listed: Listed) -> DataFrame:
        from pyspark.sql import functions as f

        records = read_records(spark, self._url, listed, **self._options)
        mine = records.where(f.col("worker").startswith(f"{self._run}-"))
        return mine.select(*COLUMNS).dropDuplicates(["ref"])

    def add_to(self, spark: SparkSession, output: str) -> int:
        """Add what was not there before to a folder of Parquet files; returns how many parts of history that took.

        Whoever starts again with the same folder gets a fleet of another name, so no row comes twice.
        """
        listed = list_history(self._url, lambda _: self._since, [self._queue], skip=self._has, **self._options)
        if not listed.parts:
            return 0
        rows = self._frame(spark, listed)
        if not listed.lists_files and self._began:
            known = spark.read.schema(rows.schema).parquet(output).where(f"worker like '{self._run}-%'")
            rows = rows.join(known.select("ref"), "ref", "left_anti").select(*COLUMNS)
        rows.write.mode("append").parquet(output)
        self._began = True
        self._written |= {part.key for part in listed.parts if listed.lists_files}
        return len(listed.parts)

    def _has(self, part: HistoryPart) -> bool:
        return part.key in self._written
