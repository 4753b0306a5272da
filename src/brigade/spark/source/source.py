"""The data source that Spark knows as `brigade`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from brigade.spark.source.options import Settings
from brigade.spark.source.tables import TABLES, TableReader

__all__ = ["BrigadeSource"]


class BrigadeSource(DataSource):
    """Reads queues without taking leases: `spark.read.format("brigade").option("url", …).option("queue", …)`."""

    @classmethod
    def name(cls) -> str:
        return "brigade"

    def schema(self) -> StructType:
        return TABLES[self._table()].schema

    def reader(self, schema: StructType) -> DataSourceReader:
        return TableReader(TABLES[self._table()], Settings(self.options), schema)

    def _table(self) -> str:
        return Settings(self.options).choice("table", tuple(TABLES), "queues")
