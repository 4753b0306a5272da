"""Through a server, over HTTP: messages a second with a few clients and many, and what a crowd costs the store.

Beside it, ElasticMQ: the same work by the same clients, in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import brigade
from bench import http_peers
from bench.clients import Connection, Remote, Work, consuming, producing, repeat
from bench.measure import FILE_FSYNC, MEMORY, MESSAGE, Ground
from brigade.testing.servers.s3 import s3_url, seaweedfs

__all__ = ["CHAIN", "CLIENTS", "CONSUME", "ENQUEUE", "HttpRequests", "HttpResult", "missing", "run_http", "runs"]

CLIENTS = (1, 16, 64)
BATCH = 100
BULK = 1000
CROWD = 200
TURNS = 10
SINGLE, BATCHED = 5_000, 20_000
ENQUEUE, CONSUME = "enqueue", "dequeue + ack"
CHAIN = f"{CONSUME}, the ack with the next dequeue"
PAYLOAD = MESSAGE.decode()
DEQUEUE = "/v1/queue/dequeue"
_KEYS = re.compile(rb'"id":"([^"]*)","queue":"[^"]*","ref":"([^"]*)".*?"token":"([^"]*)"')
"""What an ack needs to know of a message."""


@dataclass(frozen=True, slots=True)
class HttpResult:
    """Messages a second, best of the rounds."""

    name: str
    version: str
    case: str
    clients: int
    messages: int
    best: float


@dataclass(frozen=True, slots=True)
class HttpRequests:
    """Storage requests a message, enqueue to ack, with so many consumers that take and ack one at a time."""

    store: str
    consumers: int
    messages: int
    requests: float
    rate: float


@dataclass(frozen=True, slots=True)
class System:
    """A server of queues, and how many messages a request of its largest batches has here."""

    name: str
    version: str
    batch: int
    queue: Callable[[str], Remote]
    cases: Sequence[Case]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure, one message a request or as many as the system's batches have."""

    work: str
    batched: bool

    def told(self, system: System) -> str:
        return f"{self.work}, {system.batch} a request" if self.batched else self.work


CASES = tuple(Case(work, batched) for batched in (False, True) for work in (ENQUEUE, CONSUME))
OURS = (*CASES[:2], Case(CHAIN, batched=False), *CASES[2:])
"""An ack that comes with the next dequeue is something that the API of SQS doesn't have."""


def missing() -> list[str]:
    """What is not installed: its rows are left out."""
    return http_peers.missing()


def runs(total: int, *, quick: bool) -> int:
    """How many runs `run_http` makes, for the progress bar."""
    peer = _peer(quick=quick)
    cases = len(OURS) + (len(CASES) if peer else 0)
    return total * cases * len(CLIENTS) + (1 if peer else 0) + (1 if quick else 3)


def run_http(ground: Ground) -> tuple[list[HttpResult], list[HttpRequests]]:
    """Every case with every number of clients, each on a queue of its own; a fresh Brigade server for each round."""
    ours = System("brigade", brigade.__version__, BATCH, BrigadeQueue, OURS)
    peer = _peer(quick=ground.quick)
    rates: dict[tuple[System, Case, int], list[float]] = {}
    with contextlib.ExitStack() as running:
        others = [(peer, running.enter_context(_peer_at_its_best(ground)))] if peer else []
        for turn in range(ground.rounds):
            with serving(ground.url(MEMORY)) as address:
                for case, clients in itertools.product(OURS, CLIENTS):
                    for system, place in [(ours, address), *others]:
                        if case in system.cases:
                            ground.tick(f"HTTP: {case.told(system)}, {clients} clients · {system.name}")
                            rate = _rate(ground, system, case, clients, place, turn)
                            rates.setdefault((system, case, clients), []).append(rate)
    speeds = [
        HttpResult(system.name, system.version, case.told(system), clients, _count(ground, case, clients), max(found))
        for (system, case, clients), found in sorted(rates.items(), key=lambda one: one[0][0] is not ours)
    ]
    return speeds, _crowds(ground)


def _peer(*, quick: bool) -> System | None:
    """ElasticMQ where it is installed; not in a smoke test, which is to need nothing else."""
    version = None if quick else http_peers.version()
    return System(http_peers.NAME, version, http_peers.BATCH, http_peers.SqsQueue, CASES) if version else None


@contextlib.contextmanager
def _peer_at_its_best(ground: Ground) -> Generator[str, None, None]:
    with http_peers.serving(ground.directory()) as address:
        ground.tick(f"HTTP: warming up · {http_peers.NAME}")
        http_peers.warm_up(address)
        yield address


def _count(ground: Ground, case: Case, clients: int) -> int:
    """The same for all systems: what divides into Brigade's batches does into smaller ones."""
    return ground.messages(BATCHED, BATCH * clients) if case.batched else ground.messages(SINGLE, clients)


