"""S3 behind a proxy that spoils requests, by a seed: the checker of the simulation judges what came of it.

The proxy sees every write that the store applied, in order, and the clients tell what they were told. Hubs, the
library and the server are the real ones.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade import AsyncHub, AsyncQueue, Backoff, Failure, Message, QueuePolicy, StoreUnavailable
from brigade.blobs import UNKNOWN, Create, Delete, DeleteIf, Get, List, Op, Swap
from brigade.blobs import cloud as cloud_module
from brigade.blobs.cloud import CloudBlobs
from brigade.blobs.cloud_connect import connect_bucket
from brigade.clock import SystemClock
from brigade.errors import BrigadeError
from brigade.stores.opening import parse_url
from brigade.testing.servers.fixtures import seaweedfs_server
from brigade.testing.servers.proxy import Fault, Proxy, Request, Weather, seeded
from brigade.testing.servers.s3 import BUCKET, s3_url
from brigade.testing.sim import check
from brigade.testing.sim import records as r
from brigade.testing.sim.witness import Witness

__all__ = ["seaweedfs_server"]

JOBS, LETTERS = "jobs", "jobs_dead"
LEASE = 1.0
STORM = Weather(refused=0.05, failed=0.04, lost_answer=0.05, late=0.02, cut=0.02, slow=0.05)


@pytest.fixture
def proxy(seaweedfs_server: str) -> Iterator[Proxy]:
    with Proxy(seaweedfs_server) as made:
        yield made


class Judge:
    """Gathers the history of a run: what the store applied, from the proxy, and what clients were told."""

    def __init__(self, prefix: str) -> None:
        self.history: list[r.Record] = []
        self._root = f"/{BUCKET}/{prefix}/"
        self._witness = Witness(self.history.append)

    def saw(self, request: Request) -> None:
        """Called by the proxy for each write that was applied."""
        if request.key == f"/{BUCKET}":
            for key in request.deleted():
                self._wrote(f"/{BUCKET}/{key}", None)
        elif request.kind in ("create", "swap"):
            self._wrote(request.key, request.body)
        elif request.kind == "deleteif":
            self._wrote(request.key, None)

    def _wrote(self, key: str, body: bytes | None) -> None:
        if key.startswith(self._root):
            self._witness.wrote(key.removeprefix(self._root), body, now())

    def left(self, queue: str) -> list[str]:
        return self._witness.present(queue)


def now() -> int:
    return time.time_ns() // 1_000_000


class Crew:
    """Producers and workers that write down what they were told."""

    def __init__(self, url: str, judge: Judge, seed: int) -> None:
        self._url = url
        self._tell = judge.history.append
        self._judge = judge
        self._rng = random.Random(seed)
        self._uids = itertools.count()
        self._calls = itertools.count()
        self._own_ids: dict[str, str] = {}
        self.stopping = False

    async def produce(self, hub: AsyncHub, calls: int) -> None:
        queue = await patiently(lambda: hub.queue(JOBS))
        for _ in range(calls):
            await self._call(queue)
            await asyncio.sleep(self._rng.uniform(0, 0.1))

    async def _call(self, queue: AsyncQueue) -> None:
        rng, call = self._rng, next(self._calls)
        manner = rng.random()
        count = rng.randint(2, 6) if manner < 0.5 else 1
        group = rng.choice("ab") if manner > 0.75 else None
        own_id = f"own-{rng.randrange(3)}" if 0.5 < manner < 0.65 else None
        uids = [f"u{next(self._uids)}" for _ in range(count)]
        if own_id is not None:
            uids = [self._own_ids.setdefault(own_id, uids[0])]
        for uid in uids:
            self._tell(
                r.Intent(at=now(), queue=JOBS, uid=uid, call=call, payload=uid.encode(), own_id=own_id, group=group)
            )
        try:
            if count > 1:
                receipts = [
                    *await asyncio.gather(
                        *(queue.enqueue(uid.encode(), correlation_id=uid, group=group) for uid in uids)
                    )
                ]
            else:
                receipts = [await queue.enqueue(uids[0].encode(), correlation_id=uids[0], group=group, id=own_id)]
        except StoreUnavailable:
            for uid in uids:
                self._tell(r.Unsure(at=now(), queue=JOBS, uid=uid))
            return
        for uid, receipt in zip(uids, receipts, strict=True):
            self._tell(r.Returned(at=now(), queue=JOBS, uid=uid, ref=receipt.ref, duplicate=receipt.duplicate))

    async def consume(self, hub: AsyncHub, name: str = JOBS) -> None:
        queue = await patiently(lambda: hub.queue(name))
        while not self.stopping:
            try:
                held = await self._claim(queue)
            except StoreUnavailable:
                continue
            for message in held:
                await self._settle(queue, message, self._rng.random())

    async def _claim(self, queue: AsyncQueue) -> list[Message]:
        since = len(self._judge.history)
        held = await queue.claim(self._rng.choice((1, 3, 10)), wait=0.3, visibility=LEASE)
        for message in held:
            self._tell(
                r.Delivered(
                    at=now(),
                    queue=queue.name,
                    ref=message.ref,
                    uid=message.correlation_id,
                    token=message.lease.token.rpartition(".")[0],
                    version=message.lease.version,
                    attempt=message.attempt,
                    max_attempts=message.max_attempts,
                    payload=message.payload,
                    own_id=message.id if message.id.startswith("own-") else None,
                    group=message.group,
                    priority=message.priority,
                    since=since,
                )
            )
        return held

    async def _settle(self, queue: AsyncQueue, message: Message, chance: float) -> None:
        if chance < 0.05:
            return
        if chance < 0.10:
            await asyncio.sleep(LEASE * 1.3)
        kind = "nack" if chance > 0.85 else "release" if chance > 0.80 else "extend" if chance > 0.75 else "ack"
        made: dict[str, Callable[[], Any]] = {
            "nack": lambda: brigade.Nack(message, error="no luck"),
            "release": lambda: brigade.Release(message),
            "extend": lambda: brigade.Extend(message, 2 * LEASE),
            "ack": lambda: brigade.Ack(message),
        }
        for one in ("extend", "ack") if kind == "extend" else (kind,):
            try:
                (answer,) = await queue.settle([made[one]()])
                told = "stale" if isinstance(answer, brigade.StaleLease) else "ok"
            except StoreUnavailable:
                told = "unknown"
            self._tell(
                r.Told(
                    at=now(),
                    queue=queue.name,
                    ref=message.ref,
                    token=message.lease.token.rpartition(".")[0],
                    kind=one,
                    answer=told,
                )
            )

    async def drain(self) -> r.Final:
        """With a store that works: ack everything, then let hours pass for the sweeper, and see what is left."""
        async with brigade.connect_async(self._url) as hub:
            queues = [await hub.queue(name) for name in (JOBS, LETTERS)]
            clock = hub.clock
            assert isinstance(clock, SystemClock)
            for turn in range(30):
                for queue in queues:
                    while held := await self._claim(queue):
                        for message in held:
                            await self._settle(queue, message, 0.5)
                    await queue.redrive()
                    clock.offset_ms = 2 * 3_600_000 if turn > 5 else 0
                    await queue.sweep()
                    clock.offset_ms = 0
                if not [ref for queue in queues for ref in self._judge.left(queue.name)]:
                    break
            stuck = [ref for queue in queues for ref in self._judge.left(queue.name)]
            for hours in (0, 2, 4, 24 * 8, 24 * 16):
                clock.offset_ms = hours * 3_600_000
                for queue in queues:
                    await queue.sweep()
        blobs = CloudBlobs(connect_bucket(*parse_url(self._url, {})))
        page: Any = await blobs.perform(List(""))
        await blobs.close()
        assert not page.more
        keys = [item.key for item in page.items if not item.key.endswith(("/policy.json", "/seg/!lanes"))]
        return r.Final(stuck, [key for key in keys if not key.startswith("probe/")])


async def patiently(call: Callable[[], Any]) -> Any:
    while True:
        try:
            return await call()
        except StoreUnavailable:
            continue


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_every_promise_holds_through_a_storm(proxy: Proxy, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """[G1] [G2] [G3] [G4] [G5] [G6] Answers are lost, late, cut, wrong or refused, one request in five."""
    prefix = f"storm/{uuid.uuid4().hex}"
    url = s3_url(proxy.endpoint, prefix) + "&timeout=5&retries=3"
    judge = Judge(prefix)
    proxy.tell = judge.saw
    monkeypatch.setattr(cloud_module.CloudBlobs, "patience", 0.2)
    policy = QueuePolicy(
        visibility_timeout=LEASE,
        failure=Failure("hybrid", max_retries=2, dead_letter_queue=LETTERS),
        backoff=Backoff(base=0.1, maximum=0.2),
    )
    async with brigade.connect_async(url) as hub:
        await hub.queue(JOBS, policy)
        await hub.queue(LETTERS, QueuePolicy(visibility_timeout=LEASE))
    crew = Crew(url, judge, seed)
    hubs = [await brigade.connect_async(url).open() for _ in range(4)]
    proxy.decide = seeded(seed, STORM)
    workers = [asyncio.ensure_future(crew.consume(hub, name)) for hub in hubs for name in (JOBS, JOBS, LETTERS)]
    await asyncio.gather(*(crew.produce(hub, 12) for hub in hubs))
    await asyncio.sleep(2 * LEASE)
    crew.stopping = True
    await asyncio.gather(*workers)
    proxy.decide = None
    for hub in hubs:
        await hub.close()
    assert proxy.faults.total() > 50
    final = await crew.drain()
    limits = r.Limits({JOBS: 3, LETTERS: QueuePolicy().failure.max_attempts}, skew_ms=100)
    assert check(judge.history, limits, final) == []
    assert sum(isinstance(record, r.Returned) for record in judge.history) > 30


@pytest.fixture
async def blobs(proxy: Proxy) -> AsyncIterator[CloudBlobs]:
    url = s3_url(proxy.endpoint, f"faults/{uuid.uuid4().hex}") + "&retries=2&timeout=3"
    made = CloudBlobs(connect_bucket(*parse_url(url, {})))
    yield made
    await made.close()


def once(*faults: Fault) -> Callable[[Request], Fault | None]:
    """These faults, one a request, and then none."""
    left = list(faults)
    return lambda request: left.pop(0) if left else None


def always(fault: Fault) -> Callable[[Request], Fault | None]:
    return lambda request: fault


REFUSED = [Fault(status=409), Fault(status=429), Fault(status=503)]
DOUBTFUL = [
    Fault(),
    Fault(status=500),
    Fault(status=500, applied=True),
    Fault(applied=True),
    Fault(late=0.2, applied=True),
]


def name_of(fault: Fault) -> str:
    return f"{fault.status or 'cut'}{' after' if fault.applied else ''}{' late' if fault.late else ''}"


@pytest.mark.parametrize("fault", REFUSED, ids=name_of)
async def test_a_write_that_was_not_applied_is_tried_again(proxy: Proxy, blobs: CloudBlobs, fault: Fault) -> None:
    proxy.decide = once(fault)
    with proxy.counting() as counted:
        etag: Any = await blobs.perform(Create("q/a", b"1"))
        assert isinstance(etag, str)
        proxy.decide = once(fault, fault)
        assert isinstance(await blobs.perform(Swap("q/a", b"2", etag)), str)
    assert counted == {"create": 2, "swap": 3}
    assert blobs.requests() == counted


@pytest.mark.parametrize("fault", DOUBTFUL, ids=name_of)
async def test_a_write_in_doubt_is_never_repeated_by_the_library(proxy: Proxy, blobs: CloudBlobs, fault: Fault) -> None:
    """A segment that was written, worked off and deleted meanwhile must not come back."""
    etag: Any = await blobs.perform(Create("q/b", b"1"))
    for op in (Create("q/a", b"1"), Swap("q/b", b"2", etag)):
        proxy.decide = once(fault)
        with proxy.counting() as counted:
            assert await blobs.perform(op) is UNKNOWN
        assert counted.total() == 1


@pytest.mark.parametrize("fault", [*REFUSED, *DOUBTFUL, Fault(cut=True)], ids=name_of)
@pytest.mark.parametrize("op", [Get("q/a"), List("q/"), Delete(("q/b", "q/c"))], ids=["get", "list", "delete"])
async def test_reads_and_deletes_are_repeated(proxy: Proxy, blobs: CloudBlobs, fault: Fault, op: Op) -> None:
    for key in ("q/a", "q/b"):
        await blobs.perform(Create(key, b"1"))
    expected = await blobs.perform(op)
    proxy.decide = once(fault)
    with proxy.counting() as counted:
        assert await blobs.perform(op) == expected
    assert counted.total() == 2


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(status=500), Fault()], ids=name_of)
async def test_tries_are_bounded(proxy: Proxy, blobs: CloudBlobs, fault: Fault) -> None:
    proxy.decide = always(fault)
    with proxy.counting() as counted, pytest.raises(StoreUnavailable, match=BUCKET):
        await blobs.perform(Get("q/a"))
    assert counted.total() == (5 if fault.status == 503 else 3)


async def test_a_conditional_delete_in_doubt_says_so(proxy: Proxy, blobs: CloudBlobs) -> None:
    first: Any = await blobs.perform(Create("q/a", b"1"))
    second: Any = await blobs.perform(Create("q/b", b"1"))
    third: Any = await blobs.perform(Create("q/c", b"1"))
    assert await blobs.perform(DeleteIf("q/a", first)) == first
    proxy.decide = once(Fault(applied=True))
    assert await blobs.perform(DeleteIf("q/b", second)) is UNKNOWN
    assert await blobs.perform(Get("q/b")) is None
    proxy.decide = once(Fault(status=503))
    assert await blobs.perform(DeleteIf("q/c", third)) == third


async def test_a_stream_that_is_cut_is_read_on_where_it_stopped(proxy: Proxy, blobs: CloudBlobs) -> None:
    body = random.Random(1).randbytes(3_000_000)
    await blobs.perform(Create("q/a", body))
    proxy.decide = once(Fault(cut=True), Fault(status=503))
    with proxy.counting() as counted:
        read = b"".join([chunk async for chunk in blobs.get_stream("q/a", chunk=100_000)])
    assert read == body
    assert counted == {"get": 3}


async def test_an_upload_that_fails_leaves_nothing(proxy: Proxy, blobs: CloudBlobs) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for n in range(20):
            yield bytes([n]) * 1_000_000

    proxy.decide = lambda request: Fault(status=500) if request.method == "PUT" else None
    with pytest.raises(StoreUnavailable):
        await blobs.put_stream("q/big", chunks())
    proxy.decide = None
    assert await blobs.perform(Get("q/big")) is None


async def test_an_enqueue_whose_answer_was_lost_is_made_once(proxy: Proxy, tmp_path: Path) -> None:
    """[G1] [G3] The segment is read back: it is this very write."""
    url = s3_url(proxy.endpoint, f"faults/{uuid.uuid4().hex}")
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        proxy.decide = once(Fault(applied=True))
        await queue.enqueue("x")
        proxy.decide = None
        assert [message.data for message in await queue.claim(10)] == ["x"]


async def test_an_endpoint_that_goes_away_and_comes_back(proxy: Proxy) -> None:
    url = s3_url(proxy.endpoint, f"faults/{uuid.uuid4().hex}") + "&retries=1&timeout=2"
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        proxy.decide = always(Fault())
        with pytest.raises(BrigadeError, match="check it and try again"):
            await queue.stats()
        proxy.decide = None
        assert (await queue.stats()).ready == 0
