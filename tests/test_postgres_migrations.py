"""The schema: installed on first use, upgraded with what is in it, by one process at a time, or not at all."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

import brigade
from brigade import ConfigError, PermissionDenied, StoreUnavailable
from brigade.stores.opening import open_store
from brigade.stores.postgres.migrate import migrate, migrations, standing
from brigade.stores.postgres.store import PostgresStore
from brigade.testing.conformance.harness import claim_all, claim_one, values
from brigade.testing.servers.postgres import PostgresServer
from postgres_server import database, postgres

__all__ = ["database", "postgres"]
NEWEST = migrations()[-1].version


async def connection(url: str) -> tuple[PostgresStore, psycopg.AsyncConnection[Any]]:
    store = open_store(url, {})
    assert isinstance(store, PostgresStore)
    return store, await store.link.connect()


def tables(url: str, schema: str) -> set[str]:
    with psycopg.connect(url) as conn:
        rows = conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", [schema]).fetchall()
    return {row[0] for row in rows}


async def test_the_schema_is_installed_on_first_use(database: str) -> None:
    async with brigade.connect_async(f"{database}?schema=mine") as hub:
        await (await hub.queue("tasks")).enqueue("x")
    assert {"queues", "messages", "history", "lanes", "migrations"} <= tables(database, "mine")
    assert tables(database, "brigade") == set()


async def test_schemas_are_stores_of_their_own(database: str) -> None:
    async with (
        brigade.connect_async(f"{database}?schema=one") as one,
        brigade.connect_async(database, schema="two") as two,
    ):
        await (await one.queue("tasks")).enqueue("x")
        assert await two.queues() == []
        assert (await (await two.queue("tasks")).stats()).total == 0


async def test_nothing_is_installed_where_that_is_not_wanted(database: str) -> None:
    with pytest.raises(ConfigError, match="brigade migrate up"):
        await brigade.connect_async(f"{database}?install=false").open()
    assert tables(database, "brigade") == set()
    async with brigade.connect_async(database):
        pass
    async with brigade.connect_async(database, install=False) as hub:
        await (await hub.queue("tasks")).enqueue("x")


async def test_an_older_schema_is_upgraded_with_the_messages_in_it(database: str) -> None:
    """Version 1 knew no lanes, no payloads apart and no workflow states."""
    store, conn = await connection(database)
    assert [step.version for step in await migrate(conn, store.schema, to=1)] == [1]
    await conn.execute(
        """
        INSERT INTO brigade.queues (name, policy, max_attempts, retention_ms, strict, lifo)
        VALUES ('tasks', '{}', 4, 604800000, false, false)
        """
    )
    await conn.execute(
        """
        INSERT INTO brigade.messages (due_at, enqueued_at, batch, size, queue_id, priority, content_type, payload)
        SELECT brigade.now_ms(), brigade.now_ms(), 1, 1, 1, 5, 'text/plain', convert_to(n::text, 'UTF8')
        FROM generate_series(1, 5) n
        """
    )
    await conn.execute(
        """
        UPDATE brigade.messages SET state = 'in_flight', token = gen_random_uuid(), owner = 'old', claimed_at = 0,
            expires_at = brigade.now_ms(), attempts = 1, version = 1
        WHERE id = 1
        """
    )
    await conn.close()
    with pytest.raises(ConfigError, match="version 1"):
        await brigade.connect_async(f"{database}?install=false").open()
    async with brigade.connect_async(database) as hub:
        queue = await hub.queue("tasks")
        messages = await claim_all(queue, 5)
        assert sorted(values(messages)) == ["1", "2", "3", "4", "5"]
        assert {message.data: message.attempt for message in messages}["1"] == 2
        await queue.state(messages[0]).save({"step": 1})
        await queue.ack_many(messages)
        await queue.enqueue(b"x" * 300_000, group="g")
        assert (await claim_one(queue)).size == 300_000
        assert (await queue.stats()).succeeded == 5
    _, conn = await connection(database)
    assert (await standing(conn, "brigade")).version == NEWEST
    await conn.close()


async def test_a_schema_of_a_newer_program_is_left_alone(database: str) -> None:
    async with brigade.connect_async(database):
        pass
    with psycopg.connect(database) as conn:
        conn.execute("INSERT INTO brigade.migrations (version, name) VALUES (999, 'later')")
    with pytest.raises(ConfigError, match="upgrade bucket-brigade"):
        await brigade.connect_async(database).open()


async def test_many_that_install_at_once_agree(database: str) -> None:
    hubs = [brigade.connect_async(database) for _ in range(8)]
    await asyncio.gather(*(hub.open() for hub in hubs))
    queues = await asyncio.gather(*(hub.queue("tasks") for hub in hubs))
    await asyncio.gather(*(queue.enqueue(n) for n, queue in enumerate(queues)))
    assert (await (await hubs[0].queue("tasks")).stats()).ready == 8
    for hub in hubs:
        await hub.close()
    with psycopg.connect(database) as conn:
        rows = conn.execute("SELECT version FROM brigade.migrations ORDER BY version").fetchall()
    assert [row[0] for row in rows] == [step.version for step in migrations()]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "brigade"), "migrate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_two_processes_that_migrate_at_once_agree(database: str) -> None:
    command = [str(Path(sys.executable).parent / "brigade"), "migrate", "up", "--url", database]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    applied = [out.count("applied") for out, _ in said]
    assert sorted(applied) == [0, len(migrations())], said


def test_the_command_shows_plans_and_applies(database: str) -> None:
    assert "not installed" in run("status", "--url", database).stdout
    dry = run("up", "--dry-run", "--url", database)
    assert dry.returncode == 0
    assert 'CREATE TABLE "brigade".messages' in dry.stdout
    assert tables(database, "brigade") == set()
    done = run("up", "--url", database)
    assert done.stdout.splitlines() == [f"applied {step.version:03d} {step.name}" for step in migrations()]
    assert "up to date" in run("up", "--url", database).stdout
    assert f"version {NEWEST} of {NEWEST}" in run("status", "--url", database).stdout
    assert '"pending": []' in run("status", "--json", "--url", database).stdout
    refused = run("status", "--url", "file://./jobs")
    assert (refused.returncode, "postgresql://" in refused.stderr) == (2, True)


async def test_what_keeps_a_store_from_being_used_is_said_without_the_password(
    postgres: PostgresServer, database: str
) -> None:
    secret = "s3cret%40word"
    cases: list[tuple[str, type[Exception], str]] = [
        (f"postgresql://brigade:{secret}@127.0.0.1:{postgres.port}/postgres", PermissionDenied, "password"),
        (f"postgresql://brigade:{secret}@127.0.0.1:1/postgres", StoreUnavailable, "reached"),
        (f"{postgres.url('nowhere')}", ConfigError, "nowhere"),
        (f"postgresql://brigade:{secret}@127.0.0.1:port/x", ConfigError, "port"),
        (f"{database}?sslmode=perhaps", ConfigError, "sslmode"),
        (f"{database}?colour=red", ConfigError, "colour"),
        (f"{database}?schema=No-Good", ConfigError, "schema"),
        (f"{database}?pool_size=0", ConfigError, "pool_size"),
        (f"postgresql:/brigade:{secret}@host/x", ConfigError, "URL"),
    ]
    for url, kind, told in cases:
        with pytest.raises(kind, match=told) as caught:
            await brigade.connect_async(url).open()
        for hidden in (secret, "s3cret@word", postgres.password):
            assert hidden not in str(caught.value)


async def test_a_user_without_rights_is_told_so(postgres: PostgresServer, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("DROP ROLE IF EXISTS guest")
        conn.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    guest = database.replace(f"brigade:{postgres.password}", "guest:guest")
    with pytest.raises(PermissionDenied, match="brigade migrate up"):
        await brigade.connect_async(guest).open()
    async with brigade.connect_async(database) as hub:
        await (await hub.queue("tasks")).enqueue("x")
    with pytest.raises((PermissionDenied, ConfigError)):
        await brigade.connect_async(guest).open()
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("GRANT USAGE ON SCHEMA brigade TO guest")
        conn.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA brigade TO guest")
        conn.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA brigade TO guest")
    async with brigade.connect_async(guest, install=False) as hub:
        queue = await hub.queue("tasks")
        await queue.ack(await claim_one(queue))
        await queue.sweep()
        assert (await queue.stats()).succeeded == 1
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("DROP OWNED BY guest")
        conn.execute("DROP ROLE guest")


async def test_the_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"bucket-brigade\[postgres\]"):
        await brigade.connect_async("postgresql://localhost/x").open()
