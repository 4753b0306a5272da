"""Spark knows `format("brigade")` without being told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import brigade

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_source_is_found_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    with brigade.connect(url) as hub:
        hub.queue("tasks").enqueue_many(["a", "b", "c"])
        hub.queue("idle")
    rows = spark.read.format("brigade").option("url", url).load().orderBy("queue").collect()
    assert [(row.queue, row.ready, row.paused) for row in rows] == [("idle", 0, False), ("tasks", 3, False)]
