"""Through a server, over HTTP: messages a second with a few clients and many, and what a crowd costs the store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.measure import FILE_FSYNC, MEMORY, MESSAGE, Ground
from brigade.testing.servers.s3 import s3_url, seaweedfs

__all__ = ["CLIENTS", "HttpRequests", "HttpResult", "run_http", "runs"]

CLIENTS = (1, 16, 64)
BATCH = 100
CROWD = 200
TURNS = 10
SINGLE, BATCHED = 2_000, 20_000
CASES = ("enqueue", "dequeue + ack", f"enqueue, {BATCH} a request", f"dequeue + ack, {BATCH} a request")
PAYLOAD = MESSAGE.decode()


@dataclass(frozen=True, slots=True)
class HttpResult:
    """Messages a second, best of the rounds."""

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


def runs(total: int, *, quick: bool) -> int:
    """How many runs `run_http` makes, for the progress bar."""
    return total * len(CASES) * len(CLIENTS) + (1 if quick else 3)


def run_http(ground: Ground) -> tuple[list[HttpResult], list[HttpRequests]]:
    """Every case with every number of clients, each on a queue of its own; a fresh server for each round."""
    rates: dict[tuple[str, int], list[float]] = {}
    counts: dict[tuple[str, int], int] = {}
    for _ in range(ground.rounds):
        with serving(ground.url(MEMORY)) as address:
            for place, case in enumerate(CASES):
                for clients in CLIENTS:
                    ground.tick(f"HTTP: {case}, {clients} clients")
                    batch = 1 if place < 2 else BATCH
                    count = ground.messages(SINGLE if batch == 1 else BATCHED, batch * clients)
                    work = _Work(f"bench-{place}-{clients}", batch, consume=place % 2 == 1)
                    rates.setdefault((case, clients), []).append(
                        count / asyncio.run(work.timed(address, count, clients))
                    )
                    counts[case, clients] = count
    speeds = [HttpResult(case, clients, counts[case, clients], max(found)) for (case, clients), found in rates.items()]
    return speeds, _crowds(ground)


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
        requests, seconds = asyncio.run(_Work("crowd", 1, consume=True).counted(address, count))
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


class Connection:
    """HTTP with as little as it takes, so that the client is not what is measured."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host

    @classmethod
    async def open(cls, address: str) -> Connection:
        place = urlsplit(address)
        return cls(*await asyncio.open_connection(place.hostname, place.port, limit=2**24), place.netloc)

    async def post(self, path: str, body: Any) -> Any:
        return json.loads(await self._send("POST", f"/v1/queue/{path}", json.dumps(body).encode()))

    async def get(self, path: str) -> str:
        return (await self._send("GET", path, b"")).decode()

    async def _send(self, method: str, path: str, body: bytes) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        assert answer.startswith(b"http/1.1 200"), answer
        length = re.search(rb"content-length: (\d+)", answer)
        assert length is not None
        return await self._reader.readexactly(int(length[1]))

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True, slots=True)
class _Work:
    """What clients do, on one queue."""

    queue: str
    batch: int
    consume: bool

    async def timed(self, address: str, count: int, clients: int) -> float:
        """Seconds until the last client has done its part."""
        connections = [await Connection.open(address) for _ in range(clients)]
        await connections[0].post("open", {"queue": self.queue})
        if self.consume:
            for start in range(0, count, 1000):
                await self._enqueue(connections[0], min(1000, count - start))
        started = time.monotonic()
        await asyncio.gather(*(self.repeat(one, count // clients) for one in connections))
        seconds = time.monotonic() - started
        for one in connections:
            one.close()
        return seconds

    async def repeat(self, one: Connection, count: int) -> None:
        work, done = self._consume if self.consume else self._enqueue, 0
        while done < count:
            done += await work(one, min(self.batch, count - done))

    async def _enqueue(self, one: Connection, count: int) -> int:
        message = {"payload": PAYLOAD}
        await one.post("enqueue", {"queue": self.queue, **(message if count == 1 else {"messages": [message] * count})})
        return count

    async def _consume(self, one: Connection, count: int) -> int:
        wanted = {"queue": self.queue, "limit": count, "wait": 30, "visibility": 600}
        got = (await one.post("dequeue", wanted))["messages"]
        keys = [{"id": m["id"], "ref": m["ref"], "token": m["lease"]["token"]} for m in got]
        if keys:
            await one.post("ack", {"queue": self.queue, **(keys[0] if len(keys) == 1 else {"settlements": keys})})
        return len(got)

    async def counted(self, address: str, count: int) -> tuple[int, float]:
        """Storage requests from the first enqueue to the last ack and the cleaning up after it, and seconds."""
        connections = [await Connection.open(address) for _ in range(CROWD)]
        other = await Connection.open(address)
        await other.post("open", {"queue": self.queue})
        before = _requests(await other.get("/metrics"))
        started = time.monotonic()
        consumers = [asyncio.ensure_future(self.repeat(one, count // CROWD)) for one in connections]
        for start in range(0, count, CROWD):
            await self._enqueue(other, min(CROWD, count - start))
        await asyncio.gather(*consumers)
        seconds = time.monotonic() - started
        await other.post("forget", {"queue": self.queue})
        after = _requests(await other.get("/metrics"))
        for one in (*connections, other):
            one.close()
        return after - before, seconds


def _requests(metrics: str) -> int:
    found: Sequence[str] = re.findall(r"^brigade_storage_requests_total\{[^}]*\} (\S+)$", metrics, re.MULTILINE)
    return round(sum(float(number) for number in found))
