"""From a store's columns to Arrow: one converter for each kind of column, chosen by its Arrow type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from pyspark.sql.types import StructType

from brigade.errors import ConfigError
from brigade.model import FailureInfo
from brigade.spark.arrow import Batch, Schema, pa
from brigade.stores import Block, Column, Joined, Same

__all__ = ["chosen_columns", "to_batch"]

_json = msgspec.json.Encoder()
_FAILURE = ("queue", "id", "reason", "error", "attempts", "failed_at_ms", "enqueued_at_ms")
_ATTEMPT = ("version", "owner", "claimed_at", "ended_at", "how", "error")


def chosen_columns(wanted: StructType, known: StructType) -> StructType:
    """The columns that `.schema(…)` asks for, or all. Spark doesn't tell a source which columns a query needs."""
    kinds = {field.name: field.dataType for field in known.fields}
    for field in wanted.fields:
        if field.name not in kinds:
            raise ConfigError(f"there is no column {field.name!r}; there are {', '.join(kinds)}")
        if field.dataType != kinds[field.name]:
            kind = kinds[field.name].simpleString()
            raise ConfigError(
                f"column {field.name!r} is {kind}, not {field.dataType.simpleString()}; cast it afterwards"
            )
    return wanted


def to_batch(block: Block, schema: Schema, fixed: dict[str, Any]) -> Batch:
    """The block as Spark wants it. `fixed` are columns that are the same for every row of the table."""
    made: dict[int, Any] = {}
    arrays: list[Any] = []
    for field in schema:
        name = field.name
        values = block.columns[name] if name in block.columns else Same(fixed[name])
        known = made.get(id(values))
        if known is None or known.type != field.type:
            known = made[id(values)] = _array(name, values, field.type, block.count)
        arrays.append(known)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(name: str, values: Column, kind: Any, count: int) -> Any:
    if isinstance(values, Same):
        if values.value is None:
            return pa.nulls(count, kind)
        return pa.repeat(_array(name, [values.value], kind, 1)[0], count)
    if isinstance(values, Joined):
        return _binaries(values, kind, count)
    if pa.types.is_timestamp(kind):
        return _times(values, kind)
    if name == "attributes":
        return pa.array([None if not value else _json.encode(value).decode() for value in values], kind)
    if pa.types.is_struct(kind):
        return _structs(values, kind)
    if pa.types.is_list(kind):
        return _lists(values, kind)
    return pa.array(values, kind)


def _binaries(values: Joined, kind: Any, count: int) -> Any:
    """Byte strings as they are, with bounds that Arrow understands."""
    if not pa.types.is_binary(kind):
        return pa.array(values.values(), kind)
    bounds = np.zeros(count + 1, np.int32)
    np.cumsum(np.frombuffer(values.sizes, "<u4"), out=bounds[1:])
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(bounds), pa.py_buffer(values.data)])


def _times(values: Sequence[int | None], kind: Any) -> Any:
    """Milliseconds as Spark's timestamps."""
    return pa.array(values, pa.timestamp("ms", tz=kind.tz)).cast(kind)


def _structs(values: Sequence[FailureInfo | None], kind: Any) -> Any:
    """Failures: mostly there are none."""
    if not any(value is not None for value in values):
        return pa.nulls(len(values), kind)
    absent = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(_fields(values, _FAILURE, kind), fields=list(kind), mask=absent)


def _lists(values: Sequence[Sequence[Any]], kind: Any) -> Any:
    """The attempts of each message."""
    offsets = [0]
    flat: list[Any] = []
    for attempts in values:
        flat.extend(attempts)
        offsets.append(len(flat))
    inner = kind.value_type
    structs = pa.StructArray.from_arrays(_fields(flat, _ATTEMPT, inner), fields=list(inner))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs, type=kind)


def _fields(values: Sequence[Any], names: Sequence[str], kind: Any) -> list[Any]:
    arrays: list[Any] = []
    for name, field in zip(names, kind, strict=True):
        column = [None if value is None else getattr(value, name) for value in values]
        arrays.append(_times(column, field.type) if pa.types.is_timestamp(field.type) else pa.array(column, field.type))
    return arrays
