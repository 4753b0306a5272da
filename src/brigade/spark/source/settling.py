"""Outcomes of leased messages, as rows: acked, retried or dead-lettered one by one, instead of with their batch."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import LongType, StructField, StructType

from brigade.checks import error_text, seconds
from brigade.errors import BrigadeError, ConfigError, StaleLease
from brigade.model import Ack, Message, Nack, Settlement
from brigade.spark.arrow import Batch, pa
from brigade.spark.source.options import Place

__all__ = ["COUNTED", "COUNTS", "OutcomeStreamWriter", "OutcomeWriter", "Outcomes"]

NEEDED = ("id", "ref", "lease_token", "outcome")
KNOWN = ("attempts", "lease_version", "delay", "reason", "result")
COUNTS = ("ok", "retry", "dead", "stale")
TOGETHER = 5_000


class Outcomes(msgspec.Struct, frozen=True):
    """Where outcomes go. Rows need the columns of a stream that name the lease, and `outcome`."""

    place: Place
    queue: str
    columns: tuple[str, ...]

    @classmethod
    def of(cls, place: Place, queue: str, schema: StructType) -> Outcomes:
        missing = [name for name in NEEDED if name not in schema.names]
        if missing:
            raise ConfigError(
                f"column {missing[0]!r} is missing; keep id, ref and lease_token of the rows that the stream gave, and "
                "add outcome: 'ok', 'retry' (with delay and reason) or 'dead' (with reason)"
            )
        return cls(place, queue, tuple(name for name in (*NEEDED, *KNOWN) if name in schema.names))

    async def settle(self, batches: Iterator[Batch]) -> Counter[str]:
        """Settle every row; returns how many were settled how. A lease that is no longer ours is `stale`."""
        counts: Counter[str] = Counter()
        async with self.place.connect_async() as hub:
            await hub.queue(self.queue, create=False)
            for batch in batches:
                columns = {name: batch.column(name).to_pylist() for name in self.columns}
                rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
                for start in range(0, len(rows), TOGETHER):
                    part = rows[start : start + TOGETHER]
                    answers = await hub.store.settle(self.queue, [self._settlement(row) for row in part])
                    for row, answer in zip(part, answers, strict=True):
                        if isinstance(answer, BrigadeError) and not isinstance(answer, StaleLease):
                            raise answer
                        counts["stale" if isinstance(answer, StaleLease) else row["outcome"]] += 1
        return counts

    def _settlement(self, row: dict[str, Any]) -> Settlement:
        message = Message.held(
            queue=self.queue,
            id=row["id"],
            ref=row["ref"],
            token=row["lease_token"] or "",
            version=row.get("lease_version") or 0,
            attempt=row.get("attempts") or 1,
        )
        outcome, delay = row["outcome"], row.get("delay")
        if outcome == "ok":
            return Ack(message, row.get("result"))
        reason = error_text(row.get("reason"))
        if outcome == "retry":
            return Nack(message, error=reason, delay=None if delay is None else seconds(float(delay), "delay"))
        if outcome == "dead":
            return Nack(message, error=reason, reject=True)
        raise ConfigError(f"outcome is {outcome!r}; use 'ok', 'retry' or 'dead'")

    def counted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """For `mapInArrow`: settles, and gives one row with the counts."""
        counts = asyncio.run(self.settle(batches))
        yield pa.RecordBatch.from_pydict({name: pa.array([counts[name]], pa.int64()) for name in COUNTS})


COUNTED = StructType([StructField(name, LongType()) for name in COUNTS])


class OutcomeWriter(DataSourceArrowWriter):
    """`df.write.format("brigade").option("settle", "true")`. Each row counts by itself: there is nothing to commit."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes

    def write(self, iterator: Iterator[Batch]) -> WriterCommitMessage:
        asyncio.run(self._outcomes.settle(iterator))
        return WriterCommitMessage()


class OutcomeStreamWriter(DataSourceStreamArrowWriter):
    """The same as a sink. A replayed batch finds its leases settled, and changes nothing."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes

    def write(self, iterator: Iterator[Batch]) -> WriterCommitMessage:
        asyncio.run(self._outcomes.settle(iterator))
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was settled is settled."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was settled is settled."""
