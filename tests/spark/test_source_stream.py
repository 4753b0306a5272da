"""Streaming queries on real Spark: in and out of queues, through restarts, kills and company."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

import brigade
from brigade import QueuePolicy
from brigade.spark import settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

PATIENT = QueuePolicy(segment_messages=50, visibility_timeout=600)


def stream(spark: SparkSession, url: str, queue: str, **options: str) -> DataFrame:
    return spark.readStream.format("brigade").options(url=url, queue=queue, **options).load()


def into(df: DataFrame, url: str, queue: str, checkpoint: Path) -> Callable[[], StreamingQuery]:
    """What starts a query that carries everything there is into a queue."""
    sink = df.writeStream.format("brigade").options(url=url, queue=queue, checkpointLocation=str(checkpoint))
    return sink.trigger(availableNow=True).start


def finish(*starts: Callable[[], StreamingQuery]) -> None:
    """Run queries to their end, side by side. Spark gives a Python process ten seconds to start: if one was too slow
    for that on a busy machine, the query is started again from its checkpoint.
    """
    for left in (3, 2, 1, 0):
        late: list[Callable[[], StreamingQuery]] = []
        for start, query in [(start, start()) for start in starts]:
            try:
                query.awaitTermination()
            except StreamingQueryException as error:
                if not left or "failed to connect back" not in str(error):
                    raise
                late.append(start)
        if not late:
            return
        starts = tuple(late)


def drained(line: brigade.Queue) -> list[str]:
    found: list[str] = []
    while messages := line.claim(1000):
        found += [message.data.decode() for message in messages]
        line.ack_many(messages)
    return sorted(found)


@pytest.mark.parametrize("url", ["file", "s3", "postgres", "http"], indirect=True)
def test_available_now_carries_a_whole_queue_over_and_leaves_nothing_leased(
    spark: SparkSession, url: str, queue: str, tmp_path: Path
) -> None:
    with brigade.connect(url) as hub:
        line = hub.queue(queue, PATIENT)
        line.enqueue_many([f"{place:03}" for place in range(300)])
        rows = stream(spark, url, queue, maxMessagesPerTrigger="200", partitions="2").select("payload", "priority")
        finish(into(rows, url, f"{queue}-out", tmp_path / "checkpoint"))
        stats = line.stats()
        assert (stats.ready, stats.in_flight, stats.succeeded) == (0, 0, 300)
        assert drained(hub.queue(f"{queue}-out")) == [f"{place:03}" for place in range(300)]


@pytest.fixture
def local(tmp_path: Path) -> str:
    return f"file://{tmp_path}/local?fsync=off"


@pytest.mark.parametrize("url", ["file", "http"], indirect=True)
def test_a_batch_that_spark_runs_again_enqueues_nothing_twice(
    spark: SparkSession, url: str, queue: str, tmp_path: Path
) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "one.txt").write_text("a\nb\nc\n")
    rows = spark.readStream.text(str(tmp_path / "lines")).selectExpr("cast(value as binary) as payload")
    finish(into(rows, url, queue, tmp_path / "checkpoint"))
    commits = tmp_path / "checkpoint" / "commits"
    for name in ("0", ".0.crc"):
        (commits / name).unlink()
    finish(into(rows, url, queue, tmp_path / "checkpoint"))
    assert (commits / "0").exists()
    with brigade.connect(url) as hub:
        assert drained(hub.queue(queue)) == ["a", "b", "c"]


def test_two_queries_share_the_work(spark: SparkSession, local: str, queue: str, tmp_path: Path) -> None:
    with brigade.connect(local) as hub:
        line = hub.queue(queue, PATIENT)
        line.enqueue_many([f"{place:03}" for place in range(400)])
        rows = stream(spark, local, queue, maxMessagesPerTrigger="100", partitions="1").select("payload")
        finish(*(into(rows, local, f"out-{one}", tmp_path / one) for one in ("a", "b")))
        assert line.stats().succeeded == 400
        found = [drained(hub.queue(f"out-{one}")) for one in ("a", "b")]
    assert sorted(found[0] + found[1]) == [f"{place:03}" for place in range(400)]


def test_rows_are_settled_one_by_one(spark: SparkSession, local: str, queue: str, tmp_path: Path) -> None:
    counts: list[dict[str, int]] = []

    def judge(batch: DataFrame, _number: int) -> None:
        judged = batch.where("int(string(payload)) < 9").selectExpr(
            "id",
            "ref",
            "lease_token",
            "attempts",
            "element_at(array('ok', 'retry', 'dead'), int(string(payload)) % 3 + 1) as outcome",
            "3600 as delay",
            "'why' as reason",
        )
        counts.append(settle(judged, url=local, queue=queue))
        counts.append(settle(judged, url=local, queue=queue))

    with brigade.connect(local) as hub:
        line = hub.queue(queue, PATIENT)
        line.enqueue_many([str(place) for place in range(12)])
        rows = stream(spark, local, queue, partitions="1")
        sink = rows.writeStream.foreachBatch(judge).option("checkpointLocation", str(tmp_path / "checkpoint"))
        finish(sink.trigger(availableNow=True).start)
        assert counts[0] == {"ok": 3, "retry": 3, "dead": 3, "stale": 0}
        assert counts[1]["stale"] >= 6
        stats = line.stats()
        assert (stats.succeeded, stats.delayed, stats.failed, stats.in_flight) == (6, 3, 3, 0)
        assert {one.error for one in line.failed()} == {"why"}


STUCK = """
import sys, time
from brigade.spark.session import local_session

