"""What `spark.read.format("brigade")` can show: each table's columns, how it is split, and how a part is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from brigade.spark.arrow import Batch, Schema, arrow_schema
from brigade.spark.source.options import Place, Settings
from brigade.spark.source.queues import Queues
from brigade.spark.source.scanned import FAILED, HISTORY, LEASES, MESSAGES, Scanned

__all__ = ["TABLES", "Table", "TableReader"]


class Table(Protocol):
    """One kind of rows."""

    schema: StructType

    def settings(self, given: Settings) -> Any:
        """The table's own options, checked: plain data."""
        ...

    def plan(self, place: Place, chosen: Any) -> Sequence[InputPartition]: ...

    def read(self, place: Place, chosen: Any, part: Any, schema: Schema) -> Iterator[Batch]: ...


TABLES: dict[str, Table] = {
    "messages": Scanned("messages", MESSAGES),
    "leases": Scanned("leases", LEASES),
    "failed": Scanned("failed", FAILED),
    "history": Scanned("history", HISTORY),
    "queues": Queues(),
}


class TableReader(DataSourceReader):
    """Plans on the driver and reads on executors; a pickled copy goes to each."""

    def __init__(self, table: Table, given: Settings, schema: StructType) -> None:
        self._table = table
        self._place = given.place()
        self._chosen = table.settings(given)
        given.text("table")
        given.refuse_unknown()
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return self._table.plan(self._place, self._chosen) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Batch]:
        if partition.value is None:
            return iter(())
        schema = arrow_schema(self._schema)
        return self._table.read(self._place, self._chosen, partition.value, schema)
