"""`df.write.format("brigade")`: executors stage messages, and the driver publishes all of them or none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import msgspec
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from brigade.errors import BrigadeError, ConfigError
from brigade.hub import AsyncHub
from brigade.ids import Ids
from brigade.spark.arrow import Batch
from brigade.spark.source.options import Place, Settings
from brigade.spark.source.rows import Columns
from brigade.stores import Staged, StagingStore

__all__ = ["BulkWriter", "Target", "Written"]

AHEAD = 4
"""So many batches of a task are on their way to the store while the next is made ready."""

_END = object()


class Written(WriterCommitMessage):
    """What one task has staged."""

    def __init__(self, partition: int, staged: list[Staged]) -> None:
        self.partition = partition
        self.staged = staged


class Target(msgspec.Struct, frozen=True):
    """Where rows go, and how they become messages."""

    place: Place
    queue: str
    columns: Columns

    @classmethod
    def of(cls, given: Settings, schema: StructType, *, overwrite: bool) -> Target:
        if overwrite:
            raise ConfigError(
                'a queue cannot be overwritten; use mode("append"), and `brigade queue purge` to empty it'
            )
        columns = Columns.of(schema, given.text("contentType"))
        target = cls(given.place(), given.queue(), columns)
        given.refuse_unknown()
        return target

    async def stage(self, job: str, batches: Iterator[Batch]) -> list[Staged]:
        """Write a task's rows, a few batches at a time; of a task that fails nothing is left."""
        async with self.place.connect_async() as hub:
            store = staging(hub)
            await hub.queue(self.queue)
            under_way: list[asyncio.Task[Staged]] = []
            try:
                while (batch := await asyncio.to_thread(next, batches, _END)) is not _END:
                    if len(under_way) >= AHEAD:
                        await under_way[-AHEAD]
                    messages = self.columns.messages(batch, hub.clock.now())
                    if messages:
                        under_way.append(asyncio.create_task(store.stage(self.queue, job, messages)))
                return list(await asyncio.gather(*under_way))
            except BaseException:
                ends = await asyncio.gather(*under_way, return_exceptions=True)
                done = [end for end in ends if isinstance(end, Staged)]
                with contextlib.suppress(BrigadeError):
                    await store.discard(self.queue, job, done)
                raise

    async def publish(self, job: str, written: Sequence[Written], epoch: int | None = None) -> int:
        """Show what the tasks staged, in the order of their partitions."""
        ordered = sorted(written, key=lambda one: one.partition)
        async with self.place.connect_async() as hub:
            await hub.queue(self.queue)
            return await staging(hub).publish(
                self.queue, job, [staged for one in ordered for staged in one.staged], epoch=epoch
            )

    async def discard(self, job: str, written: Sequence[Written]) -> None:
        async with self.place.connect_async() as hub:
            await staging(hub).discard(self.queue, job, [staged for one in written for staged in one.staged])


def staging(hub: AsyncHub) -> StagingStore:
    """The hub's store, if bulk jobs can write to it."""
    store = hub.store
    if not isinstance(store, StagingStore):
        scheme = hub.address[0].partition(":")[0]
        raise ConfigError(f"{scheme}:// takes no bulk jobs; give Spark the URL of the store behind it")
    return store


class BulkWriter(DataSourceArrowWriter):
    """One write of a DataFrame. Made on the driver; executors and the committing process get copies."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._job = Ids().token()

    def write(self, iterator: Iterator[Batch]) -> Written:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        return Written(partition, asyncio.run(self._target.stage(self._job, iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        asyncio.run(self._target.publish(self._job, [one for one in messages if isinstance(one, Written)]))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        done = [one for one in messages if isinstance(one, Written)]
        if done:
            asyncio.run(self._target.discard(self._job, done))
