"""Who answers questions about the tables: Spark, or DuckDB for those that fit on one machine.

Both speak the SQL that reports and audits are written in: standard SQL, and `unix_millis`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from brigade.errors import ConfigError
from brigade.spark.history.columns import ATTEMPTS, MESSAGES
from brigade.spark.history.folder import Folder
from brigade.spark.history.state import load_state, read_kind
from brigade.spark.history.tables import KEYS, TABLES, ddl, read_table
from brigade.spark.history.upkeep import JOURNAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["DuckEngine", "Engine", "SparkEngine", "open_engine"]

Row = dict[str, Any]


class Engine(Protocol):
    """Answers SQL over the views `messages` and `attempts`."""

    kind: str
    """The kind of store that the history is of; empty where that is not known."""

    def rows(self, sql: str) -> list[Row]: ...

    def define(self, view: str, sql: str, *, keep: bool = False) -> None:
        """Give an answer a name; with `keep` it is worked out once."""
        ...

    def values(self, view: str, column: str, values: Sequence[str]) -> None:
        """A view of one column of text."""
        ...

    def save(self, sql: str, place: str) -> None:
        """Write an answer as Parquet, in the place of what was there."""
        ...


class SparkEngine:
    """Spark. Of several engines in one session, the one that is asked has the views."""

    _asked: SparkEngine | None = None

    def __init__(self, spark: SparkSession, place: str, queues: Sequence[str] | None = None) -> None:
        folder = Folder(spark, place)
        self._spark: Any = spark
        state = load_state(folder)
        self.kind = "" if state is None else state.kind
        self._views: dict[str, DataFrame] = {}
        for name in TABLES:
            table: Any = read_table(spark, folder, name)
            if table is None:
                if name == "messages":
                    raise _nothing(place)
                table = self._spark.createDataFrame([], ddl(ATTEMPTS))
            if queues:
                table = table.where(table["queue"].isin(list(queues)))
            # Only while a compaction is under way may a row be there twice.
            self._views[name] = table.dropDuplicates(KEYS[name]) if folder.exists(JOURNAL) else table

    def _frame(self, sql: str) -> DataFrame:
        if SparkEngine._asked is not self:
            SparkEngine._asked = self
            for name, frame in self._views.items():
                frame.createOrReplaceTempView(name)
        return self._spark.sql(sql)

    def _name(self, view: str, frame: DataFrame) -> None:
        """Views are named once: Spark forgets what it keeps of a view when its name is given again."""
        self._views[view] = frame
        if SparkEngine._asked is self:
            frame.createOrReplaceTempView(view)

    def rows(self, sql: str) -> list[Row]:
        return [row.asDict() for row in self._frame(sql).collect()]

    def define(self, view: str, sql: str, *, keep: bool = False) -> None:
        frame = self._frame(sql)
        self._name(view, frame.persist() if keep else frame)

    def values(self, view: str, column: str, values: Sequence[str]) -> None:
        self._name(view, self._spark.createDataFrame([(value,) for value in values], f"{column} string"))

    def use(self, view: str, frame: DataFrame) -> None:
        """A view over any DataFrame."""
        self._name(view, frame)

    def keep(self) -> None:
        """Hold the tables in memory while many questions are asked."""
        for name in TABLES:
            self._name(name, self._views[name].persist())

    def release(self) -> None:
        for name in TABLES:
            self._views[name].unpersist()

    def save(self, sql: str, place: str) -> None:
        self._frame(sql).coalesce(1).write.mode("overwrite").parquet(place)


class DuckEngine:
    """DuckDB, in this process: no Java, no cluster."""

    def __init__(self, place: str, queues: Sequence[str] | None = None) -> None:
        try:
            duckdb: Any = import_module("duckdb")
        except ImportError:
            raise ConfigError("DuckDB is not installed; pip install 'bucket-brigade[duckdb]'") from None
        root = Path(place.removeprefix("file://"))
        self.kind = read_kind(root)
        self._db: Any = duckdb.connect()
        self._db.execute("SET TimeZone = 'UTC'")
        self._db.execute("CREATE MACRO unix_millis(moment) AS epoch_ms(moment)")
        if not list(root.glob("messages/queue=*/date=*/*.parquet")):
            raise _nothing(place)
        chosen = "" if not queues else f" WHERE queue IN ({', '.join(map(_quoted, queues))})"
        for name, columns in (("messages", MESSAGES), ("attempts", ATTEMPTS)):
            self._table(root, name, columns, chosen)

    def _table(self, root: Path, name: str, columns: dict[str, str], chosen: str) -> None:
        """A table with all its columns, each row once, whatever version of the pipeline wrote its files."""
        empty = ", ".join(f"NULL::{_TYPES[kind]} AS {column}" for column, kind in columns.items())
        files = _quoted(str(root / name / "*" / "*" / "*.parquet"))
        sql = f"SELECT {empty} WHERE false"
        if list(root.glob(f"{name}/*/*/*.parquet")):
            hive = "hive_partitioning=true, hive_types={'queue': VARCHAR, 'date': DATE}, union_by_name=true"
            sql += f" UNION ALL BY NAME SELECT * FROM read_parquet({files}, {hive})"
        keys = ", ".join(KEYS[name])
        self._db.execute(f"CREATE TABLE {name} AS SELECT DISTINCT ON ({keys}) * FROM ({sql}){chosen}")

    def rows(self, sql: str) -> list[Row]:
        answer: Any = self._db.execute(sql)
        names = [column[0] for column in answer.description]
        return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

    def define(self, view: str, sql: str, *, keep: bool = False) -> None:
        self._db.execute(f"CREATE OR REPLACE TEMP {'TABLE' if keep else 'VIEW'} {view} AS {sql}")

    def values(self, view: str, column: str, values: Sequence[str]) -> None:
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE {view} ({column} VARCHAR)")
        if values:
            self._db.executemany(f"INSERT INTO {view} VALUES (?)", [(value,) for value in values])

    def save(self, sql: str, place: str) -> None:
        folder = Path(place.removeprefix("file://"))
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.parquet"):
            old.unlink()
        self._db.execute(f"COPY ({sql}) TO {_quoted(str(folder / 'part-0.parquet'))} (FORMAT parquet)")


_TYPES = {"string": "VARCHAR", "int": "INTEGER", "bigint": "BIGINT", "timestamp": "TIMESTAMPTZ", "date": "DATE"}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _nothing(place: str) -> ConfigError:
    return ConfigError(f"there is no history in {place}; `brigade spark history --output {place}` collects it")


def open_engine(name: str, place: str, queues: Sequence[str] | None = None) -> Engine:
    """The engine of that name: `spark` or `duckdb`."""
    if name == "duckdb":
        return DuckEngine(place, queues)
    from brigade.spark.session import local_session

    return SparkEngine(local_session("brigade"), place, queues)
