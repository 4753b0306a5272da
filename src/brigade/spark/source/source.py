"""The data source that Spark knows as `brigade`."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from brigade.errors import ConfigError
from brigade.spark.source.columns import chosen_columns
from brigade.spark.source.options import Settings
from brigade.spark.source.settling import Outcomes, OutcomeStreamWriter, OutcomeWriter
from brigade.spark.source.streaming import LeasingReader
from brigade.spark.source.tables import TABLES, TableReader
from brigade.spark.source.writing import BulkStreamWriter, BulkWriter, Target
from brigade.stores.opening import switch

__all__ = ["BrigadeSource"]


class BrigadeSource(DataSource):
    """Queues: `spark.read` looks at them without leases, `readStream` leases, `write` and `writeStream` enqueue."""

    @classmethod
    def name(cls) -> str:
        return "brigade"

    def schema(self) -> StructType:
        return TABLES[self._table()].schema

    def reader(self, schema: StructType) -> DataSourceReader:
        table = TABLES[self._table()]
        return TableReader(table, Settings(self.options), chosen_columns(schema, table.schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self._table() != "messages":
            raise ConfigError("a stream leases messages of a queue; name the queue, and leave the option table out")
        return LeasingReader(Settings(self.options), chosen_columns(schema, self.schema()))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        given = Settings(self.options)
        if self._settles(given):
            return OutcomeWriter(self._outcomes(given, schema))
        return BulkWriter(Target.of(given, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        given = Settings(self.options)
        given.text("checkpointLocation")
        if self._settles(given):
            return OutcomeStreamWriter(self._outcomes(given, schema))
        return BulkStreamWriter(Target.of(given, schema, overwrite=overwrite))

    def _table(self) -> str:
        given = Settings(self.options)
        return given.choice("table", tuple(TABLES), "messages" if given.text("queue") else "queues")

    def _settles(self, given: Settings) -> bool:
        return switch("settle", given.text("settle", "false"))

    def _outcomes(self, given: Settings, schema: StructType) -> Outcomes:
        outcomes = Outcomes.of(given.place(), given.queue(), schema)
        given.refuse_unknown()
        return outcomes
