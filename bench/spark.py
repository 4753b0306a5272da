"""`python -m bench.spark`: Spark's bulk path beside Spark's own Parquet, on this machine, in one run.

Writes and reads `--messages` rows of 200 bytes, best of `--rounds`, and counts the requests that a bulk write and the
work that follows it make on S3 (SeaweedFS behind a proxy that counts).
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import brigade
from brigade.spark import local_session
from brigade.testing.servers.proxy import Proxy
from brigade.testing.servers.s3 import s3_url, seaweedfs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUM = "sum(length(payload))"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--no-s3", action="store_true", help="leave the count of requests out")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="brigade-bench-spark-"))
    try:
        spark = local_session("brigade-bench")
        found = throughput(spark, root, given.messages, given.rounds)
        if not given.no_s3:
            found["requests a message, S3"] = requests(spark, root, min(given.messages, 100_000))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        print(f"{name:42} {value:,.4f}" if value < 10 else f"{name:42} {value:,.0f}")


def rows(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 4).selectExpr("cast(rpad(string(id), 200, 'x') as binary) as payload")


def throughput(spark: SparkSession, root: Path, count: int, rounds: int) -> dict[str, float]:
    """Rows a second, best of the rounds; both ways take turns, so that they meet the same machine."""
    df = rows(spark, count)
    save(rows(spark, 1000), f"file://{root}/warm")
    best = {"write Parquet": 0.0, "write Brigade": 0.0, "read Parquet": 0.0, "read Brigade": 0.0}
    for turn in range(rounds):
        parquet, url = f"{root}/{turn}.parquet", f"file://{root}/{turn}"
        for name, work in (
            ("write Parquet", lambda: df.write.parquet(parquet)),  # noqa: B023 - run at once
            ("write Brigade", lambda: save(df, url)),  # noqa: B023
            ("read Parquet", lambda: total(spark.read.parquet(parquet))),  # noqa: B023
            ("read Brigade", lambda: total(load(spark, url))),  # noqa: B023
        ):
            best[name] = max(best[name], count / timed(work))
    return {
        **{f"{name}, rows/s": value for name, value in best.items()},
        "write, share of Parquet's speed": best["write Brigade"] / best["write Parquet"],
        "read, share of Parquet's speed": best["read Brigade"] / best["read Parquet"],
    }


def requests(spark: SparkSession, root: Path, count: int) -> float:
    """Requests a message of a bulk write, seen by a proxy in front of the store."""
    with seaweedfs(root / "seaweedfs") as endpoint, Proxy(endpoint) as proxy:
        url = s3_url(proxy.endpoint, "bench")
        with brigade.connect(url) as hub:
            hub.queue("q")
        before = sum(proxy.counts.values())
        save(rows(spark, count), url)
        return (sum(proxy.counts.values()) - before) / count


def save(df: DataFrame, url: str) -> None:
    df.write.format("brigade").mode("append").options(url=url, queue="q").save()


def load(spark: SparkSession, url: str) -> DataFrame:
    return spark.read.format("brigade").options(url=url, queue="q").load()


def total(df: DataFrame) -> Any:
    return df.selectExpr(SUM).collect()


def timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
