"""Bulk jobs and whole tables with encryption on: sealed where they lie, open to whoever has the keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

import brigade
from brigade import AsyncHub, Backoff, CannotDecrypt, Failure, QueuePolicy
from brigade.payload import NewMessage, outgoing_many
from brigade.stores import ScannedTable, ScanningStore, StagingStore
from postgres_server import database, postgres
from test_crypto_stores import CANARY, key_file, store_of, stored

__all__ = ["database", "postgres"]

POLICY = QueuePolicy(failure=Failure("retry", 0), backoff=Backoff(base=0))


@pytest.fixture(params=["file", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_of(tmp_path) if request.param == "file" else request.getfixturevalue("database")


@pytest.fixture
def everything(url: str, tmp_path: Path) -> Callable[[], bytes]:
    """All that lies in the store."""

    def read() -> bytes:
        if url.startswith("file"):
            return b"".join(stored(tmp_path).values())
        with psycopg.connect(url) as conn:
            found = b""
            tables = conn.execute("SELECT schemaname, tablename FROM pg_tables WHERE schemaname = 'brigade'").fetchall()
            for schema, table in tables:
                name = psycopg.sql.Identifier(schema, table)
                rows = conn.execute(psycopg.sql.SQL("SELECT t::text FROM {} t").format(name)).fetchall()
                found += "".join(row[0] for row in rows).encode()
                if table in ("staged", "messages", "parked"):
                    query = psycopg.sql.SQL("SELECT payload FROM {}").format(name)
                    found += b"".join(row[0] or b"" for row in conn.execute(query).fetchall())
            return found

    return read


async def table(hub: AsyncHub, name: ScannedTable) -> list[dict[str, Any]]:
    store = hub.store
    assert isinstance(store, ScanningStore)
    rows: list[dict[str, Any]] = []
    for piece in await store.pieces("tasks", name, 2):
        async for block in store.scan("tasks", name, piece):
            lists = {key: column for key, column in block.columns.items() if isinstance(column, list)}
            rows += [{key: column[place] for key, column in lists.items()} for place in range(block.count)]
    return rows


async def test_a_bulk_job_is_sealed_from_the_first_write_on(
    url: str, everything: Callable[[], bytes], tmp_path: Path
) -> None:
    keys = key_file(tmp_path / "keys", "first")
    async with brigade.connect_async(url, encryption=keys) as hub:
        queue = await hub.queue("tasks", POLICY)
        store = hub.store
        assert isinstance(store, StagingStore)
        common = NewMessage(payload=b"", attributes={"who": CANARY})
        staged = await store.stage("tasks", "job", outgoing_many([CANARY.encode(), b"fails"], common))
        assert CANARY.encode() not in everything()
        assert await store.publish("tasks", "job", [staged]) == 2
        assert [(row["payload"], row["attributes"]) for row in await table(hub, "messages")] == [
            (CANARY.encode(), {"who": CANARY}),
            (b"fails", {"who": CANARY}),
        ]
        first, second = await queue.claim(2)
        assert (first.payload, first.attributes) == (CANARY.encode(), {"who": CANARY})
        await queue.ack(first, result={"told": CANARY})
        await queue.nack(second, error=f"it broke: {CANARY}")
        await hub.close()
    async with brigade.connect_async(url, encryption=keys) as hub:
        assert CANARY.encode() not in everything()
        history = {row["outcome"]: row for row in await table(hub, "history")}
        assert CANARY in history["processed"]["result"]
        assert history["processed"]["attributes"] == {"who": CANARY}
        assert history["failed"]["attempts"][-1].error == f"it broke: {CANARY}"
        (failed,) = await table(hub, "failed")
        assert (failed["payload"], failed["failure"].error) == (b"fails", f"it broke: {CANARY}")
    async with brigade.connect_async(url) as hub:
        with pytest.raises(CannotDecrypt):
            await table(hub, "history")
