"""Transactional enqueue and ack: the job exists, or has ended, exactly if the caller's own transaction commits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import brigade
from brigade import AsyncQueue, ConfigError, NewMessage, Queue, QueuePolicy, StaleLease, State
from brigade.testing.conformance.harness import SHORT, Harness, at_once, claim_one, drain, passed, values
from brigade.testing.servers.postgres import PostgresServer
from postgres_server import postgres, postgres_url

__all__ = ["postgres", "postgres_url"]
LARGE = bytes(range(256)) * 2048


class Undone(Exception):
    """Rolls a transaction back."""


@pytest.fixture
async def harness(postgres_url: str) -> AsyncIterator[Harness]:
    async with Harness(postgres_url) as made:
        yield made


@pytest.fixture
async def conn(postgres: PostgresServer) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(postgres.url(), autocommit=True) as made:
        yield made


@pytest.fixture
def sync_conn(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url()) as made:
        yield made


async def test_a_job_is_there_when_its_transaction_commits_and_not_before(
    harness: Harness, conn: psycopg.AsyncConnection[Any]
) -> None:
    queue = await harness.queue()
    async with conn.transaction():
        receipt = await queue.enqueue({"order": 1}, connection=conn)
        assert await queue.claim() == []
        assert (await queue.stats()).total == 0
    message = await claim_one(queue)
    assert (message.id, message.data) == (receipt.id, {"order": 1})


async def test_a_job_is_never_there_when_its_transaction_rolls_back(
    harness: Harness, conn: psycopg.AsyncConnection[Any]
) -> None:
    queue = await harness.queue()
    with pytest.raises(Undone):  # noqa: PT012 - what is undone is more than one statement
        async with conn.transaction():
            await queue.enqueue("x", connection=conn)
            await queue.enqueue_many(range(100), connection=conn)
            await queue.enqueue_many([NewMessage(payload=LARGE, id="mine", group="g")], connection=conn)
            raise Undone
    assert (await queue.stats()).total == 0
    assert not (await queue.enqueue("y", id="mine")).duplicate
    assert values(await drain(queue, 1)) == ["y"]


@pytest.mark.parametrize("count", [1, 5, 100])
async def test_many_jobs_of_every_kind_join_one_transaction(
    harness: Harness, conn: psycopg.AsyncConnection[Any], count: int
) -> None:
    queue = await harness.queue()
    async with conn.transaction():
        await queue.enqueue_many(range(count), connection=conn)
        receipts = await queue.enqueue_many(
            [NewMessage(payload="own", id="mine"), NewMessage(payload="grouped", group="g"), LARGE], connection=conn
        )
        again = await queue.enqueue("own", id="mine", connection=conn)
    assert receipts[0].id == "mine"
    assert again.duplicate
    assert (await queue.stats()).ready == count + 3
    messages = [message for _ in range(3) for message in await queue.claim(count + 3)]
    assert len(messages) == count + 3
    large = next(message for message in messages if message.body is None)
    assert await large.open().read() == LARGE


async def test_work_and_ack_commit_together(harness: Harness, conn: psycopg.AsyncConnection[Any]) -> None:
    """Exactly once: the row that the handler writes is there if and only if the message has ended."""
    queue = await harness.queue(at_once())
    await conn.execute("CREATE TABLE IF NOT EXISTS done (id text PRIMARY KEY)")
    receipts = await queue.enqueue_many(range(6))
    while messages := await queue.claim(2):
        for message in messages:
            try:
                async with conn.transaction():
                    await conn.execute("INSERT INTO done VALUES (%s)", [message.id])
                    await queue.ack(message, result={"ok": True}, connection=conn)
                    if message.data % 2 and message.attempt == 1:
                        raise Undone
            except Undone:
                await queue.nack(message)
    rows = await (await conn.execute("SELECT id FROM done")).fetchall()
    assert {receipt.id for receipt in receipts} <= {row[0] for row in rows}
    infos = [await queue.get(receipt.id) for receipt in receipts]
    assert [info.state for info in infos] == [State.SUCCEEDED] * 6
    assert [info.attempts for info in infos] == [1, 2] * 3
    assert infos[0].result == {"ok": True}
    assert (await queue.stats()).succeeded == 6
    await queue.sweep()
    assert (await queue.stats()).succeeded == 6


async def test_an_ack_that_is_rolled_back_leaves_the_message_in_flight(
    harness: Harness, conn: psycopg.AsyncConnection[Any]
) -> None:
    queue = await harness.queue(QueuePolicy(ordering_guarantee=True))
    receipts = await queue.enqueue_many(range(2))
    message = await claim_one(queue)
    with pytest.raises(Undone):  # noqa: PT012 - what is undone is more than one statement
        async with conn.transaction():
            await queue.ack(message, connection=conn)
            raise Undone
    assert (await queue.get(receipts[0].id)).state is State.IN_FLIGHT
    assert await queue.claim() == []
    await queue.ack(message)
    assert values(await drain(queue, 1)) == [1]


async def test_a_message_that_is_being_acked_is_nobodys(harness: Harness, conn: psycopg.AsyncConnection[Any]) -> None:
    """Its lease may run out while the transaction goes on: nobody takes it over until that has ended."""
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue, visibility=SHORT)
    async with conn.transaction():
        await queue.ack(message, connection=conn)
        await passed(message)
        assert await (await harness.elsewhere(queue)).claim() == []
    assert await queue.claim() == []


async def test_a_stale_ack_rolls_the_work_back(harness: Harness, conn: psycopg.AsyncConnection[Any]) -> None:
    queue = await harness.queue()
    await conn.execute("CREATE TABLE IF NOT EXISTS stale_work (id text)")
    await queue.enqueue("x")
    old = await claim_one(queue, visibility=SHORT)
    new = await claim_one(await harness.elsewhere(queue), visibility=60)
    with pytest.raises(StaleLease):  # noqa: PT012 - the work is undone with the ack
        async with conn.transaction():
            await conn.execute("INSERT INTO stale_work VALUES (%s)", [old.id])
            await queue.ack(old, connection=conn)
    assert await (await conn.execute("SELECT 1 FROM stale_work WHERE id = %s", [old.id])).fetchone() is None
    await queue.ack(new)


async def test_a_waiting_claim_hears_of_the_commit(harness: Harness, conn: psycopg.AsyncConnection[Any]) -> None:
    import asyncio

    queue: AsyncQueue = await harness.queue()
    waiting = asyncio.ensure_future((await harness.elsewhere(queue)).claim(wait=15))
    async with conn.transaction():
        await queue.enqueue("news", connection=conn)
    assert values(await waiting) == ["news"]


def test_the_sync_queue_joins_a_sync_transaction(harness: Harness, sync_conn: psycopg.Connection[Any]) -> None:
    """Without autocommit, the transaction is the one that the connection opened by itself."""
    queue: Queue = harness.sync_hub().queue(harness.name())
    receipt = queue.enqueue("one", connection=sync_conn)
    queue.enqueue_many(range(50), connection=sync_conn)
    assert queue.stats().total == 0
    sync_conn.commit()
    assert queue.stats().ready == 51
    message = queue.claim(1)[0]
    assert message.id == receipt.id
    queue.ack(message, connection=sync_conn)
    sync_conn.rollback()
    assert queue.get(message.id).state is State.IN_FLIGHT
    queue.ack(message, connection=sync_conn)
    sync_conn.commit()
    assert queue.get(message.id).state is State.SUCCEEDED
    queue.enqueue("undone", connection=sync_conn)
    sync_conn.rollback()
    assert queue.stats().ready == 50


async def test_outside_a_transaction_an_autocommit_connection_commits_at_once(
    harness: Harness, conn: psycopg.AsyncConnection[Any]
) -> None:
    queue = await harness.queue()
    await queue.enqueue("x", id="mine", group="g", connection=conn)
    assert values(await drain(queue, 1)) == ["x"]


async def test_a_wrong_connection_is_refused(harness: Harness, conn: psycopg.AsyncConnection[Any]) -> None:
    queue = await harness.queue()
    with pytest.raises(ConfigError, match="psycopg"):
        await queue.enqueue("x", connection="postgresql://")
    sync_queue = harness.sync_hub().queue(queue.name)
    with pytest.raises(ConfigError, match="async"):
        sync_queue.enqueue("x", connection=conn)
    async with brigade.connect_async("memory://") as hub:
        other = await hub.queue("tasks")
        with pytest.raises(ConfigError, match="PostgreSQL"):
            await other.enqueue("x", connection=conn)
        await other.enqueue("x")
        with pytest.raises(ConfigError, match="PostgreSQL"):
            await other.ack(await claim_one(other), connection=conn)


CRASHER = """
import os, sys, brigade, psycopg
with brigade.connect(sys.argv[1]) as hub, psycopg.connect(sys.argv[2]) as conn:
    queue = hub.queue(sys.argv[3])
    (message,) = queue.claim()
    queue.enqueue("follow-up", connection=conn)
    queue.ack(message, connection=conn)
    if sys.argv[4] == "commit":
        conn.commit()
    os._exit(9)
"""


@pytest.mark.parametrize("how,left", [("commit", ["follow-up"]), ("crash", ["job"])])
async def test_a_process_that_dies_before_its_commit_has_done_nothing(
    harness: Harness, postgres: PostgresServer, tmp_path: Path, how: str, left: list[str]
) -> None:
    queue = await harness.queue(QueuePolicy(visibility_timeout=1))
    await queue.enqueue("job")
    command = [sys.executable, "-c", CRASHER, harness.url, postgres.url(), queue.name, how]
    assert subprocess.run(command, cwd=tmp_path, timeout=60).returncode == 9
    assert values(await drain(queue, 1)) == left
    assert await queue.claim() == []
