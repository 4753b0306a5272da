"""`spark.readStream.format("brigade")`: micro-batches of leased messages, acked when their batch is committed.

Spark calls `latestOffset(start)` only after the batch that ends at `start` is committed, also when there is nothing
new and first thing after a restart: so that is where a batch is acked. `commit` comes a batch late; it is a backup.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from brigade.ids import Ids
from brigade.model import Grant, Message
from brigade.spark.arrow import Batch, arrow_schema
from brigade.spark.source.columns import to_batch
from brigade.spark.source.desk import Desk
from brigade.spark.source.options import Place, Settings
from brigade.spark.source.turns import in_turn
from brigade.stores import Block, Same, Store

__all__ = ["LeasingReader", "Limits"]

MOST = 1_000_000
"""Where Spark wants all there is in one batch, so much is enough."""

ROWS = 10_000
INLINE = 64 * 1024 * 1024
_grants = msgspec.msgpack.Decoder(list[Grant])


class Limits(msgspec.Struct, frozen=True):
    """How much one micro-batch may take, and in how many tasks it is read."""

    messages: int
    size: int | None
    segments: int | None
    partitions: int

    @classmethod
    def of(cls, given: Settings) -> Limits:
        return cls(
            given.count("maxMessagesPerTrigger", 50_000),
            given.count("maxBytesPerTrigger", 0, least=1) or None,
            given.count("maxSegmentsPerTrigger", 0, least=1) or None,
            given.count("partitions", 8),
        )


class LeasingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one streaming query. Copies of it are made in many places: only hooks of the driver do I/O."""

    def __init__(self, given: Settings, schema: StructType) -> None:
        self._place = given.place()
        self._queue = given.queue()
        self._visibility = given.seconds("visibility", 0.0, least=0.1) or None
        self._limits = Limits.of(given)
        given.text("table")
        given.refuse_unknown()
        self._schema = schema
        self._desk: Desk | None = None
        self._left: int | None = None
        self._drains = False
        self._size: float | None = None
        self._owner = ""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_desk": None}

    def initialOffset(self) -> dict[str, Any]:
        return {"owner": "", "batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limits.messages)

    def prepareForTriggerAvailableNow(self) -> None:
        self._drains = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Ack what ended at `start`, then lease the next batch; `start` itself where there is nothing to lease."""
        first = self._desk is None
        desk = self._opened()
        owner, batch = str(start["owner"]), int(start["batch"])
        if batch:
            desk.ack(_name(owner, batch))
        if not self._owner:
            self._owner = owner or f"spark:{socket.gethostname()}:{Ids().bits(64):016x}"
        holder = self._owner
        following = {"owner": holder, "batch": batch + 1}
        name = _name(holder, batch + 1)
        if desk.knows(name):
            return following
        if owner and first:
            if desk.recall(name):
                return following
            desk.drop(name)
        if self._drains and self._left is None:
            self._left = desk.backlog()
        if not self._drains and not desk.wait_for_news():
            return start
        wanted = self._wanted(desk, limit)
        grants = desk.claim(wanted, self._most_segments(limit), holder) if wanted else []
        if not grants:
            return start
        if self._left is not None:
            self._left = max(0, self._left - sum(map(len, grants)))
        desk.note(name, grants)
        return following

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The leases of a batch, shared out among tasks. After a restart: those that are still ours."""
        if start == end:
            return []
        grants = self._opened().recall(_name(str(end["owner"]), int(end["batch"])))
        shares: list[list[Grant]] = [[] for _ in range(min(self._limits.partitions, len(grants)))]
        sizes = [0] * len(shares)
        for grant in sorted(grants, key=len, reverse=True):
            least = sizes.index(min(sizes))
            shares[least].append(grant)
            sizes[least] += len(grant)
        return [InputPartition(msgspec.msgpack.encode(share)) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[Batch]:
        """On an executor: the messages of some leases, straight from the store."""
        if partition.value is None:
            return
        schema = arrow_schema(self._schema)
        for block in in_turn(_blocks(self._place, _grants.decode(partition.value))):
            yield to_batch(block, schema, {"queue": self._queue})

    def commit(self, end: dict[str, Any]) -> None:
        if self._desk is not None and int(end["batch"]):
            self._desk.ack(_name(str(end["owner"]), int(end["batch"])))

    def stop(self) -> None:
        if self._desk is not None:
            self._desk.close()

    def _opened(self) -> Desk:
        if self._desk is None:
            self._desk = Desk(self._place, self._queue, self._visibility)
        return self._desk

    def _wanted(self, desk: Desk, limit: ReadLimit) -> int:
        """How many messages the next batch may have."""
        if isinstance(limit, ReadAllAvailable):
            wanted = MOST
        else:
            wanted = limit.max_rows if isinstance(limit, ReadMaxRows) else self._limits.messages
            if self._limits.size is not None:
                if self._size is None:
                    self._size = max(desk.mean_size(), 1.0)
                wanted = min(wanted, max(1, int(self._limits.size / self._size)))
        return wanted if self._left is None else min(wanted, self._left)

    def _most_segments(self, limit: ReadLimit) -> int | None:
        return None if isinstance(limit, ReadAllAvailable) else self._limits.segments


def _name(owner: str, batch: int) -> str:
    """The note that says what a batch has leased."""
    return f"{owner}/{batch}"


async def _blocks(place: Place, grants: Sequence[Grant]) -> AsyncGenerator[Block]:
    async with place.connect_async() as hub:
        part: list[Grant] = []
        for grant in grants:
            part.append(grant)
            if sum(map(len, part)) >= ROWS:
                yield await _loaded(hub.store, part)
                part = []
        if part:
            yield await _loaded(hub.store, part)


async def _loaded(store: Store, grants: Sequence[Grant]) -> Block:
    messages = await store.load(grants)
    bodies = [await _body(store, message) for message in messages]
    same = ("id", "ref", "priority", "max_attempts", "correlation_id", "group", "content_type", "size", "attributes")
    columns: dict[str, list[Any] | Same] = {
        name: [getattr(message, name) for message in messages] for name in (*same, "failure")
    }
    columns |= {
        "state": Same("in_flight"),
        "payload": bodies,
        "attempts": [message.attempt for message in messages],
        "enqueued_at": [message.enqueued_at_ms for message in messages],
        "due_at": [message.enqueued_at_ms for message in messages],
        "claimed_at": [message.claimed_at_ms for message in messages],
        "owner": [message.lease.owner for message in messages],
        "lease_token": [message.lease.token for message in messages],
        "lease_version": [message.lease.version for message in messages],
        "lease_expires_at": [message.lease.expires_at_ms for message in messages],
        "error": Same(None),
    }
    return Block(len(messages), columns)


async def _body(store: Store, message: Message) -> bytes | None:
    """The payload; one that is stored apart is read, unless it is too large for a row."""
    if message.body is not None or message.size > INLINE:
        return message.body
    return b"".join([chunk async for chunk in store.open_payload(message)])