def _rate(ground: Ground, system: System, case: Case, clients: int, address: str, turn: int) -> float:
    count = _count(ground, case, clients)
    queue = system.queue(f"bench-{turn}-{OURS.index(case)}-{clients}")
    batch = system.batch if case.batched else 1
    if case.work == ENQUEUE:
        work = producing(queue, batch)
    elif isinstance(queue, BrigadeQueue) and case.work == CHAIN:
        work = Work(queue, filled=True, part=queue.chain)
    else:
        work = consuming(queue, batch)
    return count / asyncio.run(work.timed(address, count, clients))


def _crowds(ground: Ground) -> list[HttpRequests]:
    turns = 1 if ground.quick else TURNS
    stores = (MEMORY,) if ground.quick else (MEMORY, FILE_FSYNC)
    found = [_crowd(ground, store, ground.url(store), turns) for store in stores]
    if not ground.quick:
        with contextlib.suppress(FileNotFoundError), seaweedfs(ground.directory()) as endpoint:
            found.append(_crowd(ground, "SeaweedFS", s3_url(endpoint, "bench"), turns))
    return found


def _crowd(ground: Ground, store: str, url: str, turns: int) -> HttpRequests:
    ground.tick(f"HTTP: requests a message, {CROWD} consumers · {store}")
    count = CROWD * turns
    with serving(url, "--queue-max-consumers", "1000") as address:
        requests, seconds = asyncio.run(_counted(BrigadeQueue("crowd"), address, count))
    return HttpRequests(store, CROWD, count, requests / count, count / seconds)


@contextlib.contextmanager
def serving(url: str, *arguments: str) -> Generator[str, None, None]:
    """`brigade serve`, and its address."""
    process = subprocess.Popen(
        [Path(sys.executable).parent / "brigade", "serve", "--url", url, "--port", "0", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("BRIGADE_")},
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"at (http://\S+)", line)
        assert found, line + process.stderr.read()
        yield found[1]
    finally:
        process.kill()
        process.communicate()


@dataclass(frozen=True, slots=True)
class BrigadeQueue:
    """A queue of `brigade serve`."""

    name: str

    @property
    def bulk(self) -> int:
        return BULK

    async def open(self, one: Connection) -> None:
        await self.post(one, "open")

    async def close(self, one: Connection) -> None:
        """Nothing to do: its server ends with the round."""

    async def enqueue(self, one: Connection, count: int) -> int:
        await one.post("/v1/queue/enqueue", _enqueueing(self.name, count))
        return count

    async def consume(self, one: Connection, count: int) -> int:
        keys = _KEYS.findall(await one.post(DEQUEUE, self._dequeueing(count)))
        assert keys, "the queue is empty before its time"
        acked = _key(keys[0]) if len(keys) == 1 else b'"settlements":[%b]' % b",".join(map(_member, keys))
        await one.post("/v1/queue/ack", b'{"queue":"%b",%b}' % (self.name.encode(), acked))
        return len(keys)

    async def chain(self, one: Connection, count: int) -> None:
        """One message after the other, each acked with the request for the next, and the last by itself."""
        wanted = self._dequeueing(1)
        (key,) = _KEYS.findall(await one.post(DEQUEUE, wanted))
        for _ in range(count - 1):
            (key,) = _KEYS.findall(await one.post(DEQUEUE, b'%b,"ack":%b}' % (wanted[:-1], _member(key))))
        await one.post("/v1/queue/ack", b'{"queue":"%b",%b}' % (self.name.encode(), _key(key)))

    def _dequeueing(self, count: int) -> bytes:
        return b'{"queue":"%b","limit":%d,"wait":30,"visibility":600}' % (self.name.encode(), count)

    async def post(self, one: Connection, verb: str, **body: Any) -> Any:
        return json.loads(await one.post(f"/v1/queue/{verb}", json.dumps({"queue": self.name, **body}).encode()))


def _key(found: tuple[bytes, bytes, bytes]) -> bytes:
    return b'"id":"%b","ref":"%b","token":"%b"' % found


def _member(found: tuple[bytes, bytes, bytes]) -> bytes:
    return b"{%b}" % _key(found)


@functools.cache
def _enqueueing(queue: str, count: int) -> bytes:
    message = {"payload": PAYLOAD}
    return json.dumps({"queue": queue, **(message if count == 1 else {"messages": [message] * count})}).encode()


async def _counted(queue: BrigadeQueue, address: str, count: int) -> tuple[int, float]:
    """Storage requests from the first enqueue to the last ack and the cleaning up after it, and seconds."""
    connections = [await Connection.open(address) for _ in range(CROWD)]
    other = await Connection.open(address)
    await queue.open(other)
    before = _requests(await other.get("/metrics"))
    started = time.monotonic()
    consumers = [asyncio.ensure_future(repeat(queue.consume, 1, one, count // CROWD)) for one in connections]
    await repeat(queue.enqueue, CROWD, other, count)
    await asyncio.gather(*consumers)
    seconds = time.monotonic() - started
    await queue.post(other, "forget")
    after = _requests(await other.get("/metrics"))
    for one in (*connections, other):
        one.close()
    return after - before, seconds


def _requests(metrics: str) -> int:
    found: Sequence[str] = re.findall(r"^brigade_storage_requests_total\{[^}]*\} (\S+)$", metrics, re.MULTILINE)
    return round(sum(float(number) for number in found))
