"""What a claim costs doesn't grow with what has been worked off, and history goes by days."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

import brigade
from brigade import QueuePolicy
from brigade.stores.postgres.store import PostgresStore
from brigade.testing.conformance.harness import claim_all, claim_one, drain, values
from postgres_server import database, postgres

__all__ = ["database", "postgres"]
TOTAL, STEP, BATCH = 200_000, 50_000, 1000


async def cost(store: PostgresStore, queue: str) -> int:
    """The buffers that the store's next claim would touch, in whatever way; it is undone."""
    held = store._queues[queue]
    params: dict[str, Any] = {
        "queue": held.id,
        "limit": 100,
        "low": held.low,
        "token": "0" * 32,
        "owner": "explain",
        "lease": 30_000,
    }
    conn = await store.link.connect()
    async with conn, conn.transaction(force_rollback=True):
        text: Any = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + store.link.queries.text("claim_ready")
        row = await (await conn.execute(text, params)).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    assert plan["Actual Rows"] == 100
    return sum(plan[f"Shared {what} Blocks"] for what in ("Hit", "Read"))


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_the_cost_of_a_claim_does_not_grow_with_what_has_ended(database: str) -> None:
    """200,000 messages go through one queue while nobody vacuums: each claim touches as many buffers as the first."""
    async with brigade.connect_async(database) as hub:
        store = hub.store
        assert isinstance(store, PostgresStore)
        with psycopg.connect(database) as conn:
            conn.execute("ALTER TABLE brigade.messages SET (autovacuum_enabled = false)")
        queue = await hub.queue("tasks")
        costs: list[int] = []
        done = 0
        while done < TOTAL:
            await queue.enqueue_many([b"x" * 200] * BATCH * 2)
            messages = await queue.claim(BATCH)
            if done % STEP == 0:
                costs.append(await cost(store, "tasks"))
            await queue.ack_many(messages)
            await queue.ack_many(await queue.claim(BATCH))
            done += 2 * BATCH
        await queue.enqueue_many([b"x" * 200] * BATCH)
        await queue.ack_many(await queue.claim(BATCH // 2))
        costs.append(await cost(store, "tasks"))
        stats = await queue.stats()
        assert (stats.succeeded, stats.ready) == (TOTAL + BATCH // 2, BATCH // 2)
    assert max(costs) <= 1.25 * costs[0] + 100, costs


async def test_the_plans_go_by_an_index_in_an_empty_database(database: str) -> None:
    """A plan that is made while there is nothing must be good when there is much."""
    async with brigade.connect_async(database) as hub:
        queue = await hub.queue("tasks")
        store = hub.store
        assert isinstance(store, PostgresStore)
        for _ in range(3):
            assert await queue.claim() == []
        conn = await store.link.connect()
        async with conn:
            text: Any = "EXPLAIN " + store.link.queries.text("claim_ready")
            params = {"queue": 1, "limit": 1, "low": [0] * 10, "token": "0" * 32, "owner": "x", "lease": 1}
            rows = await (await conn.execute(text, params)).fetchall()
        plan = "\n".join(row[0] for row in rows)
        assert "messages_ready" in plan
        assert "Seq Scan on messages" not in plan


async def test_history_is_dropped_by_days_and_forgotten_by_the_counts(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with brigade.connect_async(database) as hub:
        kept = await hub.queue("kept", QueuePolicy(retention=10 * 86400))
        short = await hub.queue("short", QueuePolicy(retention=0))
        await kept.enqueue("today", id="today")
        await short.enqueue("today")
        await drain(kept, 1)
        await drain(short, 1)
        store = hub.store
        assert isinstance(store, PostgresStore)
        today = store.clock.now() // 86_400_000
        with psycopg.connect(database, autocommit=True) as conn:
            for age in (3, 40):
                day = today - age
                conn.execute(
                    f"CREATE TABLE brigade.history_{day} PARTITION OF brigade.history "
                    f"FOR VALUES FROM ({day * 86_400_000}) TO ({(day + 1) * 86_400_000})"
                )
                for queue_id in (1, 2):
                    conn.execute(
                        """
                        INSERT INTO brigade.history (id, finished_at, enqueued_at, due_at, batch, size, queue_id,
                            attempts, max_attempts, version, priority, outcome, content_type)
                        VALUES (%s, %s, 0, 0, 0, 0, %s, 1, 1, 1, 5, 'processed', 'text/plain')
                        """,
                        [1000 + 10 * age + queue_id, day * 86_400_000, queue_id],
                    )
                    conn.execute("INSERT INTO brigade.counts VALUES (%s, %s, 0, 1, 0)", [queue_id, day])
        assert (await kept.stats()).succeeded == 3
        assert (await kept.sweep())["expired"] == 1
        assert (await short.sweep())["expired"] == 1
        assert (await kept.stats()).succeeded == 2
        assert (await short.stats()).succeeded == 1
        assert (await kept.get(f"1-{1000 + 30 + 1}")).outcome == "processed"
        assert (await kept.enqueue("again", id="today")).duplicate
        with psycopg.connect(database) as conn:
            rows = conn.execute("SELECT tablename FROM pg_tables WHERE tablename ~ '^history_[0-9]'").fetchall()
        days = {int(row[0].removeprefix("history_")) for row in rows}
        assert today - 40 not in days
        assert set(range(today, today + 8)) <= days


async def test_a_sweep_removes_what_belongs_to_no_message(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from brigade.stores.postgres import sweep

    monkeypatch.setattr(sweep, "LEFTOVER_AGE", -1000)
    async with brigade.connect_async(database) as hub:
        queue = await hub.queue("tasks")
        await queue.enqueue_many([b"x" * 300_000, "kept", "ended"])
        large, kept, ended = await claim_all(queue, 3)
        for message in (large, kept, ended):
            await queue.state(message).save(message.size)
        await queue.ack(ended)
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute("INSERT INTO brigade.blobs (made_at) VALUES (0)")
        assert (await queue.sweep())["orphans"] == 2
        assert (await queue.sweep())["orphans"] == 0
        assert await queue.state(kept).load() == kept.size
        await queue.release(large)
        again = await claim_one(queue)
        assert len(await again.open().read()) == 300_000
        await queue.ack(again)
        with psycopg.connect(database) as conn:
            assert conn.execute("SELECT count(*) FROM brigade.chunks").fetchone() == (0,)


async def test_the_database_refuses_what_the_state_machine_forbids(database: str) -> None:
    async with brigade.connect_async(database) as hub:
        queue = await hub.queue("tasks")
        await queue.enqueue_many(range(2))
        await claim_one(queue)
    wrong = [
        "UPDATE brigade.messages SET state = 'lost'",
        "UPDATE brigade.messages SET state = 'in_flight' WHERE state = 'ready'",
        "UPDATE brigade.messages SET state = 'ready' WHERE state = 'in_flight'",
        "UPDATE brigade.messages SET token = NULL WHERE state = 'in_flight'",
        "UPDATE brigade.messages SET attempts = 5",
        "UPDATE brigade.messages SET attempts = -1",
        "UPDATE brigade.messages SET priority = 10",
        "UPDATE brigade.messages SET payload = NULL",
        "UPDATE brigade.queues SET dead_letter_queue = name",
    ]
    with psycopg.connect(database, autocommit=True) as conn:
        for statement in wrong:
            with pytest.raises(psycopg.errors.CheckViolation):
                conn.execute(statement)  # pyright: ignore[reportArgumentType]


async def test_waiting_claims_are_woken_by_a_notification_alone(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no poll for an hour. Whenever the message comes, it is heard of."""
    import asyncio

    from brigade.stores.postgres import claiming

    async with brigade.connect_async(database) as consumer, brigade.connect_async(database) as producer:
        queue, sending = await consumer.queue("tasks"), await producer.queue("tasks")
        store = consumer.store
        assert isinstance(store, PostgresStore)
        # Before others were asked to notify it is the first polls that find what is being committed just then.
        while not (store.link.requests["listen"] and store._queues["tasks"].expects_until):
            await queue.claim(wait=0.1)
        monkeypatch.setattr(claiming, "FIRST_POLL", 3600.0)
        monkeypatch.setattr(claiming, "SAFETY_POLL", 3600.0)
        for turn in range(20):
            waiting = asyncio.ensure_future(queue.claim(wait=60))
            for _ in range(turn % 5):
                await asyncio.sleep(0.001 * turn)
            await sending.enqueue(turn, group="g" if turn % 3 == 2 else None, delay=0.05 if turn % 4 == 3 else 0)
            (message,) = await asyncio.wait_for(waiting, 20)
            assert values([message]) == [turn]
            await queue.ack(message)


async def test_an_idle_worker_asks_little(database: str) -> None:
    """At most 12 requests a minute once it has been idle for a minute: its polls are half a minute apart."""
    from brigade.stores.postgres.claiming import EXPECT, SAFETY_POLL

    async with brigade.connect_async(database) as hub:
        queue = await hub.queue("tasks")
        await queue.claim(wait=0.5)
        before = sum(hub.requests().values())
        await queue.claim()
        looks = sum(hub.requests().values()) - before - 1
    assert looks * 60 / (SAFETY_POLL * 0.8) + 2 * 60 / EXPECT <= 12
