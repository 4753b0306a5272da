"""Beside other queues that live in PostgreSQL: the same server, the same messages, durable commits, one run."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import brigade
from bench.measure import MESSAGE, Ground
from brigade.testing.servers.postgres import PostgresServer, programs

__all__ = ["PROCESSES", "PostgresResult", "missing", "run_postgres", "runs"]

CALLERS = 64
BULK = 1000
BATCH = 1000
PROCESSES = (1, 2)
CASES = ("enqueue, 1 caller", f"enqueue, {CALLERS} callers at once", f"enqueue, {BULK:,} a call", "process")
MESSAGES = {"brigade": (1_000, 20_000, 100_000, 100_000), "PgQueuer": (500, 2_000, 40_000, 20_000)}
OTHERS = (500, 1_000, 20_000, 1_000)
SYSTEMS = {"brigade": "bucket-brigade", "PgQueuer": "pgqueuer", "procrastinate": "procrastinate"}

Work = Callable[[str, int], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class PostgresResult:
    """Messages a second, best of the rounds."""

    name: str
    version: str
    case: str
    processes: int
    best: float


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def present() -> dict[str, str]:
    """The systems that are installed, with their versions; none where there is no PostgreSQL."""
    if programs() is None:
        return {}
    found = {name: _version(package) for name, package in SYSTEMS.items()}
    return {name: known for name, known in found.items() if known is not None}


def missing() -> list[str]:
    """Packages that are not installed: their columns are left out."""
    return sorted(package for package in SYSTEMS.values() if _version(package) is None)


def runs(total: int) -> int:
    """How many runs `run_postgres` makes, for the progress bar."""
    return total * len(present()) * len(CASES) * len(PROCESSES)


def run_postgres(ground: Ground) -> list[PostgresResult]:
    """Every case for every system, in turn, on a fresh database each."""
    systems = present()
    if not systems:
        return []
    rates: dict[tuple[str, str, int], list[float]] = {}
    server = PostgresServer.start(durable=True)
    try:
        made = 0
        for _ in range(ground.rounds):
            for place, case in enumerate(CASES):
                for processes in PROCESSES[:1] if ground.quick else PROCESSES:
                    for system in systems:
                        ground.tick(f"PostgreSQL: {case}, {processes} processes · {system}")
                        batch = processes if place < 2 else BULK * processes
                        count = ground.messages(MESSAGES.get(system, OTHERS)[place], batch)
                        made += 1
                        url = _database(server, f"bench{made}")
                        seconds = _timed(system, case, url, count, processes)
                        rates.setdefault((system, case, processes), []).append(count / seconds)
    finally:
        server.stop()
    return [PostgresResult(name, systems[name], case, n, max(found)) for (name, case, n), found in rates.items()]


def _database(server: PostgresServer, name: str) -> str:
    import psycopg

    with psycopg.connect(server.url(), autocommit=True) as conn:
        conn.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    return server.url(name)


def _timed(system: str, case: str, url: str, count: int, processes: int) -> float:
    """Seconds from the common start until the last process has done its last message."""
    asyncio.run(PREPARE[system](url, count if case == "process" else 0))
    context = multiprocessing.get_context("spawn")
    start, ends = context.Barrier(processes + 1), context.Queue()
    share = count // processes
    workers = [
        context.Process(target=_work, args=(system, case, url, share, start, ends), daemon=True)
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    start.wait(60)
    started = time.monotonic()
    ended = max(ends.get(timeout=600) for _ in workers)
    for worker in workers:
        worker.join(60)
    return ended - started


def _work(system: str, case: str, url: str, count: int, start: Any, ends: Any) -> None:
    ends.put(asyncio.run(RUN[system](url, case, count, start)))


async def _together(call: Callable[[], Awaitable[Any]], count: int, callers: int) -> float:
    left = iter(range(count))

    async def caller() -> None:
        for _ in left:
            await call()

    await asyncio.gather(*(caller() for _ in range(callers)))
    return time.monotonic()


async def _prepare_brigade(url: str, count: int) -> None:
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("bench")
        for _ in range(0, count, BULK):
            await queue.enqueue_many([MESSAGE] * BULK)


async def _run_brigade(url: str, case: str, count: int, start: Any) -> float:
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("bench")
        start.wait(60)
        if case == CASES[0]:
            return await _together(lambda: queue.enqueue(MESSAGE), count, 1)
        if case == CASES[1]:
            return await _together(lambda: queue.enqueue(MESSAGE), count, CALLERS)
        if case == CASES[2]:
            return await _together(lambda: queue.enqueue_many([MESSAGE] * BULK), count // BULK, 1)
        ended = time.monotonic()
        while claimed := await queue.claim(BATCH):
            await queue.ack_many(claimed)
            ended = time.monotonic()
        return ended


async def _prepare_pgqueuer(url: str, count: int) -> None:
    import asyncpg
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries

    conn = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(conn))
    await queries.install()
    for _ in range(0, count, BULK):
        await queries.enqueue(["bench"] * BULK, [MESSAGE] * BULK, [0] * BULK)
    await conn.close()


async def _run_pgqueuer(url: str, case: str, count: int, start: Any) -> float:
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
    from pgqueuer.queries import Queries
    from pgqueuer.types import QueueExecutionMode

    if case == CASES[3]:
        conn = await asyncpg.connect(url)
        manager = PgQueuer(AsyncpgDriver(conn))
        ended = 0.0

        @manager.entrypoint("bench")
        async def handle(_: Any) -> None:
            nonlocal ended
            ended = time.monotonic()

        start.wait(60)
        await manager.qm.run(batch_size=100, mode=QueueExecutionMode.drain)
        return ended
    async with asyncpg.create_pool(url, min_size=4, max_size=4) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        start.wait(60)
        if case == CASES[2]:
            many = ["bench"] * BULK, [MESSAGE] * BULK, [0] * BULK
            return await _together(lambda: queries.enqueue(*many), count // BULK, 1)
        callers = 1 if case == CASES[0] else CALLERS
        return await _together(lambda: queries.enqueue("bench", MESSAGE), count, callers)


def _procrastinate(url: str) -> Any:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=4))

    @app.task(name="bench", queue="bench")
    async def bench(text: str) -> None:
        app.ended = time.monotonic()  # pyright: ignore[reportAttributeAccessIssue]

    return app, bench


async def _prepare_procrastinate(url: str, count: int) -> None:
    app, task = _procrastinate(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for _ in range(0, count, BULK):
            await task.batch_defer_async(*[{"text": MESSAGE.decode()}] * BULK)


async def _run_procrastinate(url: str, case: str, count: int, start: Any) -> float:
    app, task = _procrastinate(url)
    text = MESSAGE.decode()
    async with app.open_async():
        start.wait(60)
        if case == CASES[3]:
            await app.run_worker_async(wait=False, concurrency=20, install_signal_handlers=False, listen_notify=False)
            return app.ended
        if case == CASES[2]:
            return await _together(lambda: task.batch_defer_async(*[{"text": text}] * BULK), count // BULK, 1)
        return await _together(lambda: task.defer_async(text=text), count, 1 if case == CASES[0] else CALLERS)


PREPARE: dict[str, Callable[[str, int], Any]] = {
    "brigade": _prepare_brigade,
    "PgQueuer": _prepare_pgqueuer,
    "procrastinate": _prepare_procrastinate,
}
RUN: dict[str, Callable[[str, str, int, Any], Any]] = {
    "brigade": _run_brigade,
    "PgQueuer": _run_pgqueuer,
    "procrastinate": _run_procrastinate,
}
