"""Bulk operations on what SQL chooses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import brigade
from brigade.errors import ConfigError, QueueNotFound
from brigade.spark.bulk import cancel, redrive, reprioritize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("url", ["file", "http"], indirect=True)
def test_failures_and_waiting_messages_are_chosen_by_sql(spark: SparkSession, url: str) -> None:
    policy = brigade.QueuePolicy(failure=brigade.Failure("dead-letter", dead_letter_queue="letters"))
    with brigade.connect(url) as hub:
        queue = hub.queue("orders", policy=policy)
        queue.enqueue_many([{"n": n} for n in range(20)])
        for message in queue.claim(20, owner="w"):
            queue.nack(message, error="Timeout" if message.data["n"] < 5 else "bug")
        assert redrive(spark, url, "orders", "error = 'Timeout'", dry_run=True).chosen == 5
        assert queue.stats().ready == 0
        done = redrive(spark, url, "orders", "error = 'Timeout' and get_json_object(data, '$.n') > 0")
        assert (done.chosen, done.done) == (4, 4)
        assert sorted(one.data["n"] for one in queue.peek(10)) == [1, 2, 3, 4]

        queue.enqueue_many([{"n": n} for n in (7, 8)], delay=3600)
        chosen = cancel(spark, url, "orders", "get_json_object(data, '$.n') in (1, 7)")
        assert (chosen.chosen, chosen.done) == (2, 2)
        stats = queue.stats()
        assert (stats.ready, stats.delayed) == (3, 1)

        moved = reprioritize(spark, url, "orders", 0, "get_json_object(data, '$.n') = 3")
        assert (moved.chosen, moved.done) == (1, 1)
        assert queue.claim(1, owner="w")[0].data == {"n": 3}


def test_what_cannot_be_chosen_is_told(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with brigade.connect(url) as hub:
        hub.queue("orders")
    with pytest.raises(ConfigError, match="columns are id, priority"):
        cancel(spark, url, "orders", "colour = 'red'")
    with pytest.raises(ConfigError, match="columns are"):
        redrive(spark, url, "orders", "not sql at all (")
    with pytest.raises(ConfigError, match="priority"):
        reprioritize(spark, url, "orders", 10)
    with pytest.raises(QueueNotFound):
        redrive(spark, url, "nothing")
