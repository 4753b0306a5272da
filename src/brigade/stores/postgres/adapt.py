"""How Python values go to the server: whole numbers always as bigint, so that a statement is prepared once.

Long arrays of numbers and tokens are packed here as the server reads them: psycopg would take them item by item.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

__all__ = ["Numbers", "Tokens", "adapt"]

_BIGINT, _UUID = 20, 2950
_HEADER = struct.Struct(">iiiii")


class Numbers:
    """A `bigint[]`."""

    __slots__ = ("packed",)

    def __init__(self, values: Sequence[int]) -> None:
        body = struct.pack(">" + "iq" * len(values), *[part for value in values for part in (8, value)])
        self.packed = _HEADER.pack(1, 0, _BIGINT, len(values), 1) + body if values else _empty(_BIGINT)


class Tokens:
    """A `uuid[]`, from 32 hexadecimal digits each."""

    __slots__ = ("packed",)

    def __init__(self, values: Sequence[str]) -> None:
        known = {value: b"\0\0\0\x10" + bytes.fromhex(value) for value in set(values)}
        body = b"".join(map(known.__getitem__, values))
        self.packed = _HEADER.pack(1, 0, _UUID, len(values), 1) + body if values else _empty(_UUID)


def _empty(oid: int) -> bytes:
    return struct.pack(">iii", 0, 0, oid)


class _Packed(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer | None:
        return obj.packed


class _NumbersDumper(_Packed):
    oid = 1016


class _TokensDumper(_Packed):
    oid = 2951


def adapt(context: AdaptContext) -> None:
    """Set up a connection or a cursor."""
    adapters: Any = context.adapters
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(int, Int8BinaryDumper)
    adapters.register_dumper(Numbers, _NumbersDumper)
    adapters.register_dumper(Tokens, _TokensDumper)
