"""History as tables: each message once, whatever becomes of the run that adds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from planted import START, lease, record, segment, write

import brigade
from brigade.errors import BrigadeError, ConfigError
from brigade.spark.history import attempts, collect, compact, drop_old, messages
from brigade.spark.history.folder import Folder
from brigade.spark.history.upkeep import JOURNAL, STAGED
from postgres_server import database, postgres
from served import served

__all__ = ["database", "postgres"]

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.fixture
def output(tmp_path: Path) -> str:
    return str(tmp_path / "tables")


def work(url: str, count: int = 30) -> None:
    """Messages that succeed at once, at the second try, or never."""
    policy = brigade.QueuePolicy(
        failure=brigade.Failure("hybrid", max_retries=1, dead_letter_queue="tasks_dlq"),
        backoff=brigade.Backoff(base=0, maximum=0),
    )

    def handle(message: Any) -> Any:
        if message.data["n"] % 10 == 7 or (message.data["n"] % 10 == 3 and message.attempt == 1):
            raise ValueError(f"n is {message.data['n'] % 10}")
        return {"n": message.data["n"]}

    with brigade.connect(url) as hub:
        queue = hub.queue("tasks", policy=policy)
        queue.enqueue_many([{"n": n} for n in range(count)])
        brigade.Worker(queue, handle, worker_id="crew").run(until_empty=True)


def test_history_becomes_a_row_a_message_and_a_row_a_lease(spark: SparkSession, url: str, output: str) -> None:
    work(url)
    done = collect(spark, url, output)
    assert (done.messages, done.attempts) == (30, 36)
    assert not collect(spark, url, output).records

    rows = messages(spark, output).collect()
    assert {row.outcome for row in rows} == {"processed", "dead-lettered"}
    dead = next(row for row in rows if row.outcome == "dead-lettered")
    assert (dead.queue, dead.attempts, dead.error, dead.worker) == ("tasks", 2, "ValueError: n is 7", "crew")
    assert dead.dead_letter_queue == "tasks_dlq"
    good = next(row for row in rows if row.attempts == 1)
    assert good.enqueued_at <= good.started_at <= good.finished_at
    assert good.total_ms == round((good.finished_at - good.enqueued_at).total_seconds() * 1000)
    assert good.result_size == len('{"n":0}') or good.result_size == len('{"n":10}')
    assert sorted(row.how for row in attempts(spark, output).collect()) == ["acked"] * 27 + ["nacked"] * 9

    folders = {path.parent.relative_to(output).as_posix() for path in Path(output).rglob("*.parquet")}
    day = good.date.isoformat()
    assert folders == {f"messages/queue=tasks/date={day}", f"attempts/queue=tasks/date={day}"}


def test_history_comes_through_a_server_as_well(spark: SparkSession, tmp_path: Path, output: str) -> None:
    """Its parts have the same names the next day, through any server: nothing is read twice."""
    store = f"file://{tmp_path}/served?fsync=off"
    with served(store) as serving:
        work(serving.address)
        done = collect(spark, serving.address, output)
        assert (done.messages, done.attempts) == (30, 36)
        assert not collect(spark, serving.address, output).records
        port = int(serving.address.rpartition(":")[2])
    with served(store, port=port) as serving:
        assert not collect(spark, serving.address, output).records


def test_what_history_tells_twice_is_one_row(spark: SparkSession, url: str, output: str) -> None:
    name = segment(2)
    told = [record(f"{name}-{place}", [lease(1, 0, 1)]) for place in range(2)]
    write(url, told, told)
    assert collect(spark, url, output).messages == 2
    write(url, told)
    again = collect(spark, url, output)
    assert (again.records, again.messages, again.attempts) == (2, 0, 0)


def test_a_run_that_died_before_it_said_so_is_made_good(spark: SparkSession, url: str, output: str) -> None:
    write(url, [record(f"{segment(1)}-0", [lease(1, 0, 1)])])
    collect(spark, url, output)
    (Path(output) / "_brigade" / "state.json").unlink()
    write(url, [record(f"{segment(1)}-0", [lease(1, 0, 1)])])
    assert collect(spark, url, output).messages == 1
    assert messages(spark, output).count() == 2


def test_many_files_become_one_and_a_dead_compaction_is_completed(spark: SparkSession, url: str, output: str) -> None:
    for _ in range(3):
        write(url, [record(f"{segment(1)}-0", [lease(1, 0, 1)])])
        collect(spark, url, output)
    done = compact(spark, output, most_files=2)
    assert (done.before, done.after) == (6, 2)
    assert (messages(spark, output).count(), attempts(spark, output).count()) == (3, 3)

    folder = Folder(spark, output)
    (file,) = (Path(output) / "messages").rglob("*.parquet")
    partition = file.parent.relative_to(output).as_posix()
    staged = Path(output) / STAGED
    staged.mkdir(parents=True)
    (staged / "compact-x.parquet").write_bytes(file.read_bytes())
    folder.write(JOURNAL, json.dumps({"partition": partition, "old": [file.name], "new": ["compact-x.parquet"]}))
    collect(spark, url, output)
    assert [path.name for path in (Path(output) / "messages").rglob("*.parquet")] == ["compact-x.parquet"]
    assert messages(spark, output).count() == 3


def test_old_days_are_dropped(spark: SparkSession, url: str, output: str) -> None:
    work(url, 5)
    write(url, [record(f"{segment(1)}-0", [lease(1, 0, 1)])])
    collect(spark, url, output)
    days = {row.date.isoformat() for row in messages(spark, output).select("date").distinct().collect()}
    assert len(days) == 2
    assert drop_old(spark, output, 10).dropped == 2
    assert messages(spark, output).count() == 5


def test_tables_of_an_older_version_are_read_with_nulls(spark: SparkSession, url: str, output: str) -> None:
    write(url, [record(f"{segment(1)}-0", [lease(1, 0, 1)])])
    collect(spark, url, output)
    folder = Path(output) / "messages"
    older = messages(spark, output).drop("absent", "segment_size").collect()
    frame: Any = spark.createDataFrame(older, messages(spark, output).drop("absent", "segment_size").schema)
    frame = frame.cache()
    frame.count()
    frame.write.mode("overwrite").partitionBy("queue", "date").parquet(str(folder))
    write(url, [record(f"{segment(1)}-0", [lease(1, 0, 1)])])
    assert collect(spark, url, output).messages == 1
    assert sorted(row.absent is None for row in messages(spark, output).collect()) == [False, True]


def test_tables_belong_to_one_store_and_one_run_at_a_time(
    spark: SparkSession, url: str, output: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="brigade spark history"):
        messages(spark, output)
    work(url, 1)
    collect(spark, url, output)
    other = f"file://{tmp_path}/other"
    work(other, 1)
    with pytest.raises(ConfigError, match="another store"):
        collect(spark, other, output)
    with Folder(spark, output).held(), pytest.raises(BrigadeError, match="another run"):
        collect(spark, url, output)
    state = Path(output) / "_brigade" / "state.json"
    state.write_text(state.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(ConfigError, match="upgrade"):
        collect(spark, url, output)


def test_history_of_a_database(spark: SparkSession, database: str, output: str) -> None:
    work(database)
    assert collect(spark, database, output).messages == 30
    work(database, 3)
    again = collect(spark, database, output)
    assert (again.messages, again.attempts) == (3, 3)
    assert {row.how for row in attempts(spark, output).collect()} == {"acked", "nacked"}
    assert START
