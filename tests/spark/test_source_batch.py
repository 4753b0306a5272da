"""`df.write.format("brigade")` and `spark.read.format("brigade")` on every kind of store."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

import brigade
from brigade import Failure, Nack, QueuePolicy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def write(df: DataFrame, url: str, queue: str, **options: str) -> None:
    df.write.format("brigade").mode("append").options(url=url, queue=queue, **options).save()


def read(spark: SparkSession, url: str, queue: str | None = None, **options: str) -> DataFrame:
    given = {"queue": queue} if queue else {}
    return spark.read.format("brigade").options(url=url, **given, **options).load()


def drained(url: str, queue: str) -> list[brigade.Message]:
    found: list[brigade.Message] = []
    with brigade.connect(url) as hub:
        line = hub.queue(queue)
        while messages := line.claim(1000):
            found += messages
            line.ack_many(messages)
    return found


@pytest.mark.parametrize("url", ["file", "sqlite", "s3", "postgres", "http"], indirect=True)
def test_rows_become_messages_and_tables_show_them(spark: SparkSession, url: str, queue: str) -> None:
    """One story on every store: write, look, work off, look again."""
    rows = spark.range(0, 2500, 1, 3).selectExpr("id", "cast(id % 3 as int) as priority")
    payload = f.struct("id", f.array("id", "priority").alias("pair")).alias("payload")
    write(rows.select(payload, "priority", f.create_map(f.lit("n"), "id").alias("attributes")), url, queue)

    seen = read(spark, url, queue)
    assert seen.count() == 2500
    first = seen.where("get_json_object(cast(payload as string), '$.id') = '1234'").collect()[0]
    assert (first.state, first.priority, first.attempts, first.owner) == ("ready", 1, 0, None)
    assert json.loads(first.payload) == {"id": 1234, "pair": [1234, 1]}
    assert (first.content_type, first.attributes, first.queue) == ("application/json", '{"n":1234}', queue)

    with brigade.connect(url) as hub:
        line = hub.queue(queue)
        held = line.claim(10)
        leases = read(spark, url, queue, table="leases").collect()
        assert {row.id for row in leases} == {message.id for message in held}
        assert {row.owner for row in leases} == {held[0].lease.owner}
        assert seen.where("state = 'in_flight'").count() == 10
        line.settle([Nack(message, error="bad", reject=True) for message in held])
    assert len(drained(url, queue)) == 2490
    failed = read(spark, url, queue, table="failed")
    assert [row.error for row in failed.select("failure.error").distinct().collect()] == ["bad"]
    assert failed.count() == 10
    with brigade.connect(url) as hub:
        hub.queue(queue).sweep()
    history = read(spark, url, queue, table="history").dropDuplicates(["ref"])
    assert {(row.outcome, row["count"]) for row in history.groupBy("outcome").count().collect()} == {
        ("processed", 2490),
        ("failed", 10),
    }
    how = history.selectExpr("explode(attempts) as attempt").groupBy("attempt.how").count().collect()
    assert {(row.how, row["count"]) for row in how} == {("acked", 2490), ("nacked", 10)}
    line = read(spark, url, queue, table="queues").collect()[0]
    assert (line.queue, line.succeeded, line.failed, line.ready) == (queue, 2490, 10, 0)
    assert read(spark, url, queue).where("state != 'failed'").count() == 0


def test_a_schema_chooses_columns(spark: SparkSession, url: str, queue: str) -> None:
    write(spark.range(3).selectExpr("string(id) as payload"), url, queue)
    reader = spark.read.format("brigade").options(url=url, queue=queue)
    rows = reader.schema("payload binary, priority int").load()
    assert rows.columns == ["payload", "priority"]
    assert sorted(bytes(row.payload) for row in rows.collect()) == [b"0", b"1", b"2"]
    for schema, said in (("text string", "no column 'text'"), ("payload string", "is binary, not string")):
        with pytest.raises(Exception, match=said):
            reader.schema(schema).load().collect()


def test_a_strict_queue_keeps_the_order_of_the_rows(spark: SparkSession, url: str, queue: str) -> None:
    with brigade.connect(url) as hub:
        hub.queue(queue, QueuePolicy(ordering_guarantee=True, segment_messages=7))
    rows = spark.range(0, 40, 1, 4).orderBy(f.desc("id")).selectExpr("cast(id as string) as payload")
    write(rows, url, queue)
    assert [message.data for message in drained(url, queue)] == [str(place) for place in range(39, -1, -1)]


def test_a_job_that_fails_leaves_nothing_to_see(spark: SparkSession, url: str, queue: str) -> None:
    with brigade.connect(url) as hub:
        hub.queue(queue).enqueue("before")
    bad = spark.range(0, 4000, 1, 4).selectExpr(
        "cast(id as string) as payload", "cast(if(id = 3999, 77, 5) as int) as priority"
    )
    with pytest.raises(PythonException, match="priority is 77"):
        write(bad, url, queue)
    with brigade.connect(url) as hub:
        assert hub.queue(queue).stats().total == 1
    assert [message.data for message in drained(url, queue)] == ["before"]


@pytest.fixture
def local(tmp_path: Path) -> str:
    return f"file://{tmp_path}/local?fsync=off"


def test_a_job_that_fails_leaves_nothing_behind(spark: SparkSession, local: str, queue: str, tmp_path: Path) -> None:
    """Tasks take back what they staged; so does the driver for those that had succeeded.

    The one that fails waits for the others: what is killed in the middle may leave something for the sweeper.
    """
    staged = tmp_path / "local/q" / queue

    def last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        while len(list(staged.glob("bulk/*"))) < 2:
            time.sleep(0.05)
        time.sleep(8)  # What they have staged is there, but Spark has yet to hear of it.
        yield from batches

    late = spark.range(100, 40_000, 1, 1).mapInArrow(last, "id long")
    ids = spark.range(0, 100, 1, 2).union(late)
    bad = ids.selectExpr("if(id = 39999, null, cast(id as string)) as payload")
    with pytest.raises(PythonException, match="a row has no payload"):
        write(bad, local, queue)
    assert list(staged.glob("bulk/*")) == []


def test_every_option_of_a_message_is_a_column(spark: SparkSession, local: str, queue: str) -> None:
    rows = spark.sql(
        "SELECT 'hello' AS payload, 'mine' AS id, 2 AS priority, 'g' AS group, 'c' AS correlation_id, "
        "60.5D AS ttl, 7 AS max_attempts, map('k', 'v') AS attributes, 'text/x' AS content_type"
    )
    write(rows, local, queue)
    write(rows.withColumn("payload", f.lit("again")), local, queue)
    later = spark.sql("SELECT 'later' AS payload, current_timestamp() + INTERVAL 1 HOUR AS due_at")
    write(later, local, queue)
    write(spark.sql("SELECT 'also later' AS payload, INTERVAL 1 HOUR AS delay"), local, queue)
    with brigade.connect(local) as hub:
        (message,) = hub.queue(queue).claim(10)
        assert hub.queue(queue).stats().delayed == 2
    assert (message.id, message.data, message.priority, message.group) == ("mine", "hello", 2, "g")
    assert (message.correlation_id, message.max_attempts) == ("c", 7)
    assert (dict(message.attributes), message.content_type) == ({"k": "v"}, "text/x")


@pytest.mark.parametrize(
    "columns, value",
    [
        ("cast('x' as binary) as payload", b"x"),
        ("'ü' as payload", "ü"),
        ("1.5D as payload", 1.5),
        ("array(1, null) as payload", [1, None]),
        ("map('a', 1) as payload", {"a": 1}),
        ("1 as a, struct(date'2026-01-02' as d) as b", {"a": 1, "b": {"d": "2026-01-02"}}),
    ],
)
def test_payloads_of_any_type(spark: SparkSession, local: str, queue: str, columns: str, value: Any) -> None:
    write(spark.sql(f"SELECT {columns}"), local, queue)
    assert [message.data for message in drained(local, queue)] == [value]


@pytest.mark.parametrize(
    "columns, options, said",
    [
        ("1 as payload, 2 as other", {}, "beside payload there is a column 'other'"),
        ("1 as payload, 'high' as priority", {}, "column 'priority' is string"),
        ("5 as priority", {}, "no column has anything to send"),
        ("1 as payload", {"quue": "x"}, "no option 'quue' here"),
        ("1 as payload", {"queue": "no/slash"}, "queue name 'no/slash' is not allowed"),
        ("1 as payload", {"url": "memory://x"}, "memory:// lives in one process"),
    ],
)
def test_what_cannot_be_written_is_refused_with_a_reason(
    spark: SparkSession, local: str, queue: str, columns: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises((AnalysisException, PythonException), match=said):
        write(spark.sql(f"SELECT {columns}"), **{"url": local, "queue": queue, **options})


def test_a_queue_is_not_overwritten(spark: SparkSession, local: str, queue: str) -> None:
    rows = spark.sql("SELECT 1 AS payload")
    with pytest.raises((AnalysisException, PythonException), match="cannot be overwritten"):
        rows.write.format("brigade").mode("overwrite").options(url=local, queue=queue).save()


def test_what_cannot_be_read_is_refused_with_a_reason(spark: SparkSession, local: str, queue: str) -> None:
    with pytest.raises((AnalysisException, PythonException), match="use one of messages, leases"):
        read(spark, local, queue, table="mesages").collect()
    with pytest.raises((AnalysisException, PythonException), match="does not exist"):
        read(spark, local, queue).collect()


def test_an_empty_queue_is_an_empty_table(spark: SparkSession, local: str, queue: str) -> None:
    write(spark.createDataFrame([], StructType().add("payload", "string")), local, queue)
    for table in ("messages", "leases", "failed", "history"):
        assert read(spark, local, queue, table=table).collect() == []


def test_dead_letters_are_shown_with_their_story(spark: SparkSession, local: str, queue: str) -> None:
    with brigade.connect(local) as hub:
        line = hub.queue(queue, QueuePolicy(failure=Failure("dead-letter", 0, "letters")))
        line.enqueue("x", id="mine")
        line.settle([Nack(message, error="why") for message in line.claim()])
        hub.queue("letters").sweep()
    (letter,) = read(spark, local, "letters").collect()
    assert (letter.failure.queue, letter.failure.id, letter.failure.error) == (queue, "mine", "why")
    assert letter.failure.failed_at is not None


@pytest.mark.parametrize("kind", ["binary", "large_binary", "string", "large_string"])
def test_payloads_leave_arrow_as_they_are(kind: str) -> None:
    import pyarrow as pa

    from brigade.spark.source.rows import Columns
    from brigade.stores import Payloads

    columns = Columns("payload", (), (), "text/plain")
    whole = pa.RecordBatch.from_arrays([pa.array(["a", "", "bbb", "cc", "d"], getattr(pa, kind)())], ["payload"])
    texts = ["a", "", "bbb", "cc", "d"]
    for batch, wanted in ((whole, texts), (whole.slice(1, 3), texts[1:4]), (whole[:0], [])):
        made = columns.messages(batch, 0)
        assert isinstance(made, Payloads)
        assert [one.payload for one in made] == [text.encode() for text in wanted]
        assert [one.payload for one in made[1:]] == [text.encode() for text in wanted[1:]]
    with pytest.raises(brigade.ConfigError, match="it is null"):
        columns.messages(pa.RecordBatch.from_arrays([pa.array(["a", None], getattr(pa, kind)())], ["payload"]), 0)
