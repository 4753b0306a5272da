"""The schema: installed and brought up to date by numbered SQL files, one process at a time."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import AsyncConnection, errors

from brigade.errors import ConfigError, PermissionDenied
from brigade.stores.postgres.link import explained
from brigade.stores.postgres.queries import quoted

__all__ = ["Migration", "Standing", "migrate", "migrations", "partition_for", "standing"]

_FILE = re.compile(r"(\d{3})_(\w+)\.sql")
AHEAD = 7
"""Days for which history has a partition in advance."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step from a version to the next."""

    version: int
    name: str
    sql: str

    def text(self, schema: str) -> str:
        return self.sql.replace("{schema}", quoted(schema))


@dataclass(frozen=True, slots=True)
class Standing:
    """Which version a database has, and what is missing."""

    schema: str
    version: int
    pending: tuple[Migration, ...]

    @property
    def newest(self) -> int:
        return migrations()[-1].version


@functools.cache
def migrations() -> tuple[Migration, ...]:
    """All steps, in order."""
    found = [
        Migration(int(match[1]), match[2], file.read_text(encoding="utf-8"))
        for file in files(__package__ or "").joinpath("migrations").iterdir()
        if (match := _FILE.fullmatch(file.name))
    ]
    return tuple(sorted(found, key=lambda migration: migration.version))


async def standing(conn: AsyncConnection, schema: str) -> Standing:
    """How far a schema is; version 0 where it isn't there. One of a newer version than this is a ConfigError."""
    try:
        cursor = await _execute(conn, f"SELECT coalesce(max(version), 0) FROM {quoted(schema)}.migrations")  # noqa: S608 - a checked name
        row = await cursor.fetchone()
        version: int = row[0] if row else 0
    except (errors.UndefinedTable, errors.InvalidSchemaName):
        version = 0
    except psycopg.Error as error:
        raise explained(error) from None
    newest = migrations()[-1].version
    if version > newest:
        raise ConfigError(
            f"schema {schema!r} has version {version}, this program knows {newest}; upgrade bucket-brigade to go on"
        )
    return Standing(schema, version, tuple(step for step in migrations() if step.version > version))


async def migrate(conn: AsyncConnection, schema: str, *, to: int | None = None) -> list[Migration]:
    """Bring a schema up to date, or to version `to`, all in one transaction; returns what was done.

    Whoever else does the same at the same time waits, and then finds it done.
    """
    try:
        async with conn.transaction():
            await _execute(conn, "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"brigade:{schema}"])
            return await _migrate(conn, schema, to)
    except errors.InsufficientPrivilege as error:
        raise PermissionDenied(
            f"schema {schema!r} cannot be installed: {str(error).splitlines()[0]}; "
            "run `brigade migrate up` once as a user who may, and grant this one the rights in docs/postgres.md"
        ) from None
    except psycopg.Error as error:
        raise explained(error) from None


async def _migrate(conn: AsyncConnection, schema: str, to: int | None) -> list[Migration]:
    found = await _execute(conn, "SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema])
    if await found.fetchone() is None:
        await _execute(conn, f"CREATE SCHEMA {quoted(schema)}")
    await _execute(
        conn,
        f"CREATE TABLE IF NOT EXISTS {quoted(schema)}.migrations "
        "(version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())",
    )
    now = await standing(conn, schema)
    wanted = [step for step in now.pending if to is None or step.version <= to]
    for step in wanted:
        await _execute(conn, step.text(schema))
        values = [step.version, step.name]
        await _execute(conn, f"INSERT INTO {quoted(schema)}.migrations (version, name) VALUES (%s, %s)", values)  # noqa: S608
    if wanted and now.version == 0:
        cursor = await _execute(conn, f"SELECT {quoted(schema)}.now_ms()")
        row = await cursor.fetchone()
        today = (row[0] if row else 0) // 86_400_000
        for day in range(today, today + AHEAD + 1):
            await _execute(conn, partition_for(schema, day))
    return wanted


def partition_for(schema: str, day: int) -> str:
    """What makes the partition of history for a day, counted from the epoch."""
    start = day * 86_400_000
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(schema)}.history_{day} PARTITION OF {quoted(schema)}.history "
        f"FOR VALUES FROM ({start}) TO ({start + 86_400_000})"
    )


async def _execute(conn: AsyncConnection, text: str, values: list[Any] | None = None) -> Any:
    query: Any = text
    return await conn.execute(query, values)
