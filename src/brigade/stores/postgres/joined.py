"""The caller's own connection: statements that join a transaction which somebody else commits or rolls back."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from brigade.errors import ConfigError, StoreUnavailable
from brigade.stores.postgres.adapt import adapt
from brigade.stores.postgres.link import Link, explained
from brigade.stores.postgres.steps import COPY_TYPES, Again, Ask, Copy, Rows, Steps

__all__ = ["Joined"]

T = TypeVar("T")


class Joined:
    """A psycopg connection of the caller's, sync or async. Nothing is committed here unless it is in autocommit."""

    def __init__(self, connection: Any, link: Link) -> None:
        if not isinstance(connection, AsyncConnection | Connection):
            raise ConfigError(
                f"connection is a {type(connection).__name__}; pass a psycopg.Connection, or a psycopg.AsyncConnection"
            )
        self._connection: AsyncConnection[Any] | Connection[Any] = connection
        self._link = link

    async def run(self, steps: Steps[T], *, notify: tuple[str, int] | None = None) -> T:
        """Run the statements of a generator; then tell of news in a queue, which is heard when it is committed."""
        whole = _with_notice(steps, notify)
        try:
            if isinstance(self._connection, AsyncConnection):
                return await self._feed_async(self._connection, whole)
            return await asyncio.to_thread(self._feed, self._connection, whole)
        except Again as error:
            raise StoreUnavailable(f"{error}; roll back and try again") from None
        except psycopg.Error as error:
            raise explained(error) from error

    async def _feed_async(self, conn: AsyncConnection[Any], steps: Steps[T]) -> T:
        alone = conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE
        async with conn.transaction() if alone else contextlib.nullcontext():
            try:
                asked = next(steps)
                while True:
                    asked = steps.send(await self._perform_async(conn, asked))
            except StopIteration as done:
                return done.value
            finally:
                steps.close()

    async def _perform_async(self, conn: AsyncConnection[Any], asked: Ask | Copy) -> Rows:
        cursor = conn.cursor(binary=True, row_factory=tuple_row)
        adapt(cursor)
        text = self._text(asked)
        if isinstance(asked, Copy):
            async with cursor.copy(text) as copy:
                copy.set_types(COPY_TYPES)
                for row in asked.rows:
                    await copy.write_row(row)
            return []
        await cursor.execute(text, asked.params)
        return await cursor.fetchall() if cursor.description is not None else []

    def _feed(self, conn: Connection[Any], steps: Steps[T]) -> T:
        alone = conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE
        with conn.transaction() if alone else contextlib.nullcontext():
            try:
                asked = next(steps)
                while True:
                    asked = steps.send(self._perform(conn, asked))
            except StopIteration as done:
                return done.value
            finally:
                steps.close()

    def _perform(self, conn: Connection[Any], asked: Ask | Copy) -> Rows:
        cursor = conn.cursor(binary=True, row_factory=tuple_row)
        adapt(cursor)
        text = self._text(asked)
        if isinstance(asked, Copy):
            with cursor.copy(text) as copy:
                copy.set_types(COPY_TYPES)
                for row in asked.rows:
                    copy.write_row(row)
            return []
        cursor.execute(text, asked.params)
        return cursor.fetchall() if cursor.description is not None else []

    def _text(self, asked: Ask | Copy) -> Any:
        self._link.requests[asked.name] += 1
        return self._link.queries.text(asked.name, lifo=isinstance(asked, Ask) and asked.lifo)


def _with_notice(steps: Steps[T], notify: tuple[str, int] | None) -> Steps[T]:
    result = yield from steps
    if notify is not None:
        yield Ask("notify", {"channel": notify[0], "payload": str(notify[1])})
    return result
