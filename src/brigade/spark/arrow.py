"""Arrow, imported in one place: the library has no types, so here its names get some."""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

from pyspark.sql.types import StructType

__all__ = ["Batch", "Schema", "arrow_schema", "pa", "pc"]

pa: Any = import_module("pyarrow")
pc: Any = import_module("pyarrow.compute")
_types: Any = import_module("pyspark.sql.pandas.types")

Batch: TypeAlias = Any
"""A `pyarrow.RecordBatch`."""

Schema: TypeAlias = Any
"""A `pyarrow.Schema`."""


def arrow_schema(schema: StructType) -> Schema:
    """The columns that Spark wants batches to have, to the letter."""
    return _types.to_arrow_schema(schema, timezone="UTC")
