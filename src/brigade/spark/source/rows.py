"""From rows to messages: which columns say what, checked against the schema before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DayTimeIntervalType,
    IntegralType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
)

from brigade.errors import ConfigError
from brigade.model import JSON_TYPE, TEXT_TYPE
from brigade.payload import BINARY_TYPE, NewMessage, outgoing
from brigade.spark.arrow import Batch, pa
from brigade.stores import Outgoing, Payloads

__all__ = ["Columns"]

_LENGTHS = (NumericType, DayTimeIntervalType)
_OPTIONS: dict[str, tuple[type[DataType], ...]] = {
    "id": (StringType,),
    "priority": (IntegralType,),
    "delay": _LENGTHS,
    "due_at": (TimestampType,),
    "group": (StringType,),
    "attributes": (MapType, StructType, StringType),
    "correlation_id": (StringType,),
    "ttl": _LENGTHS,
    "max_attempts": (IntegralType,),
    "content_type": (StringType,),
}
"""The columns that are options of a message, and the types they may have."""

_BINARY: dict[Any, Any] = {
    pa.binary(): pa.binary(),
    pa.large_binary(): pa.large_binary(),
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
}
_json = msgspec.json.Encoder()


class Columns(msgspec.Struct, frozen=True):
    """How rows of one schema become messages. Plain data, made on the driver and used on executors."""

    payload: str | None
    fields: tuple[str, ...]
    options: tuple[str, ...]
    content_type: str | None

    @classmethod
    def of(cls, schema: StructType, content_type: str | None) -> Columns:
        """Check the columns: `payload`, or any columns, which make a JSON object; beside them the known options."""
        kinds = {field.name: field.dataType for field in schema.fields}
        options = tuple(name for name in kinds if name in _OPTIONS)
        for name in options:
            if not isinstance(kinds[name], _OPTIONS[name]):
                wanted = " or ".join(kind.typeName() for kind in _OPTIONS[name])
                raise ConfigError(
                    f"column {name!r} is {kinds[name].simpleString()}; it is an option of the message and must be "
                    f"{wanted}: cast it, or put it into a struct named payload if it is data"
                )
        if "delay" in kinds and "due_at" in kinds:
            raise ConfigError("there is a column delay and a column due_at; drop one of them")
        others = tuple(name for name in kinds if name not in _OPTIONS and name != "payload")
        if "payload" not in kinds:
            if not others:
                raise ConfigError("no column has anything to send; add one named payload, or any others")
            return cls(None, others, options, content_type)
        if others:
            raise ConfigError(
                f"beside payload there is a column {others[0]!r}, which is no option of a message; put it into the "
                f"payload, or drop it. Options are {', '.join(_OPTIONS)}"
            )
        kind = kinds["payload"]
        if content_type is None:
            content_type = (
                BINARY_TYPE
                if isinstance(kind, BinaryType)
                else TEXT_TYPE
                if isinstance(kind, StringType)
                else JSON_TYPE
            )
        return cls("payload", (), options, content_type)

    def messages(self, batch: Batch, now: int) -> Sequence[Outgoing]:
        """The messages of a batch, in its order; a row that can't be one is a ConfigError that says why."""
        kind = self.content_type or JSON_TYPE
        column = self._binary(batch)
        if column is not None and not self.options:
            return _as_they_are(column, kind)
        payloads = self._payloads(batch) if column is None else column.to_pylist()
        if not self.options:
            return [Outgoing(payload, kind) for payload in payloads]
        values = {name: batch.column(name).to_pylist() for name in self.options}
        made: list[Outgoing] = []
        for row, payload in enumerate(payloads):
            given = {name: _READ[name](column[row], now) for name, column in values.items() if column[row] is not None}
            if "due_at" in given:
                given["delay"] = given.pop("due_at")
            message = outgoing(NewMessage(payload=b"", **given))
            message.payload = payload
            message.content_type = given.get("content_type", kind)
            made.append(message)
        return made

    def _binary(self, batch: Batch) -> Any:
        """The column of payloads where they are bytes, or text, already."""
        column = None if self.payload is None else batch.column(self.payload)
        if column is None or column.type not in _BINARY:
            return None
        if column.null_count:
            raise ConfigError("a row has no payload: it is null; filter such rows out, or give them an empty one")
        return column.cast(_BINARY[column.type])

    def _payloads(self, batch: Batch) -> list[bytes]:
        if self.payload is not None:
            return [_encoded(value) for value in batch.column(self.payload).to_pylist(maps_as_pydicts="lossy")]
        columns = [batch.column(name).to_pylist() for name in self.fields]
        return [_encoded(dict(zip(self.fields, row, strict=True))) for row in zip(*columns, strict=True)]


def _as_they_are(column: Any, kind: str) -> Payloads:
    """Arrow has them one after the other, too."""
    _, bounds, data = column.buffers()
    wide = "q" if pa.types.is_large_binary(column.type) else "i"
    first = column.offset
    ends = memoryview(bounds).cast("B").cast(wide)[first : first + len(column) + 1].tolist()
    return Payloads(memoryview(data or b"").cast("B"), ends, kind)


def _encoded(value: Any) -> bytes:
    try:
        return _json.encode(value)
    except (TypeError, ValueError, msgspec.EncodeError) as error:
        raise ConfigError(f"a row cannot be stored as JSON: {error}; send binary or string instead") from None


def _length(value: Any, _now: int) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def _until(value: datetime, now: int) -> float:
    return max(0.0, value.timestamp() - now / 1000)


def _same(value: Any, _now: int) -> Any:
    return value


def _pairs(value: Any, _now: int) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigError(f"attributes {value[:80]!r} is not a JSON object ({error})") from None
    return dict(value)


_READ: dict[str, Callable[[Any, int], Any]] = {
    **dict.fromkeys(_OPTIONS, _same),
    "delay": _length,
    "ttl": _length,
    "due_at": _until,
    "attributes": _pairs,
}
