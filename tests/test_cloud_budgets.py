"""The budgets of the design on S3, counted by a proxy before SeaweedFS: nobody's word is taken for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import brigade
from brigade.blobs import Get, List, cloud
from brigade.blobs.cloud import CloudBlobs
from brigade.blobs.cloud_connect import connect_bucket
from brigade.stores import Outgoing, Staged, StagingStore
from brigade.stores.bucket import process, store
from brigade.stores.opening import parse_url
from brigade.testing.servers.fixtures import seaweedfs_server
from brigade.testing.servers.proxy import Proxy
from brigade.testing.servers.s3 import s3_url

__all__ = ["seaweedfs_server"]


@pytest.fixture
def proxy(seaweedfs_server: str) -> Iterator[Proxy]:
    with Proxy(seaweedfs_server) as made:
        yield made


@pytest.fixture
def url(proxy: Proxy) -> str:
    return s3_url(proxy.endpoint, f"budgets/{uuid.uuid4().hex}")


async def work_off(url: str, count: int, *, batch: int, limit: int) -> Counter[str]:
    """Everything from the first connection to the last history file; returns what the hubs say they asked for."""
    made: Counter[str] = Counter()
    async with brigade.connect_async(url) as producer:
        sending = await producer.queue("tasks")
        for start in range(0, count, batch):
            await sending.enqueue_many([f"{start + n:0200}" for n in range(batch)])
    async with brigade.connect_async(url) as consumer:
        receiving = await consumer.queue("tasks")
        done = 0
        while done < count:
            messages = await receiving.claim(limit, wait=10)
            assert not [answer for answer in await receiving.ack_many(messages) if isinstance(answer, Exception)]
            done += len(messages)
    made.update(producer.requests())
    made.update(consumer.requests())
    return made


@pytest.mark.parametrize(
    "count, batch, limit, most",
    [(3000, 100, 100, 0.06), (3000, 100, 1000, 0.06), (20_000, 1000, 1000, 0.01), (60, 1, 10, 6), (60, 1, 1, 6)],
    ids=["batches of 100", "batches of 100 claimed together", "batches of 1000", "singles", "singles one by one"],
)
async def test_requests_a_message(proxy: Proxy, url: str, count: int, batch: int, limit: int, most: float) -> None:
    with proxy.counting() as counted:
        said = await work_off(url, count, batch=batch, limit=limit)
    assert counted.total() / count <= most, counted
    assert said == counted, "what the hub tells is what goes over the wire"
    async with brigade.connect_async(url) as hub:
        stats = await (await hub.queue("tasks")).stats()
    assert (stats.succeeded, stats.ready, stats.in_flight) == (count, 0, 0)


async def test_deletes_go_out_in_bulk(proxy: Proxy, url: str) -> None:
    with proxy.counting() as counted:
        await work_off(url, 200, batch=1, limit=100)
    assert counted["delete"] <= 8


async def test_a_small_payload_stored_apart_is_one_request_and_a_large_one_goes_in_parts(
    proxy: Proxy, url: str
) -> None:
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        for size, requests in ((1024 * 1024, 2), (20 * 1024 * 1024, 6)):
            with proxy.counting() as counted:
                await queue.enqueue(b"x" * size)
            assert counted.total() == requests, counted
            assert sum(hub.requests().values()) == proxy.total


MINUTE = 60.0
FASTER = 60
"""How much faster than real time the idle test runs: every interval is shortened as much."""


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CloudBlobs, "poll_interval", CloudBlobs.poll_interval / FASTER)
    monkeypatch.setattr(cloud, "CLOCK_EVERY", cloud.CLOCK_EVERY / FASTER)
    for module, names in ((store, ("FIRST_POLL", "SAFETY_POLL")), (process, ("POLICY_TTL", "SWEEP_EVERY"))):
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name) / FASTER)


@pytest.mark.parametrize("lanes", [False, True], ids=["plain", "with groups"])
async def test_an_idle_worker_makes_at_most_twelve_requests_a_minute(
    proxy: Proxy, url: str, faster: None, lanes: bool
) -> None:
    """Polls, policy, sweeps and the clock together, over ten minutes after the first."""
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        if lanes:
            await queue.enqueue("x", group="g")
            for message in await queue.claim():
                await queue.ack(message)
        assert await queue.claim(wait=MINUTE / FASTER) == []
        with proxy.counting() as counted:
            assert await queue.claim(wait=10 * MINUTE / FASTER) == []
        assert counted.total() <= 10 * 12, counted


CONSUMER = """
import asyncio, sys, brigade

