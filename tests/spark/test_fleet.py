"""Workers on Spark's executors: the same promises as everywhere, whoever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import brigade
from brigade.errors import BrigadeError, ConfigError, QueueNotFound
from brigade.spark.audit import audit
from brigade.spark.fleet import run
from brigade.spark.fleet.fleet import MOST_FAILURES
from brigade.spark.history import collect
from brigade.spark.history.engines import DuckEngine
from postgres_server import database, postgres
from served import served

__all__ = ["database", "postgres"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLICY = brigade.QueuePolicy(
    visibility_timeout=5.0,
    failure=brigade.Failure("hybrid", max_retries=2, dead_letter_queue="letters"),
    backoff=brigade.Backoff(base=0, maximum=0),
)


def fill(url: str, count: int, policy: brigade.QueuePolicy = POLICY) -> list[str]:
    with brigade.connect(url) as hub:
        receipts = hub.queue("pages", policy=policy).enqueue_many([{"n": n} for n in range(count)])
    return [receipt.id for receipt in receipts]


def handle(message: Any, context: Any) -> Any:
    """Fails now and then, for good, or asks for another time."""
    n = message.data["n"]
    if n % 20 == 1:
        raise brigade.Reject("never")
    if n % 20 == 2 and message.attempt == 1:
        raise brigade.Retry("once more", delay=0)
    if n % 20 == 3 and message.attempt < 3:
        raise ValueError("no luck")
    return {"n": n, "by": context.worker_id}


async def handle_async(message: Any) -> Any:
    return message.data["n"]


@pytest.fixture(params=["file", "postgres", "http"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgres":
        yield request.getfixturevalue("database")
    elif request.param == "http":
        with served(f"file://{tmp_path}/served?fsync=off") as serving:
            yield serving.address
    else:
        yield f"file://{tmp_path}/store"


def test_a_fleet_works_a_queue_off(spark: SparkSession, tmp_path: Path, place: str) -> None:
    url = place
    ids = fill(url, 60)
    seen: list[Any] = []
    fleet = run(spark, url, "pages", handle, concurrency=4, output=str(tmp_path / "out"), progress=seen.append)
    assert fleet.total("processed") == 57
    assert fleet.total("failed") == 3 + 3 + 3 * 2
    assert {row["task"] for row in fleet.tasks} == {0, 1}
    rows = {row.id: row for row in fleet.results.collect()}
    assert set(rows) == set(ids)
    assert sum(row.outcome == "processed" for row in rows.values()) == 57
    dead = [row for row in rows.values() if row.outcome == "dead-lettered"]
    assert [row.reason for row in dead] == ["rejected"] * 3
    assert all(f'"by":"{fleet.run}' in row.result for row in rows.values() if row.outcome == "processed")
    written = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row.id for row in written.collect()) == sorted(ids)


def test_async_handlers_and_a_time_limit(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    fill(url, 40)
    fleet = run(spark, url, "pages", handle_async, tasks=1, until="stopped", duration=4.0)
    assert fleet.total("processed") == 40
    assert fleet.rounds == 1


def test_bad_arguments_are_told_before_spark_starts(tmp_path: Path) -> None:
    url, nobody = f"file://{tmp_path}/store", cast_session()
    fill(url, 1)
    with pytest.raises(QueueNotFound):
        run(nobody, url, "nothing", handle, tasks=1)
    with pytest.raises(ConfigError, match="module:function"):
        run(nobody, url, "pages", "crawl", tasks=1)
    with pytest.raises(ConfigError, match="until"):
        run(nobody, url, "pages", handle, tasks=1, until="never")
    with pytest.raises(ConfigError, match="tasks"):
        run(nobody, url, "pages", handle, tasks=0)


def cast_session() -> Any:
    return None


def test_a_handler_that_executors_cannot_import_ends_the_fleet(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    fill(url, 1)
    with pytest.raises(BrigadeError, match="nowhere"):
        run(spark, url, "pages", "nowhere_at_all:handle", tasks=1)


class Away:
    """A handler that no executor can have, as if the store were away whenever a round begins."""

    def __call__(self, message: Any) -> None: ...

    def __reduce__(self) -> Any:
        return _away, ()


def _away() -> Any:
    raise brigade.StoreUnavailable("the store is away")


def test_rounds_that_fail_are_tried_again_after_a_while(spark: SparkSession, tmp_path: Path) -> None:
    """So a store that is away for seconds doesn't end a fleet: without waiting, it would be given up at once."""
    url = f"file://{tmp_path}/store"
    fill(url, 1)
    fleet = run(spark, url, "pages", Away(), tasks=1, until="stopped", duration=2.5)
    assert 1 <= fleet.rounds == fleet.failed_rounds < MOST_FAILURES


DRIVER = """
import sys, time
from brigade.spark.fleet import run
from brigade.spark.session import local_session

def handle(message):
    time.sleep(0.02)
    return message.data["n"]

session = local_session(cores=2, settings={"spark.driver.memory": "512m"})
print("ready", flush=True)
run(session, sys.argv[1], "pages", handle, concurrency=2)
print("done", flush=True)
"""


def test_killed_processes_lose_nothing_and_ack_nothing_undone(spark: SparkSession, tmp_path: Path) -> None:
    """First a Python process of an executor is killed, then the driver with all of Spark; the next one completes."""
    url = f"file://{tmp_path}/store"
    ids = fill(url, 600)
    environment = {**os.environ, "BRIGADE_TEST_FLEET": str(tmp_path)}
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, url],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
        with brigade.connect(url) as hub:
            queue = hub.queue("pages")
            wait(lambda: queue.stats().succeeded >= 50)
            os.kill(workers_of(str(tmp_path))[0], signal.SIGKILL)
            before = queue.stats().succeeded
            wait(lambda: queue.stats().succeeded >= before + 50)
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait(60)
            wait(lambda: not workers_of(str(tmp_path)))
            assert queue.stats().succeeded < 600
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
    fleet = run(spark, url, "pages", handle_async)
    assert 0 < fleet.total("processed") < 600
    tables = str(tmp_path / "tables")
    collect(spark, url, tables)
    with brigade.connect(url) as hub:
        verdict = audit(DuckEngine(tables), expected=ids, hub=hub)
    assert (verdict.holds, verdict.messages, verdict.waiting) == (True, 600, 0)


def wait(reached: Any, seconds: float = 200.0) -> None:
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def workers_of(mark: str) -> list[int]:
    """Python processes that run tasks, of the Spark that was started with this mark in its environment."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            environ = (process / "environ").read_bytes()
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            above = (Path("/proc") / str(parent) / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if b"pyspark.daemon" in command and b"pyspark.daemon" in above and mark.encode() in environ:
            found.append(int(process.name))
    return found
