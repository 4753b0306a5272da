"""The data source that Spark knows as `brigade`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter
from pyspark.sql.types import StructType

from brigade.spark.source.options import Settings
from brigade.spark.source.tables import TABLES, TableReader
from brigade.spark.source.writing import BulkWriter, Target

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

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BulkWriter(Target.of(Settings(self.options), schema, overwrite=overwrite))

    def _table(self) -> str:
        given = Settings(self.options)
        return given.choice("table", tuple(TABLES), "messages" if given.text("queue") else "queues")
