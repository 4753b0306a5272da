"""The table `queues`: one row a queue, with the counts that `stats` gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType, StructField, StructType

from brigade.names import check_queue_name
from brigade.spark.arrow import Batch, Schema, pa
from brigade.spark.source.options import Place, Settings

__all__ = ["Queues"]

_COUNTS = ("total", "ready", "delayed", "in_flight", "succeeded", "failed", "dead_lettered")


class Queues:
    """How many messages each queue has, and where they stand."""

    schema = StructType(
        [
            StructField("queue", StringType()),
            *(StructField(name, LongType()) for name in _COUNTS),
            StructField("oldest_age", DoubleType()),
            StructField("paused", BooleanType()),
        ]
    )

    def settings(self, given: Settings) -> Any:
        wanted = given.text("queue")
        return None if wanted is None else check_queue_name(wanted)

    def plan(self, place: Place, chosen: Any) -> Sequence[InputPartition]:
        if chosen is not None:
            return [InputPartition(chosen)]
        with place.connect() as hub:
            return [InputPartition(name) for name in hub.queues()]

    def read(self, place: Place, chosen: Any, part: Any, schema: Schema) -> Iterator[Batch]:
        with place.connect() as hub:
            stats = hub.queue(part, create=False).stats()
        counts = {name: getattr(stats, name) for name in _COUNTS}
        row = {"queue": part, **counts, "oldest_age": stats.oldest_age, "paused": stats.paused}
        yield pa.RecordBatch.from_pylist([{name: row[name] for name in schema.names}], schema=schema)
