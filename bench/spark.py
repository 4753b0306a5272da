"""Spark's bulk path beside Spark's own Parquet, a fleet whose handler does nothing, and requests on S3.

A million rows of 200 bytes go to `file://` (no fsync, as Parquet has none) and come back, by turns with Parquet. The
fleet works off messages in segments of a thousand, from the first claim to the last ack and its history. Requests of a
bulk write and of the work that follows are counted by a proxy in front of SeaweedFS.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import brigade
from bench.measure import MESSAGE, Ground
from brigade.testing.servers.proxy import Proxy
from brigade.testing.servers.s3 import s3_url, seaweedfs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SparkResult", "run_spark", "runs"]

ROWS = 1_000_000
FLEET = 100_000
ON_S3 = 100_000
WRITE, READ = "df.write, rows a second", "spark.read of payloads, rows a second"
AT_HAND = "df.write of rows in memory, rows a second"
WHOLE = "spark.read of all 22 columns, rows a second"


@dataclass(frozen=True, slots=True)
class SparkResult:
    """One figure, and what Parquet does where it can be asked the same."""

    case: str
    value: float
    parquet: float = 0.0


def runs(rounds: int) -> int:
    return 8 * rounds + 2


def run_spark(ground: Ground) -> list[SparkResult]:
    from brigade.spark import local_session

    spark = local_session("brigade-bench", cores=2, settings={"spark.driver.memory": "2g"})
    try:
        return [*_tables(spark, ground), *_fleet(spark, ground), *_requests(spark, ground)]
    finally:
        spark.stop()


def nothing(_message: Any) -> None:
    """A handler."""


def _tables(spark: SparkSession, ground: Ground) -> list[SparkResult]:
    df = _rows(spark, ROWS)
    at_hand = _rows(spark, ROWS).cache()
    at_hand.count()
    _save(_rows(spark, 1000), f"file://{ground.directory()}/warm")
    best: dict[str, float] = {}
    for turn in range(ground.rounds):
        place = ground.directory()
        parquet, url = f"{place}/parquet", f"file://{place}/store?fsync=off"
        ways: list[tuple[str, Callable[[], Any]]] = [
            (f"{WRITE} parquet", lambda parquet=parquet: df.write.parquet(parquet)),
            (WRITE, lambda url=url: _save(df, url)),
            (f"{AT_HAND} parquet", lambda place=place: at_hand.write.parquet(f"{place}/again")),
            (AT_HAND, lambda place=place: _save(at_hand, f"file://{place}/again-store?fsync=off")),
            (f"{READ} parquet", lambda parquet=parquet: _total(spark.read.parquet(parquet))),
            (READ, lambda url=url: _total(_load(spark, url, "payload binary"))),
            (WHOLE, lambda url=url: _total(_load(spark, url))),
        ]
        for name, work in ways:
            ground.tick(f"Spark: {name} · round {turn + 1}")
            best[name] = max(best.get(name, 0.0), ROWS / _timed(work))
    at_hand.unpersist()
    return [
        SparkResult(WRITE, best[WRITE], best[f"{WRITE} parquet"]),
        SparkResult(AT_HAND, best[AT_HAND], best[f"{AT_HAND} parquet"]),
        SparkResult(READ, best[READ], best[f"{READ} parquet"]),
        SparkResult(WHOLE, best[WHOLE]),
    ]


def _fleet(spark: SparkSession, ground: Ground) -> list[SparkResult]:
    """Microseconds a message, by the clock."""
    from brigade.spark import run

    best = float("inf")
    for turn in range(ground.rounds):
        ground.tick(f"Spark: fleet · round {turn + 1}")
        url = f"file://{ground.directory()}/store?fsync=off"
        with brigade.connect(url) as hub:
            queue = hub.queue("q")
            for _ in range(FLEET // 1000):
                queue.enqueue_many([MESSAGE] * 1000)
        done = run(spark, url, "q", "bench.spark:nothing", tasks=2, concurrency=8)
        assert done.total("processed") == FLEET, done.tasks
        best = min(best, _span(Path(url.removeprefix("file://").partition("?")[0])) / FLEET * 1e6)
    return [SparkResult("fleet of two tasks, nothing to do: µs a message, wall clock", best)]


def _span(store: Path) -> float:
    """Seconds from the first claim to the last ack, as history tells."""
    from brigade.stores.bucket.history import read_records

    claimed, ended = float("inf"), 0.0
    for path in store.rglob("*.jsonl.gz"):
        for record in read_records(path.read_bytes()):
            claimed = min(claimed, record.attempts[0].claimed_at)
            ended = max(ended, record.finished_at)
    return (ended - claimed) / 1000


def _requests(spark: SparkSession, ground: Ground) -> list[SparkResult]:
    from brigade.spark import run

    found: list[SparkResult] = []
    with seaweedfs(ground.directory()) as endpoint, Proxy(endpoint) as proxy:
        url = s3_url(proxy.endpoint, "bench")
        with brigade.connect(url) as hub:
            hub.queue("q")
        works: list[tuple[str, Callable[[], Any]]] = [
            ("S3, df.write: requests a message", lambda: _save(_rows(spark, ON_S3), url)),
            ("S3, fleet: requests a message", lambda: run(spark, url, "q", "bench.spark:nothing", tasks=2)),
        ]
        for name, work in works:
            ground.tick(f"Spark: {name}")
            before = sum(proxy.counts.values())
            work()
            found.append(SparkResult(name, (sum(proxy.counts.values()) - before) / ON_S3))
    return found


def _rows(spark: SparkSession, count: int) -> DataFrame:
    """200 characters each that compress about as well as what people send: by half."""
    parts = ", ".join(f"lpad(hex(xxhash64(id, {n})), 16, '0')" for n in range(13))
    payload = f"cast(substr(concat({parts}), 1, 200) as binary) as payload"
    return spark.range(0, count, 1, 4).selectExpr(payload)


def _save(df: DataFrame, url: str) -> None:
    df.write.format("brigade").mode("append").options(url=url, queue="q").save()


def _load(spark: SparkSession, url: str, schema: str | None = None) -> DataFrame:
    reader = spark.read.format("brigade").options(url=url, queue="q")
    return (reader.schema(schema) if schema else reader).load()


def _total(df: DataFrame) -> Any:
    return df.selectExpr("sum(length(payload))").collect()


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
