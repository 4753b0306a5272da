"""The tables of history as DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from brigade.errors import ConfigError
from brigade.spark.history.columns import ATTEMPTS, MESSAGES
from brigade.spark.history.folder import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["KEYS", "TABLES", "attempts", "ddl", "messages", "read_table"]

TABLES: dict[str, dict[str, str]] = {"messages": MESSAGES, "attempts": ATTEMPTS}
KEYS: dict[str, list[str]] = {
    "messages": ["queue", "date", "ref"],
    "attempts": ["queue", "date", "ref", "version", "owner", "claimed_at", "ended_at", "how"],
}
"""What makes a row the same row: history may tell it twice."""


def ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def read_table(spark: SparkSession, folder: Folder, name: str) -> DataFrame | None:
    """A table, or None where nothing has been written. Columns that it doesn't have yet are null."""
    if not any("=" in part for part in folder.names(name)):
        return None
    return spark.read.schema(ddl(TABLES[name])).option("basePath", folder.at(name)).parquet(folder.at(name))


def _wanted(spark: SparkSession, place: str, name: str) -> DataFrame:
    found = read_table(spark, Folder(spark, place), name)
    if found is None:
        raise ConfigError(f"there is no history in {place}; `brigade spark history --output {place}` collects it")
    return found


def messages(spark: SparkSession, place: str) -> DataFrame:
    """One row a message that has ended."""
    return _wanted(spark, place, "messages")


def attempts(spark: SparkSession, place: str) -> DataFrame:
    """One row a lease of those messages."""
    return _wanted(spark, place, "attempts")
