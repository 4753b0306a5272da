"""Chooses messages by SQL over what lies in a queue, and acts on them on executors.

Whoever chose may be late: a message that was claimed, has ended or went elsewhere meanwhile is left alone, and an
operation that was killed may simply be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from brigade.errors import ConfigError, QueueNotFound
from brigade.hub import AsyncHub
from brigade.model import Ack, Settlement
from brigade.spark.arrow import Batch, pa
from brigade.stores import ChoosingStore, Settled
from brigade.stores.opening import everywhere
from brigade.sync import Hub

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Done", "backlog", "cancel", "choose", "failures", "redrive", "reprioritize"]

AT_ONCE = 1000
REDRIVEN_AT_ONCE = 10_000
HOLD = 120.0
Act = Callable[[AsyncHub, Sequence[str]], Awaitable[int]]


class Done(msgspec.Struct, frozen=True):
    """How many were chosen, and how many of them it was done to; in a dry run none."""

    chosen: int
    done: int


def failures(spark: SparkSession, url: str, queue: str) -> DataFrame:
    """What failed in a queue: parked in it, or in its dead-letter queue.

    Columns: id, lies_in, reason, error, attempts, failed_at, enqueued_at, priority, group, correlation_id, attributes,
    content_type, size, data (the payload as text).
    """
    columns = (
        "failure.id as id",
        "queue as lies_in",
        "failure.reason as reason",
        "failure.error as error",
        "failure.attempts as attempts",
        "failure.failed_at as failed_at",
        "failure.enqueued_at as enqueued_at",
        "priority",
        "`group`",
        "correlation_id",
        "attributes",
        "content_type",
        "size",
        "cast(payload as string) as data",
    )
    with Hub(url) as hub:
        letters = hub.queue(queue, create=False).policy.failure.dead_letter_queue
        letters = letters if letters in hub.queues() else None
    found = _table(spark, url, queue, "failed").where("failure is not null").selectExpr(*columns)
    if letters is not None:
        mine = _table(spark, url, letters, "messages").where("failure is not null and state = 'ready'")
        found = found.unionByName(mine.where(mine["failure"]["queue"] == queue).selectExpr(*columns))
    return found


def backlog(spark: SparkSession, url: str, queue: str) -> DataFrame:
    """What waits in a queue, due or not, and lies in no lane.

    Columns: id, priority, enqueued_at, due_at, attempts, max_attempts, correlation_id, attributes, content_type, size,
    error (of the last attempt), data (the payload as text), ref.
    """
    found = _table(spark, url, queue, "messages").where("state = 'ready'")
    return found.selectExpr(
        "id",
        "priority",
        "enqueued_at",
        "due_at",
        "attempts",
        "max_attempts",
        "correlation_id",
        "attributes",
        "content_type",
        "size",
        "error",
        "cast(payload as string) as data",
        "ref",
    ).where("not startswith(ref, 'g')")


def _table(spark: SparkSession, url: str, queue: str, table: str) -> DataFrame:
    from brigade.spark.source import BrigadeSource

    spark.dataSource.register(BrigadeSource)
    reader = spark.read.format("brigade").option("url", everywhere(url)).option("queue", queue)
    return reader.option("table", table).load()


def choose(rows: DataFrame, where: str | None) -> DataFrame:
    """The rows that a SQL predicate holds for; all without one. A predicate that Spark can't read is a ConfigError."""
    from pyspark.errors import AnalysisException, ParseException

    if where is None:
        return rows
    try:
        chosen = rows.where(where)
        _ = chosen.schema
    except (AnalysisException, ParseException) as error:
        said = str(error).splitlines()[0]
        raise ConfigError(f"--where {where!r} can't be read: {said}; columns are {', '.join(rows.columns)}") from None
    return chosen