async def main(url):
    done = 0
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        print("ready", flush=True)
        sys.stdin.readline()
        while messages := await queue.claim(100, wait=3):
            await queue.ack_many(messages)
            done += len(messages)
    print(done, flush=True)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_eight_processes_at_most_double_the_requests_a_message(proxy: Proxy, url: str) -> None:
    """Real processes on a real server; `test_crowd.py` counts the same for other shapes of work, far and near."""
    count = 24_000
    with proxy.counting() as alone:
        await work_off(url, count, batch=100, limit=100)
    with proxy.counting() as together:
        await eight_processes(s3_url(proxy.endpoint, f"budgets/{uuid.uuid4().hex}"), count)
    assert together.total() <= 2 * alone.total(), (together, alone)


async def eight_processes(url: str, count: int) -> None:
    """Enqueue so many messages, and have them worked off by eight."""
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        for start in range(0, count, 100):
            await queue.enqueue_many([f"{start + n:0200}" for n in range(100)])
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", CONSUMER, url, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(8)
    ]
    for one in processes:
        assert one.stdout is not None
        await one.stdout.readline()
    for one in processes:
        assert one.stdin is not None
        one.stdin.write(b"go\n")
    said = [await one.communicate() for one in processes]
    assert sum(int(out) for out, _ in said) == count


async def test_a_bulk_job_and_its_work_cost_at_most_a_hundredth_of_a_request_each(proxy: Proxy, url: str) -> None:
    """Staged by two tasks, published by a third process, worked off by a fourth, to the last history file."""
    messages = [Outgoing(b"x" * 200, "text/plain") for _ in range(10_000)]
    parts: list[Staged] = []
    for _ in range(2):
        async with brigade.connect_async(url) as task:
            await task.queue("tasks")
            assert isinstance(task.store, StagingStore)
            parts.append(await task.store.stage("tasks", "job", messages))
    async with brigade.connect_async(url) as driver:
        assert isinstance(driver.store, StagingStore)
        assert await driver.store.publish("tasks", "job", parts) == 20_000
    bulk = proxy.total
    async with brigade.connect_async(url) as consumer:
        queue = await consumer.queue("tasks")
        done = 0
        while done < 20_000:
            claimed = await queue.claim(5000, wait=10)
            assert not [answer for answer in await queue.ack_many(claimed) if isinstance(answer, Exception)]
            done += len(claimed)
    assert bulk / 20_000 <= 0.005
    assert proxy.total / 20_000 <= 0.01


class Listed:
    """A client that notes which threads make its listings."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.by: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def list(self, *args: Any, **options: Any) -> Any:
        self.by.append(threading.current_thread().name)
        return self._inner.list(*args, **options)


async def test_listings_keep_to_few_threads_and_connections(seaweedfs_server: str) -> None:
    """A page's memory is kept for every thread and connection that has ever listed: in turn, that would be all."""
    bucket = connect_bucket(*parse_url(s3_url(seaweedfs_server, f"budgets/{uuid.uuid4().hex}"), {}))
    assert bucket.listing is not bucket.once, "clients share connections with nobody"
    bucket.listing = listed = Listed(bucket.listing)
    blobs = CloudBlobs(bucket)
    try:
        for _ in range(20):
            await asyncio.gather(*(blobs.perform(Get(f"q/{n}")) for n in range(16)))
            await blobs.perform(List("q/"))
        assert len(listed.by) == 20
        assert len(set(listed.by)) == 1, "one at a time"
        await asyncio.gather(*(blobs.perform(List(f"q/{n}/")) for n in range(64)))
        assert len(set(listed.by)) <= cloud.LISTINGS_AT_ONCE
    finally:
        await blobs.close()
