"""Records of history as Arrow batches, and the columns of the tables that are made of them.

New columns go at the end of a table and may be null: tables that an older version wrote are read with nulls there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from brigade.spark.arrow import Batch, Schema, pa
from brigade.stores.history import Attempt, Record

__all__ = ["ATTEMPTS", "LEASES", "MESSAGES", "RECORDS", "SCHEMA", "arrow_schema", "to_batch"]

SCHEMA = 1
"""The version of the tables. It grows when a reader of an older version would go wrong."""

_LEASE = "struct<version:int,owner:string,claimed_at:timestamp,ended_at:timestamp,how:string,error:string>"
LEASES = f"array<{_LEASE}>"
MESSAGES: dict[str, str] = {
    "ref": "string",
    "id": "string",
    "outcome": "string",
    "reason": "string",
    "error": "string",
    "priority": "int",
    "group_name": "string",
    "lane": "string",
    "ordering": "string",
    "correlation_id": "string",
    "content_type": "string",
    "size": "bigint",
    "attributes": "string",
    "enqueued_at": "timestamp",
    "due_at": "timestamp",
    "started_at": "timestamp",
    "finished_at": "timestamp",
    "wait_ms": "bigint",
    "run_ms": "bigint",
    "total_ms": "bigint",
    "attempts": "int",
    "counted": "int",
    "max_attempts": "int",
    "worker": "string",
    "result_size": "bigint",
    "dead_letter_queue": "string",
    "origin_queue": "string",
    "origin_id": "string",
    "segment": "string",
    "place": "int",
    "segment_size": "int",
    "absent": "int",
    "queue": "string",
    "date": "date",
}
"""One row a message. `wait_ms`: due to first claim; `run_ms`: the last lease; `total_ms`: enqueued to finished.

`segment_size` is how many messages were written together, `absent` how many of those left no record, being purged.
"""

ATTEMPTS: dict[str, str] = {
    "ref": "string",
    "id": "string",
    "number": "int",
    "version": "int",
    "owner": "string",
    "claimed_at": "timestamp",
    "ended_at": "timestamp",
    "how": "string",
    "error": "string",
    "held_ms": "bigint",
    "outcome": "string",
    "queue": "string",
    "date": "date",
}
"""One row a lease. `how` is acked, nacked, released or expired."""

RECORDS: dict[str, str] = {**MESSAGES, "result": "string", "leases": LEASES}
"""What executors read: a message, its result as JSON, and its leases."""

_MOMENT: Any = pa.timestamp("us", "UTC")
_json = msgspec.json.Encoder()


def arrow_schema(columns: Mapping[str, str]) -> Schema:
    """The Arrow types that Spark wants for these columns."""
    plain: dict[str, Any] = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": _MOMENT,
        "date": pa.date32(),
    }
    lease = pa.struct(
        [
            ("version", pa.int32()),
            ("owner", pa.string()),
            ("claimed_at", _MOMENT),
            ("ended_at", _MOMENT),
            ("how", pa.string()),
            ("error", pa.string()),
        ]
    )
    return pa.schema([(name, pa.list_(lease) if kind == LEASES else plain[kind]) for name, kind in columns.items()])


def to_batch(records: Sequence[Record], ordering: str) -> Batch:
    """The records of one queue as a batch of `RECORDS`."""
    schema = arrow_schema(RECORDS)
    rows = [_row(record, ordering) for record in records]
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [_array(list(values), field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.record_batch(arrays, schema=schema)


def _array(values: list[Any], kind: Any) -> Any:
    if kind == _MOMENT:
        return pa.array(values, pa.timestamp("ms", "UTC")).cast(kind)
    return pa.array(values, kind)


def _row(record: Record, ordering: str) -> tuple[Any, ...]:
    log = record.attempts
    first = log[0].claimed_at if log else None
    last = log[-1] if log else None
    due = record.due_at if first is None or record.due_at <= first else record.enqueued_at
    segment, size, place = _place(record.ref)
    result = bytes(record.result)
    return (
        record.ref,
        record.id,
        record.outcome,
        record.reason,
        record.error,
        record.priority,
        record.group,
        record.lane,
        ordering,
        record.correlation_id,
        record.content_type,
        record.size,
        None if record.attributes is None else _json.encode(record.attributes).decode(),
        record.enqueued_at,
        record.due_at,
        first,
        record.finished_at,
        None if first is None else max(0, first - due),
        None if last is None else max(0, last.ended_at - last.claimed_at),
        max(0, record.finished_at - record.enqueued_at),
        len(log),
        record.counted,
        record.max_attempts,
        None if last is None else last.owner,
        _result_size(result),
        record.dead_letter_queue,
        None if record.origin is None else record.origin.queue,
        None if record.origin is None else record.origin.id,
        segment,
        place,
        size,
        len(record.absent or ()),
        record.queue,
        datetime.fromtimestamp(record.finished_at / 1000, UTC).date(),
        None if result == b"null" else result.decode(),
        [_lease(one) for one in log],
    )


def _lease(one: Attempt) -> tuple[Any, ...]:
    return (one.version, one.owner, one.claimed_at * 1000, one.ended_at * 1000, one.how, one.error)


def _place(ref: str) -> tuple[str | None, int | None, int | None]:
    """A bucket's reference is a segment, whose name ends with its size, and a place in it. PostgreSQL has none."""
    segment, _, place = ref.rpartition("-")
    size = segment.rpartition("-")[2]
    if "-" not in segment or not place.isdigit() or not size.isdigit():
        return None, None, None
    return segment, int(size), int(place)


def _result_size(result: bytes) -> int | None:
    """How large a result is; one that went to a blob says so itself."""
    if result == b"null":
        return None
    if result.startswith(b'{"blob":'):
        found = msgspec.json.decode(result)
        if set(found) == {"blob", "size"} and isinstance(found["size"], int):
            return found["size"]
    return len(result)
