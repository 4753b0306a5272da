"""The audit finds each kind of broken promise in a history that has it, and none in one that real workers made."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from planted import START, lease, record, segment, write

import brigade
from brigade.spark.audit import Verdict, audit
from brigade.spark.history import collect
from brigade.spark.history.engines import DuckEngine, SparkEngine
from brigade.stores.bucket.keys import lane_name
from brigade.stores.history import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STRICT = lane_name("g")


def one(leases: list[object], **changes: object) -> Record:
    return record(f"{segment(1)}-0", leases, **changes)  # type: ignore[arg-type]


def planted() -> dict[str, list[Record]]:
    """Histories, by the checks that must find something in them."""
    half = segment(4)
    lane = segment(3, STRICT)
    in_lane = {"lane": STRICT, "group": "g", "queue": "lanes"}
    between = {**in_lane, "queue": "between"}
    told = f"{segment(1)}-0"
    return {
        "lost": [record(f"{half}-{place}", [lease(1, 0, 1)], absent=[3]) for place in (0, 2)],
        "redelivered": [one([lease(1, 0, 1), lease(2, 2, 3, "expired")])],
        "redelivered version overlap": [
            record(told, [lease(1, 0, 5)]),
            record(told, [lease(1, 1, 6, owner="v")]),
        ],
        # The second lease lies within the first: the third overlaps the first, not the one before it.
        "overlap": [one([lease(1, 0, 50, "expired"), lease(2, 10, 20, "nacked"), lease(3, 30, 60)])],
        "version": [one([lease(2, 0, 5, "nacked"), lease(1, 10, 20)])],
        "attempts": [one([lease(1, 0, 1)], counted=5)],
        "unexplained": [one([lease(1, 0, 1, "nacked")])],
        "order": [
            record(f"{lane}-0", [lease(3, 30, 40)], **in_lane),
            record(f"{lane}-1", [lease(1, 0, 5, "nacked"), lease(2, 10, 20)], **in_lane),
            record(f"{lane}-2", [lease(4, 50, 60)], **in_lane),
            one([lease(1, 35, 36)], **{**in_lane, "queue": "more"}),
        ],
        # Between two leases of the first one, the second is handed out.
        "order between": [
            record(f"{segment(1, STRICT)}-0", [lease(1, 0, 5, "nacked"), lease(3, 40, 50)], **between),
            record(f"{segment(1, STRICT)}-0", [lease(1, 10, 20)], **between),
        ],
        # Both are as they should be: the first call was slow, and its message reached the lane after the second one.
        "": [
            record(f"{segment(1, STRICT)}-0", [lease(1, 10, 20)], **{**in_lane, "queue": "slow"}),
            record(
                f"{segment(1, STRICT)}-0", [lease(1, 5, 8)], **{**in_lane, "queue": "slow"}, enqueued_at=START + 4000
            ),
        ],
        "lane": [
            record(f"{segment(1, STRICT)}-0", [lease(1, 0, 30)], **{**in_lane, "queue": "shared"}),
            record(f"{segment(1, STRICT)}-0", [lease(1, 20, 40)], **{**in_lane, "queue": "shared"}),
        ],
    }


def found(verdict: Verdict) -> dict[str, int]:
    return {finding.check: finding.found for finding in verdict.findings if finding.found}


@pytest.fixture(scope="module")
def broken(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, list[Record]]]:
    """The tables of a history with every kind of violation in it."""
    root = tmp_path_factory.mktemp("broken")
    plants = planted()
    clean = [[record(f"{segment(1)}-0", [lease(1, 0, 1)])] for _ in range(3)]
    write(f"file://{root}/store", *plants.values(), *clean)
    collect(spark, f"file://{root}/store", f"{root}/tables")
    return f"{root}/tables", plants


@pytest.mark.parametrize("engine", ["spark", "duckdb"])
def test_every_kind_of_violation_is_found(
    spark: SparkSession, broken: tuple[str, dict[str, list[Record]]], engine: str, tmp_path: Path
) -> None:
    tables, plants = broken
    opened = SparkEngine(spark, tables) if engine == "spark" else DuckEngine(tables)
    verdict = audit(opened, violations=str(tmp_path / "violations"), expected=["never", plants["lost"][0].id])
    assert not verdict.holds
    assert found(verdict) == {
        "lost": 1,
        "redelivered": 3,
        "overlap": 4,
        "version": 3,
        "attempts": 1,
        "unexplained": 1,
        "order": 3,
        "lane": 1,
        "missing": 1,
    }
    rows = {finding.check: {row.ref for row in finding.rows} for finding in verdict.findings}
    assert plants["redelivered"][0].ref in rows["redelivered"]
    assert plants["overlap"][0].ref in rows["overlap"]
    assert rows["attempts"] == {plants["attempts"][0].ref}
    assert rows["order"] == {plants["order"][1].ref, plants["order between"][1].ref, plants["lane"][1].ref}
    assert rows["missing"] == {"never"}
    written = spark.read.parquet(str(tmp_path / "violations"))
    assert written.count() == sum(found(verdict).values())


CREW = """
import os, sys, time, brigade
def handle(message):
    if message.data["n"] % 50 == 9 and message.attempt == 1:
        os.kill(os.getpid(), 9)
    if message.data["n"] % 7 == 3 and message.attempt < 3:
        raise ValueError("again")
    time.sleep(0.001)
with brigade.connect(sys.argv[1]) as hub:
    brigade.Worker([hub.queue("tasks"), hub.queue("steps")], handle, concurrency=4).run(until_empty=True)
"""


def test_workers_that_crash_break_no_promise(spark: SparkSession, tmp_path: Path) -> None:
    url, tables = f"file://{tmp_path}/store", str(tmp_path / "tables")
    policy = brigade.QueuePolicy(
        visibility_timeout=1.0,
        failure=brigade.Failure("retry", max_retries=5),
        backoff=brigade.Backoff(base=0.01, maximum=0.05),
    )
    with brigade.connect(url) as hub:
        receipts = hub.queue("tasks", policy=policy).enqueue_many([{"n": n} for n in range(150)])
        receipts += hub.queue("steps", policy=policy).enqueue_many([{"n": n} for n in range(60, 80)], group="one")
        crew = [subprocess.Popen([sys.executable, "-c", CREW, url]) for _ in range(2)]
        killed = 0
        deadline = time.monotonic() + 200
        while any(worker.poll() is None for worker in crew):
            assert time.monotonic() < deadline
            for place, worker in enumerate(crew):
                if worker.poll() == -signal.SIGKILL:
                    killed += 1
                    crew[place] = subprocess.Popen([sys.executable, "-c", CREW, url])
            time.sleep(0.05)
        assert killed >= 1
        for name in hub.queues():
            hub.queue(name).sweep()
        collect(spark, url, tables)
        verdict = audit(SparkEngine(spark, tables), expected=[one.id for one in receipts], hub=hub)
    assert found(verdict) == {}
    assert (verdict.holds, verdict.messages, verdict.waiting) == (True, 170, 0)
    assert verdict.attempts > 170
