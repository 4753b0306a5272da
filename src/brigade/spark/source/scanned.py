"""The tables `messages`, `leases`, `failed` and `history`: executors read pieces of a queue straight from the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import msgspec
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from brigade.errors import ConfigError
from brigade.hub import AsyncHub
from brigade.spark.arrow import Batch, Schema
from brigade.spark.source.columns import to_batch
from brigade.spark.source.options import Place, Settings
from brigade.spark.source.turns import in_turn
from brigade.stores import Block, ScannedTable, ScanningStore

__all__ = ["FAILED", "HISTORY", "LEASES", "MESSAGES", "Scanned"]

_TEXT, _WHOLE, _LONG, _TIME = StringType(), IntegerType(), LongType(), TimestampType()


def _struct(columns: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


_FAILURE = _struct(
    {
        "queue": _TEXT,
        "id": _TEXT,
        "reason": _TEXT,
        "error": _TEXT,
        "attempts": _WHOLE,
        "failed_at": _TIME,
        "enqueued_at": _TIME,
    }
)
_ATTEMPT = _struct(
    {
        "version": _LONG,
        "owner": _TEXT,
        "claimed_at": _TIME,
        "ended_at": _TIME,
        "how": _TEXT,
        "error": _TEXT,
    }
)
_ENQUEUED: dict[str, DataType] = {
    "priority": _WHOLE,
    "enqueued_at": _TIME,
    "correlation_id": _TEXT,
    "group": _TEXT,
    "content_type": _TEXT,
    "size": _LONG,
    "attributes": _TEXT,
}
_LEASE: dict[str, DataType] = {
    "owner": _TEXT,
    "lease_version": _LONG,
    "claimed_at": _TIME,
    "lease_expires_at": _TIME,
}
_TOKEN: dict[str, DataType] = {"lease_token": _TEXT}
"""Whoever has it may settle the message: streams give it to the rows that they have leased, tables never show it."""

MESSAGES = _struct(
    {
        "queue": _TEXT,
        "id": _TEXT,
        "state": _TEXT,
        "payload": BinaryType(),
        **_ENQUEUED,
        "due_at": _TIME,
        "attempts": _WHOLE,
        "max_attempts": _WHOLE,
        **_LEASE,
        **_TOKEN,
        "error": _TEXT,
        "failure": _FAILURE,
        "ref": _TEXT,
    }
)
LEASES = _struct(
    {
        "queue": _TEXT,
        "id": _TEXT,
        **_LEASE,
        "attempts": _WHOLE,
        "max_attempts": _WHOLE,
        "priority": _WHOLE,
        "enqueued_at": _TIME,
        "correlation_id": _TEXT,
        "group": _TEXT,
        "ref": _TEXT,
    }
)
FAILED = _struct({"queue": _TEXT, "id": _TEXT, "payload": BinaryType(), **_ENQUEUED, "failure": _FAILURE})
HISTORY = _struct(
    {
        "queue": _TEXT,
        "id": _TEXT,
        "ref": _TEXT,
        "outcome": _TEXT,
        **_ENQUEUED,
        "due_at": _TIME,
        "finished_at": _TIME,
        "attempts": ArrayType(_ATTEMPT),
        "counted": _WHOLE,
        "max_attempts": _WHOLE,
        "reason": _TEXT,
        "error": _TEXT,
        "result": _TEXT,
        "dead_letter_queue": _TEXT,
        "origin": _FAILURE,
        "written_at": _TIME,
        "file": _TEXT,
    }
)


class Chosen(msgspec.Struct, frozen=True):
    """What was asked for: which queue, or all of them; in how many pieces, or 0; from when on."""

    queue: str | None
    pieces: int
    since: int


class Scanned:
    """A table that a store is looked through for."""

    def __init__(self, table: ScannedTable, schema: StructType) -> None:
        self._table: ScannedTable = table
        self.schema = schema

    def settings(self, given: Settings) -> Chosen:
        queue = given.queue() if self._table != "history" else given.text("queue")
        since = given.count("since", 0, least=0) if self._table == "history" else 0
        return Chosen(queue, given.count("pieces", 0, least=0), since)

    def plan(self, place: Place, chosen: Any) -> Sequence[InputPartition]:
        return [InputPartition(one) for one in asyncio.run(self._plan(place, chosen))]

    async def _plan(self, place: Place, chosen: Chosen) -> list[tuple[str, bytes]]:
        async with place.connect_async() as hub:
            queues = [chosen.queue] if chosen.queue is not None else await hub.queues()
            found: list[tuple[str, bytes]] = []
            for name in queues:
                await hub.queue(name, create=False)
                pieces = await scanning(hub).pieces(name, self._table, chosen.pieces, since=chosen.since)
                found += [(name, piece) for piece in pieces]
            return found

    def read(self, place: Place, chosen: Any, part: Any, schema: Schema) -> Iterator[Batch]:
        queue, piece = part
        for block in in_turn(self._blocks(place, queue, piece)):
            yield to_batch(block, schema, {"queue": queue, "lease_token": None})

    async def _blocks(self, place: Place, queue: str, piece: bytes) -> AsyncGenerator[Block]:
        async with place.connect_async() as hub:
            async for block in scanning(hub).scan(queue, self._table, piece):
                yield block


def scanning(hub: AsyncHub) -> ScanningStore:
    """The hub's store, if it can be looked through."""
    store = hub.store
    if not isinstance(store, ScanningStore):
        scheme = hub.address[0].partition(":")[0]
        raise ConfigError(f"{scheme}:// cannot be read as a table; give Spark the URL of the store behind it")
    return store