def redrive(spark: SparkSession, url: str, queue: str, where: str | None = None, *, dry_run: bool = False) -> Done:
    """Bring failures of a queue back to it, with fresh attempts.

    The failures are read and chosen by all executors, and brought back by one task: whoever redrives holds the
    dead-letter queue under leases meanwhile, so two would be in each other's way.
    """

    async def act(hub: AsyncHub, ids: Sequence[str]) -> int:
        opened = await hub.queue(queue, create=False)
        return await opened.redrive(ids, limit=len(ids))

    keys = choose(failures(spark, url, queue), where).select("id").repartition(1)
    return _each(url, queue, keys, act, dry_run=dry_run, at_once=REDRIVEN_AT_ONCE)


def cancel(spark: SparkSession, url: str, queue: str, where: str | None = None, *, dry_run: bool = False) -> Done:
    """End waiting messages without working on them: history tells that they were cancelled."""

    async def act(hub: AsyncHub, refs: Sequence[str]) -> int:
        opened = await hub.queue(queue, create=False)
        grants = await _choosing(hub).claim_these(queue, refs, owner="brigade spark cancel", visibility=HOLD)
        settlements: list[Settlement] = [Ack(one, {"cancelled": True}) for one in await hub.store.load(grants)]
        answers = await opened.settle_fully(settlements) if settlements else []
        return sum(isinstance(answer, Settled) for answer in answers)

    return _each(url, queue, choose(backlog(spark, url, queue), where).select("ref"), act, dry_run=dry_run)


def reprioritize(
    spark: SparkSession, url: str, queue: str, priority: int, where: str | None = None, *, dry_run: bool = False
) -> Done:
    """Give waiting messages another priority.

    In a bucket they are written again and the originals acked, so they get new ids; who dies in between leaves both.
    Messages with ids of their users' own, and payloads that are stored apart, keep their priority there.
    """
    if isinstance(priority, bool) or priority not in range(10):
        raise ConfigError(f"priority is {priority!r}; use 0, the most urgent, to 9")
    wanted = int(priority)

    async def act(hub: AsyncHub, refs: Sequence[str]) -> int:
        return await _choosing(hub).reprioritize(queue, refs, wanted)

    rows = choose(backlog(spark, url, queue), where).where(f"priority <> {wanted}")
    return _each(url, queue, rows.select("ref"), act, dry_run=dry_run)


def _choosing(hub: AsyncHub) -> ChoosingStore:
    store = hub.store
    if not isinstance(store, ChoosingStore):
        raise ConfigError(
            f"{hub.address[0]} can't pick messages out of a queue; give the URL of the bucket or database behind it"
        )
    return store


def _each(url: str, queue: str, keys: DataFrame, act: Act, *, dry_run: bool, at_once: int = AT_ONCE) -> Done:
    """Do something to chosen messages, a thousand at a time, in as many tasks as it takes."""
    with Hub(url) as hub:
        if queue not in hub.queues():
            raise QueueNotFound(f"there is no queue {queue!r}")
    if dry_run:
        return Done(keys.count(), 0)
    place = everywhere(url)

    def work(batches: Iterable[Batch]) -> Iterator[Batch]:
        with asyncio.Runner() as runner:
            hub = AsyncHub(place)
            runner.run(hub.open())
            chosen = done = 0
            try:
                for batch in batches:
                    names: list[str] = batch.column(0).to_pylist()
                    for start in range(0, len(names), at_once):
                        some = names[start : start + at_once]
                        chosen += len(some)
                        done += runner.run(_awaited(act(hub, some)))
            finally:
                runner.run(hub.close())
            yield pa.record_batch([pa.array([chosen], pa.int64()), pa.array([done], pa.int64())], ["chosen", "done"])

    tasks: Any = keys
    rows = tasks.mapInArrow(work, "chosen bigint, done bigint").collect()
    return Done(sum(row["chosen"] for row in rows), sum(row["done"] for row in rows))


async def _awaited(work: Awaitable[int]) -> int:
    return await work
