"""A PostgreSQL server of one's own: it is stopped in good order or at once, and its connections are cut."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from brigade.testing.chaos.arenas import Arena, Break
from brigade.testing.chaos.judge.ended import Ended, Held
from brigade.testing.servers.postgres import PostgresServer
from brigade.testing.sim import records as r

__all__ = ["PostgresArena", "opened"]

SCHEMA = "chaos"
HISTORY = f"""
SELECT q.name, h.queue_id || '-' || h.id, h.correlation_id, h.outcome, h.attempts, h.max_attempts, h.group_name,
       h.log::text, h.version, h.claimed_at, h.finished_at
FROM {SCHEMA}.history h JOIN {SCHEMA}.queues q ON q.id = h.queue_id
"""
TABLES = ("messages", "parked", "blobs", "chunks", "states")
CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'brigade' AND pid <> pg_backend_pid()"


class _Logged(msgspec.Struct):
    version: int
    claimed_at: int
    ended_at: int
    how: str


class PostgresArena:
    keeps_own_time = True
    takes_large = False

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.faults: Counter[str] = Counter()
        self.witnessed: list[tuple[int, r.Record]] = []

    @property
    def url(self) -> str:
        return f"{self._server.url()}?schema={SCHEMA}&connect_timeout=5"

    @property
    def urls(self) -> list[str]:
        return [self.url]

    @property
    def drain_url(self) -> str:
        return self.url

    @property
    def breaks(self) -> Mapping[str, Break]:
        return {
            "server stopped and started": lambda rng: self._restart("fast", rng),
            "server crashed and started": lambda rng: self._restart("immediate", rng),
            "connections cut": self._cut,
        }

    async def _restart(self, mode: str, rng: random.Random) -> None:
        await asyncio.to_thread(self._server.halt, mode)
        await asyncio.sleep(rng.uniform(0, 2))
        await asyncio.to_thread(self._server.resume)

    async def _cut(self, rng: random.Random) -> None:
        await asyncio.to_thread(self._rows, CUT)

    def _rows(self, text: str) -> list[tuple[Any, ...]]:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self._server.url()) as conn:
            return conn.execute(text.encode()).fetchall()
        return []

    def calm(self) -> None:
        """Everything that was stopped has been started again."""

    async def ended(self) -> list[Ended]:
        found: list[Ended] = []
        for queue, ref, uid, outcome, counted, most, group, log, version, claimed, finished in self._rows(HISTORY):
            logged = msgspec.json.decode(log or "[]", type=list[_Logged])
            held = [Held(one.version, one.claimed_at, one.ended_at, one.how) for one in logged]
            if claimed is not None:
                held.append(Held(version, claimed, finished, "acked" if outcome == "processed" else "failed"))
            found.append(
                Ended(
                    queue=queue,
                    ref=ref,
                    uid=uid or "",
                    outcome=outcome,
                    counted=counted,
                    max_attempts=most,
                    group=group,
                    held=held,
                )
            )
        return found

    async def left(self) -> list[str]:
        """Rows that should have gone. History and ids of the users' own stay as long as the policy says."""
        counts = {table: self._rows(f"SELECT count(*) FROM {SCHEMA}.{table}")[0][0] for table in TABLES}
        return [f"{count} rows in {table}" for table, count in counts.items() if count]


@contextlib.contextmanager
def opened(folder: Path, seed: int, faults: bool) -> Generator[Arena]:
    server = PostgresServer.start(durable=False)
    try:
        yield PostgresArena(server)
    finally:
        server.stop()
