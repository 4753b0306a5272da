"""Real processes on one directory or bucket: some die by SIGKILL, nothing is lost, nothing comes back after its ack."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade import Backoff, Failure, QueuePolicy, State
from brigade.blobs import Get, List
from brigade.blobs.cloud_connect import connect_bucket
from brigade.blobs.sqlite import SqliteBlobs
from brigade.stores.bucket import sweep as sweep_module
from brigade.stores.opening import parse_url
from brigade.testing.conformance.harness import claim_one, eventually, values
from brigade.testing.servers.fixtures import seaweedfs_server
from brigade.testing.servers.s3 import s3_url
from leftovers import whole_lines

__all__ = ["seaweedfs_server"]

POLICY = QueuePolicy(backoff=Backoff(base=0, maximum=0, jitter=None), failure=Failure("retry", 1000))
"""However slow the machine, and however often a lease runs out meanwhile, nothing fails for good."""

PRODUCER = """
import asyncio, sys, brigade

async def main(url, name, count):
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        for n in range(0, count, 4):
            batch = [f"{name}-{n + k}" for k in range(4)]
            if n % 8:
                receipts = await queue.enqueue_many(batch)
            else:
                receipts = await asyncio.gather(*(queue.enqueue(item) for item in batch))
            for receipt, item in zip(receipts, batch):
                print(receipt.id, item, flush=True)
    print("done", name, flush=True)

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
            [sys.executable, "-c", script, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(whole_lines(self.process.stdout))

    def end(self, how: signal.Signals | None = None) -> str:
        """Wait for the end, after sending a signal if one is given; returns what it wrote to stderr."""
        if how is not None:
            self.process.send_signal(how)
        self._reader.join(timeout=60)
        if hangs := self._reader.is_alive():
            self.process.kill()
        assert self.process.stderr is not None
        said = self.process.stderr.read()
        self.process.wait(timeout=60)
        self.process.stderr.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert not hangs, f"it didn't end within a minute; its last lines are {self.lines[-3:]}"
        return said

    def wait_for(self, count: int) -> None:
        end = time.monotonic() + 60
        while len(self.lines) < count:
            assert self.process.poll() is None or len(self.lines) >= count, f"it ended early: {self.end()}"
            assert time.monotonic() < end, f"{len(self.lines)} of {count} lines came"
            time.sleep(0.005)


@pytest.fixture
def running() -> Iterator[list[Running]]:
    """Processes of a test; none outlives it."""
    processes: list[Running] = []
    yield processes
    for one in processes:
        if one.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                one.process.kill()
            one.end()


def history(root: Path) -> dict[str, dict[str, Any]]:
    """The records of finished messages, as any tool would read them; one for each id."""
    found: dict[str, dict[str, Any]] = {}
    for path in root.rglob("*.jsonl.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                assert found.setdefault(record["ref"], record)["outcome"] == record["outcome"]
    return {record["id"]: record for record in found.values()}


def kill_some(
    url: str, running: list[Running], monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, str], list[Running]]:
    """Eight producers and eight consumers work everything off; two and four of them are killed, and replaced.

    Returns what producers were told is durable, and the consumers with what they said.
    """
    with brigade.connect(url) as hub:
        hub.queue("tasks", POLICY)
    producers = [Running(PRODUCER, url, f"p{n}", 80) for n in range(8)]
    consumers = [Running(CONSUMER, url, f"c{n}") for n in range(8)]
    running += [*producers, *consumers]
    for number in (0, 1):
        producers[number].wait_for(20)
        producers[number].end(signal.SIGKILL)
        producers.append(Running(PRODUCER, url, f"again{number}", 80))
        running.append(producers[-1])
    for number in range(4):
        consumers[number].wait_for(10)
        consumers[number].end(signal.SIGKILL)
        consumers.append(Running(CONSUMER, url, f"again{number}"))
        running.append(consumers[-1])
    for producer in producers[2:]:
        assert producer.end() == ""
    durable = {line.split()[0]: line.split()[1] for p in producers for line in p.lines if not line.startswith("done")}
    assert len(durable) >= 8 * 80

    with brigade.connect(url) as hub:
        queue = hub.queue("tasks")
        end = time.monotonic() + 120
        while (stats := queue.stats()).ready + stats.in_flight + stats.delayed:
            assert time.monotonic() < end, stats
            time.sleep(0.05)
        assert stats.failed == 0
        for consumer in consumers[4:]:
            consumer.end(signal.SIGKILL)
        monkeypatch.setattr(sweep_module, "FINAL_GRACE", 0)
        queue.sweep()
        assert queue.claim() == []
        assert queue.stats().succeeded >= len(durable)
    return durable, consumers


def judge(durable: dict[str, str], consumers: list[Running], records: dict[str, dict[str, Any]]) -> None:
    """Nothing is lost, nothing is acked twice, nothing is delivered after its ack, no lease is won twice."""
    assert set(durable) <= set(records)
    assert {record["outcome"] for record in records.values()} == {"processed"}
    acked_by = {id: record["attempts"][-1]["version"] for id, record in records.items()}
    for id, record in records.items():
        hows = [attempt["how"] for attempt in record["attempts"]]
        assert hows.count("acked") == 1, (id, hows)
        assert hows[-1] == "acked"
    claims: Counter[tuple[str, int]] = Counter()
    for consumer in consumers:
        for line in consumer.lines:
            how, id, version = line.split()
            if how == "claimed":
                claims[id, int(version)] += 1
                assert int(version) <= acked_by[id], f"{id} was delivered after its ack"
            elif how == "acked":
                assert int(version) == acked_by[id], f"{id} was acked twice"
    assert set(claims.values()) == {1}, "two claims won the same lease"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_eight_producers_and_eight_consumers_lose_nothing_when_some_are_killed(
    tmp_path: Path, running: list[Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[G1] [G2] [G3] Four consumers and two producers are killed with SIGKILL in the middle, and replaced."""
    durable, consumers = kill_some(f"file://{tmp_path}/jobs?fsync=off", running, monkeypatch)
    judge(durable, consumers, history(tmp_path / "jobs"))
    left = [path for path in (tmp_path / "jobs" / "q" / "tasks").rglob("*") if path.is_file()]
    assert {path.relative_to(tmp_path / "jobs" / "q" / "tasks").parts[0] for path in left} <= {"policy.json", "hist"}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_same_holds_on_s3(
    seaweedfs_server: str, tmp_path: Path, running: list[Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[G1] [G2] [G3] One bucket, eight producers and eight consumers, six of them killed."""
    prefix = f"processes/{uuid.uuid4().hex}"
    durable, consumers = kill_some(s3_url(seaweedfs_server, prefix), running, monkeypatch)
    bucket = connect_bucket(*parse_url(s3_url(seaweedfs_server, prefix), {})).once
    keys = [meta["path"] for chunk in bucket.list(prefix) for meta in chunk]
    for key in keys:
        if key.endswith(".gz"):
            (tmp_path / key.rpartition("/")[2]).write_bytes(bytes(bucket.get(key).bytes()))
    judge(durable, consumers, history(tmp_path))
    assert {key.removeprefix(f"{prefix}/q/tasks/").partition("/")[0] for key in keys} <= {"policy.json", "hist"}


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_the_same_holds_on_sqlite(
    tmp_path: Path, running: list[Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[G1] [G2] [G3] One database, eight producers and eight consumers, six of them killed."""
    url = f"sqlite://{tmp_path}/jobs.db?fsync=off"
    durable, consumers = await asyncio.to_thread(kill_some, url, running, monkeypatch)
    blobs = SqliteBlobs(str(tmp_path / "jobs.db"), watch=False)
    page: Any = await blobs.perform(List("q/tasks/"))
    assert not page.more
    for number, item in enumerate(page.items):
        if item.key.endswith(".gz"):
            found: Any = await blobs.perform(Get(item.key))
            (tmp_path / f"{number}.jsonl.gz").write_bytes(found.body)
    await blobs.close()
    judge(durable, consumers, history(tmp_path))
    assert {item.key.split("/")[2] for item in page.items} <= {"policy.json", "hist"}


WAITER = """
import asyncio, sys, brigade
from brigade.blobs.disk import DiskBlobs
from brigade.blobs.sqlite import SqliteBlobs
from brigade.stores.bucket import store

DiskBlobs.poll_interval = SqliteBlobs.poll_interval = store.SAFETY_POLL = 3600.0

async def main(url):
    async with brigade.connect_async(url, fsync=False) as hub:
        queue = await hub.queue("tasks")
        for _ in range(8):
            print("waiting", flush=True)
            for message in await queue.claim(wait=600):
                await queue.ack(message)
                print(message.data, flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_waiting_claim_is_woken_by_another_process(tmp_path: Path, running: list[Running], kind: str) -> None:
    """By the watcher alone: there is no poll for an hour. Whenever the message comes, none is missed."""
    url = f"{kind}://{tmp_path}/jobs"
    waiter = Running(WAITER, url)
    running.append(waiter)
    with brigade.connect(url, fsync=False) as hub:
        queue = hub.queue("tasks")
        for turn in range(8):
            waiter.wait_for(2 * turn + 1)
            queue.enqueue(f"news {turn}", group="g" if turn % 3 == 2 else None)
            waiter.wait_for(2 * turn + 2)
        assert waiter.end() == ""
    assert waiter.lines == [line for turn in range(8) for line in ("waiting", f"news {turn}")]


async def test_a_first_wait_misses_nothing_that_arrives_just_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look that found nothing and the watcher that is in place, messages arrive, too."""
    from brigade.blobs.disk import DiskBlobs
    from brigade.stores.bucket import store

    monkeypatch.setattr(DiskBlobs, "poll_interval", 3600.0)
    monkeypatch.setattr(store, "SAFETY_POLL", 3600.0)
    monkeypatch.setattr(store, "FIRST_POLL", 3600.0)
    async with brigade.connect_async(f"file://{tmp_path}/jobs", fsync=False) as producer:
        sending = await producer.queue("tasks")
        for turn in range(12):
            async with brigade.connect_async(f"file://{tmp_path}/jobs", fsync=False) as consumer:
                queue = await consumer.queue("tasks")
                waiting = asyncio.ensure_future(queue.claim(wait=600))
                for _ in range(turn):
                    await asyncio.sleep(0.0005 * turn)
                await sending.enqueue(turn)
                (message,) = await asyncio.wait_for(waiting, 20)
                assert message.data == turn
                await queue.ack(message)


async def test_a_claim_cancelled_while_its_hub_closes_gives_its_leases_back(tmp_path: Path) -> None:
    """[G1] Nobody has to wait for the lease to run out."""
    url = f"file://{tmp_path}/jobs"
    async with brigade.connect_async(url, fsync=False) as other:
        receipts = await (await other.queue("tasks")).enqueue_many(range(3))
        watching = await other.queue("tasks")
        for turn in range(6):
            async with brigade.connect_async(url, fsync=False) as hub:
                queue = await hub.queue("tasks")
                claiming = asyncio.ensure_future(queue.claim(3, visibility=3600))
                for _ in range(turn):
                    await asyncio.sleep(0.0005)
                claiming.cancel()
                done = await asyncio.gather(claiming, return_exceptions=True)
                if isinstance(done[0], list):
                    for message in done[0]:
                        await queue.release(message)
            states = [(await watching.get(receipt.id)).state for receipt in receipts]
            assert states == [State.READY] * 3
        assert [(await claim_one(watching)).attempt for _ in range(3)] == [1, 1, 1]


SYNC_WAITER = """
import sys, brigade
with brigade.connect(sys.argv[1], fsync=False) as hub:
    queue = hub.queue("tasks")
    print("waiting", flush=True)
    try:
        queue.claim(wait=600, visibility=3600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


async def test_a_sync_claim_ends_at_ctrl_c_and_holds_nothing(tmp_path: Path, running: list[Running]) -> None:
    url = f"file://{tmp_path}/jobs"
    waiter = Running(SYNC_WAITER, url)
    running.append(waiter)
    await asyncio.to_thread(waiter.wait_for, 1)
    assert await asyncio.to_thread(waiter.end, signal.SIGINT) == ""
    assert waiter.lines == ["waiting", "interrupted"]
    async with brigade.connect_async(url, fsync=False) as hub:
        queue = await hub.queue("tasks")
        await queue.enqueue("x")
        assert values([await claim_one(queue)]) == ["x"]


ELSEWHERE = """
import signal, sys, threading, time, brigade

def interrupt():
    time.sleep(1)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

with brigade.connect(sys.argv[1], fsync=False) as hub:
    queue = hub.queue("tasks")
    threading.Thread(target=interrupt).start()
    try:
        queue.claim(wait=600, visibility=3600)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_a_signal_that_another_thread_gets_interrupts_a_sync_claim(tmp_path: Path, running: list[Running]) -> None:
    """It wakes no lock that the main thread waits for; nor does one that comes a moment before the wait."""
    waiter = Running(ELSEWHERE, f"file://{tmp_path}/jobs")
    running.append(waiter)
    assert waiter.end() == ""
    assert waiter.lines == ["interrupted"]


SENDER = """
import sys, brigade
hub = brigade.connect(sys.argv[1])
queue = hub.queue("tasks")
n = 0
while True:
    print(queue.enqueue(f"message {n}").id, flush=True)
    n += 1
"""


def test_what_a_killed_producer_was_told_is_durable_is_there(tmp_path: Path, running: list[Running]) -> None:
    """[G1] With fsync, as by default; the last one may be there without its producer having been told."""
    url = f"file://{tmp_path}/jobs"
    sender = Running(SENDER, url)
    running.append(sender)
    sender.wait_for(25)
    sender.end(signal.SIGKILL)
    with brigade.connect(url) as hub:
        queue = hub.queue("tasks")
        found = queue.claim(10_000)
        assert [message.data for message in found] == [f"message {n}" for n in range(len(found))]
        assert {message.id for message in found} >= set(sender.lines)
        assert len(sender.lines) <= len(found) <= len(sender.lines) + 1


async def test_a_memory_store_is_shared_inside_the_process_by_name() -> None:
    """[seed 002: Memory store is ephemeral] And by every thread of it."""
    name = f"memory://shared-{time.monotonic_ns()}"
    async with brigade.connect_async(name) as first, brigade.connect_async(name) as second:
        await (await first.queue("tasks")).enqueue("x")
        queue = await second.queue("tasks")

        async def arrived() -> bool:
            return (await queue.stats()).ready == 1

        await eventually(arrived)

        def in_a_thread() -> list[Any]:
            with brigade.connect(name) as hub:
                return values(hub.queue("tasks").claim())

        assert await asyncio.to_thread(in_a_thread) == ["x"]
