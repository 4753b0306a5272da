"""Records of history as Arrow batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from brigade.spark.arrow import Batch, Schema, pa
from brigade.spark.history.columns import LEASES, RECORDS
from brigade.stores.history import Attempt, Record

__all__ = ["arrow_schema", "to_batch"]

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
