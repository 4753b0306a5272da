"""The way to the server: a pool, statements run and counted, lost connections made good, commits in doubt resolved.

A statement that was under way when its connection broke may have been committed. Then the backend that served the
connection is made sure to be gone, and the work is made anew with `doubt` set: it looks for its own traces first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCursor, errors
from psycopg_pool import AsyncConnectionPool, PoolClosed

from brigade.clock import SystemClock
from brigade.errors import BrigadeError, ConfigError, PermissionDenied, StoreUnavailable
from brigade.ids import Ids
from brigade.stores.postgres.adapt import adapt
from brigade.stores.postgres.queries import Queries
from brigade.stores.postgres.steps import Again, Ask, Copy, Rows, Steps

__all__ = ["PATIENCE", "Link", "explained"]

log = logging.getLogger("brigade")
T = TypeVar("T")
PATIENCE = 30.0
"""Seconds for which an operation is tried again while the server cannot be reached."""

TURN = 1.0
"""Seconds to wait for a connection before asking again: it is by asking that the pool makes a new one."""

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
PLANNING = (
    "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off "
    "-c enable_material=off -c jit=off -c plan_cache_mode=force_generic_plan "
    "-c default_transaction_isolation=read\\ committed"
)
"""Everything goes by an index: a plan made while a table was empty must not stay when it is full."""


class Link:
    """Connections to one database. One instance belongs to one event loop."""

    def __init__(self, settings: dict[str, Any], queries: Queries, ids: Ids, *, size: int) -> None:
        self.name = f"brigade-{ids.bits(64):016x}"
        options = f"{PLANNING} {settings.get('options') or ''}".strip()
        self.settings: dict[str, Any] = {
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "connect_timeout": 10,
            **settings,
            "options": options,
            "application_name": self.name,
        }
        self.queries = queries
        self.requests: Counter[str] = Counter()
        self.conflicts = 0
        self._ids = ids
        self._clock = SystemClock()
        self._size = size
        self._pool: AsyncConnectionPool[AsyncConnection] | None = None

    async def connect(self) -> AsyncConnection:
        """A connection of its own; what keeps it from being made is raised as one of Brigade's errors."""
        try:
            conn = await AsyncConnection.connect(**self.settings, autocommit=True)
        except psycopg.Error as error:
            raise explained(error) from None
        adapt(conn)
        return conn

    async def open(self) -> None:
        pool: AsyncConnectionPool[AsyncConnection] = AsyncConnectionPool(
            kwargs={**self.settings, "autocommit": True, "prepare_threshold": 2},
            min_size=1,
            max_size=self._size,
            configure=_configure,
            open=False,
            timeout=TURN,
            reconnect_timeout=0.0,
            num_workers=1,
            name=self.name,
        )
        await pool.open()
        self._pool = pool

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close(timeout=1.0)
            self._pool = None

    async def run(self, make: Callable[[bool], Steps[T]], *, atomic: bool = False) -> T:
        """Run `make(doubt)`, in a transaction where it is `atomic`, again and again until it was done or time is up."""
        give_up = self._clock.monotonic() + PATIENCE
        pause, doubt = FIRST_PAUSE, False
        lost: list[int] = []
        while True:
            attempt = _Attempt()
            try:
                async with self._connection() as conn:
                    for pid in lost:
                        await self._see_off(conn, pid)
                    lost.clear()
                    attempt.pid = conn.info.backend_pid
                    return await self._drive(conn, make(doubt), attempt, atomic=atomic)
            except (Again, errors.DeadlockDetected, errors.SerializationFailure) as error:
                self.conflicts += 1
                reason: Exception = error
            except PoolClosed:
                raise ConfigError("the hub is closed; open it again to go on") from None
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                reason = error
                if attempt.sent:
                    doubt = True
                    lost.append(attempt.pid)
            except psycopg.Error as error:
                raise explained(error) from None
            if self._clock.monotonic() >= give_up:
                raise StoreUnavailable(
                    f"PostgreSQL did not answer for {PATIENCE:g} seconds ({_told(reason)})"
                ) from None
            await asyncio.sleep(pause * self._ids.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncGenerator[AsyncConnection, None]:
        if self._pool is None:
            raise ConfigError("the hub is not open; use it as: async with brigade.connect_async(url) as hub")
        async with self._pool.connection() as conn:
            yield conn

    async def _drive(self, conn: AsyncConnection, steps: Steps[T], attempt: _Attempt, *, atomic: bool) -> T:
        if not atomic:
            attempt.sent = True
            try:
                return await self.feed(conn, steps)
            except BaseException:
                attempt.sent = conn.closed
                raise
        try:
            result = await self._begin_and_feed(conn, steps)
        except BaseException:
            if not conn.closed:
                with contextlib.suppress(psycopg.Error):
                    await conn.execute("ROLLBACK")
            raise
        attempt.sent = True
        try:
            await conn.execute("COMMIT")
        except BaseException:
            attempt.sent = conn.closed
            raise
        self.requests["commit"] += 1
        return result

    async def _begin_and_feed(self, conn: AsyncConnection, steps: Steps[T]) -> T:
        """Open a transaction and send its first statement along: one round trip for both."""
        try:
            asked = next(steps)
            if isinstance(asked, Copy):
                raise AssertionError("a transaction starts with a question")
            async with conn.pipeline():
                await conn.execute("BEGIN")
                cursor = await self._send(conn, asked)
            rows: Rows = await cursor.fetchall() if cursor.description is not None else []
            while True:
                rows = await self._perform(conn, steps.send(rows))
        except StopIteration as done:
            return done.value
        finally:
            steps.close()

    async def feed(self, conn: AsyncConnection, steps: Steps[T]) -> T:
        """Run the statements of a generator on a connection, one after the other."""
        try:
            asked = next(steps)
            while True:
                asked = steps.send(await self._perform(conn, asked))
        except StopIteration as done:
            return done.value
        finally:
            steps.close()

    async def _perform(self, conn: AsyncConnection, asked: Ask | Copy) -> Rows:
        if isinstance(asked, Ask):
            cursor = await self._send(conn, asked)
            return await cursor.fetchall() if cursor.description is not None else []
        self.requests[asked.name] += 1
        text: Any = self.queries.text(asked.name)
        async with conn.cursor().copy(text) as copy:
            copy.set_types(asked.types)
            for row in asked.rows:
                await copy.write_row(row)
        return []

    async def _send(self, conn: AsyncConnection, asked: Ask) -> AsyncCursor[Any]:
        self.requests[asked.name] += 1
        text: Any = self.queries.text(asked.name, lifo=asked.lifo)
        cursor: AsyncCursor[Any] = conn.cursor(binary=True)
        return await cursor.execute(text, asked.params)

    async def _see_off(self, conn: AsyncConnection, pid: int) -> None:
        """Wait until the server no longer works for a connection that was lost."""
        while True:
            cursor: AsyncCursor[Any] = conn.cursor()
            text: Any = self.queries.text("backend_alive")
            await cursor.execute(text, {"pid": pid, "name": self.name})
            if not await cursor.fetchall():
                return
            await asyncio.sleep(0.02)


class _Attempt:
    """Whether something was sent that may have been committed, and which backend it was sent to."""

    def __init__(self) -> None:
        self.sent = False
        self.pid = 0


async def _configure(conn: AsyncConnection) -> None:
    adapt(conn)


def _told(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def explained(error: psycopg.Error) -> BrigadeError:
    """A database error as one of Brigade's, which says what to do. libpq never puts a password into its messages."""
    said = _told(error)
    if isinstance(error, errors.InvalidPassword | errors.InvalidAuthorizationSpecification):
        return PermissionDenied(f"PostgreSQL refused the user or the password: {said}; check the URL")
    if isinstance(error, errors.InsufficientPrivilege):
        return PermissionDenied(f"PostgreSQL refused: {said}; grant the rights that docs/postgres.md lists")
    if isinstance(error, errors.InvalidCatalogName):
        return ConfigError(f"{said}; create the database first: createdb NAME")
    if isinstance(error, errors.UndefinedTable | errors.UndefinedFunction | errors.InvalidSchemaName):
        return ConfigError(f"the tables are not there or of another version: {said}; run `brigade migrate up`")
    if isinstance(error, psycopg.OperationalError):
        if "password authentication failed" in said or "no password supplied" in said:
            return PermissionDenied(f"PostgreSQL refused the user or the password: {said}; check the URL")
        if "does not exist" in said and "database" in said:
            return ConfigError(f"{said}; create the database first: createdb NAME")
        if "connection option" in said or ("invalid" in said and "value:" in said):
            return ConfigError(f"{said}; correct the URL or the option")
        return StoreUnavailable(f"PostgreSQL cannot be reached: {said}; check that it runs and try again")
    return StoreUnavailable(f"PostgreSQL refused a statement: {said}")
