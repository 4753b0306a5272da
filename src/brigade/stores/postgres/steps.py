"""What the store's functions yield: statements. They are run by a driver, on a pool or on the caller's connection.

A function that needs the database is a generator: it yields an `Ask` or a `Copy`, is resumed with the rows, and
returns its result. It knows nothing of connections, so it runs the same blocking, async or inside a transaction that
somebody else has opened.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

__all__ = ["COPY_TYPES", "Again", "Ask", "Copy", "Row", "Rows", "Steps"]

T = TypeVar("T")
Row = tuple[Any, ...]
Rows = Sequence[Row]


class Again(Exception):
    """Somebody else came in between: undo the transaction and start over."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A statement by its name in `queries.sql`."""

    name: str
    params: dict[str, Any] = field(default_factory=dict[str, Any])
    lifo: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """Rows that go into a table by COPY."""

    name: str
    rows: Rows


COPY_TYPES = (
    *("int8",) * 7,
    *("int4", "int4", "int2", "text", "text", "text", "text", "bytea"),
)
"""The types of the columns that `copy_messages` writes. JSON goes as text, which is how the server takes it."""

Steps = Generator[Ask | Copy, Rows, T]