url, queue, checkpoint = sys.argv[1:]
spark = local_session(cores=1)

def work(batch, number):
    batch.count()
    print("working", flush=True)
    time.sleep(600)

rows = spark.readStream.format("brigade").options(url=url, queue=queue).load()
rows.writeStream.foreachBatch(work).option("checkpointLocation", checkpoint).start().awaitTermination()
"""


def test_a_driver_killed_in_mid_batch_loses_nothing(
    spark: SparkSession, local: str, queue: str, tmp_path: Path
) -> None:
    with brigade.connect(local) as hub:
        line = hub.queue(queue, PATIENT)
        line.enqueue_many([f"{place:03}" for place in range(100)])
        script = tmp_path / "stuck.py"
        script.write_text(textwrap.dedent(STUCK))
        driver = subprocess.Popen(
            [sys.executable, script, local, queue, str(tmp_path / "checkpoint")],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert driver.stdout is not None
        assert driver.stdout.readline() == "working\n"
        assert line.stats().in_flight == 100
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        driver.stdout.close()
        rows = stream(spark, local, queue, partitions="1").select("payload")
        finish(into(rows, local, "out", tmp_path / "checkpoint"))
        stats = line.stats()
        assert (stats.succeeded, stats.in_flight, stats.ready) == (100, 0, 0)
        assert drained(hub.queue("out")) == [f"{place:03}" for place in range(100)]


CONNECT = """
import os, sys
from brigade.spark.java import prepare_java
from pyspark.sql import SparkSession

prepare_java()
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.remote("local[1]").getOrCreate()
url = sys.argv[1]
rows = spark.range(20).selectExpr("cast(id as string) as payload")
rows.write.format("brigade").mode("append").options(url=url, queue="q").save()
seen = spark.read.format("brigade").options(url=url, queue="q").load()
print("count", seen.where("state = 'ready'").count(), type(spark).__module__)
spark.stop()
"""


@pytest.mark.slow
def test_spark_connect_works(java: Path, local: str) -> None:
    pytest.importorskip("grpc")
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, local], capture_output=True, text=True, timeout=280, cwd=Path.home()
    )
    assert "count 20 pyspark.sql.connect.session" in done.stdout, done.stderr
