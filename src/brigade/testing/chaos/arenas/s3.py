"""SeaweedFS behind a proxy that spoils requests, and that sees every write that was applied."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from brigade.blobs.cloud import CloudBlobs
from brigade.blobs.cloud_connect import connect_bucket
from brigade.stores.opening import parse_url
from brigade.testing.chaos.arenas import Arena, Break
from brigade.testing.chaos.arenas.bucket import ended_in, left_in
from brigade.testing.chaos.journal import wall_ms
from brigade.testing.chaos.judge.ended import Ended
from brigade.testing.servers.proxy import WRITES, Proxy, Request, Weather, seeded
from brigade.testing.servers.s3 import BUCKET, Seaweed, s3_url
from brigade.testing.sim import records as r
from brigade.testing.sim.witness import Witness

__all__ = ["S3Arena", "opened"]

PREFIX = "chaos"
ROOT = f"/{BUCKET}/{PREFIX}/"
STORM = Weather(refused=0.05, failed=0.04, lost_answer=0.05, late=0.02, cut=0.02, slow=0.05)
SLOW = Weather(slow=0.5)
UP_WITHIN = 90.0


class S3Arena:
    keeps_own_time = False
    takes_large = False

    def __init__(self, server: Seaweed, proxy: Proxy | None) -> None:
        self._server = server
        self._proxy = proxy
        self._upstream: Any = connect_bucket(*parse_url(s3_url(server.endpoint, ""), {})).once
        self.witnessed: list[tuple[int, r.Record]] = []
        self._witness = Witness(lambda record: self.witnessed.append((time.monotonic_ns(), record)))
        if proxy is not None:
            proxy.tell, proxy.doubt = self._saw, self._applied

    @property
    def url(self) -> str:
        endpoint = self._server.endpoint if self._proxy is None else self._proxy.endpoint
        return s3_url(endpoint, PREFIX) + "&timeout=5&retries=3"

    @property
    def urls(self) -> list[str]:
        return [self.url]

    @property
    def drain_url(self) -> str:
        return self.url

    @property
    def faults(self) -> Counter[str]:
        """Spoiled requests, by what was done to them."""
        found: Counter[str] = Counter()
        for what, count in self._proxy.faults.items() if self._proxy is not None else ():
            kind, _, how = what.partition(" ")
            found[f"{'write' if kind in WRITES else 'read'} spoiled: {how}"] += count
        return found

    @property
    def breaks(self) -> Mapping[str, Break]:
        if self._proxy is None:
            return {}
        return {
            "storm on the wire": lambda rng: self._weather(STORM, rng),
            "slow wire": lambda rng: self._weather(SLOW, rng),
            "server killed and started": self._restart,
            "server frozen": self._freeze,
        }

    async def _weather(self, weather: Weather, rng: random.Random) -> None:
        assert self._proxy is not None
        self._proxy.decide = seeded(rng.randrange(1 << 30), weather)
        await asyncio.sleep(rng.uniform(2, 6))
        self._proxy.decide = None

    async def _freeze(self, rng: random.Random) -> None:
        """What was asked of it meanwhile is done afterwards, or not at all."""
        self._server.signal(signal.SIGSTOP)
        await asyncio.sleep(rng.uniform(1, 4))
        self._server.signal(signal.SIGCONT)

    async def _restart(self, rng: random.Random) -> None:
        self._server.halt()
        await asyncio.sleep(rng.uniform(0, 2))
        self._server.resume()
        end = time.monotonic() + UP_WITHIN
        while not await asyncio.to_thread(self._server.answers):
            if time.monotonic() > end:
                raise RuntimeError(f"SeaweedFS did not come up again within {UP_WITHIN:g} s")
            await asyncio.sleep(0.2)

    def _saw(self, request: Request) -> None:
        """Called by the proxy for each write that was applied."""
        if request.key == f"/{BUCKET}":
            for key in request.deleted():
                self._wrote(f"/{BUCKET}/{key}", None)
        elif request.kind in ("create", "swap"):
            self._wrote(request.key, request.body)
        elif request.kind in ("deleteif", "delete"):
            self._wrote(request.key, None)

    def _wrote(self, key: str, body: bytes | None) -> None:
        if key.startswith(ROOT):
            self._witness.wrote(key.removeprefix(ROOT), body, wall_ms())

    async def _applied(self, request: Request) -> Request | None:
        """What the server, once it is back, has of a write that it died on."""
        if request.key == f"/{BUCKET}":
            gone = [key for key in request.deleted() if await self._read(f"/{BUCKET}/{key}") is None]
            body = "".join(f"<Key>{escape(key)}</Key>" for key in gone).encode()
            return Request(request.method, request.target, request.headers, body) if gone else None
        there = await self._read(request.key)
        wanted = request.body if request.kind in ("create", "swap") else None
        return request if there == wanted else None

    async def _read(self, key: str) -> bytes | None:
        while True:
            try:
                return await asyncio.to_thread(self._get, key.removeprefix(f"/{BUCKET}/"))
            except FileNotFoundError:
                return None
            except Exception:
                await asyncio.sleep(0.2)

    def _get(self, key: str) -> bytes:
        return bytes(self._upstream.get(key).bytes())

    def calm(self) -> None:
        if self._proxy is not None:
            self._proxy.decide = None

    async def ended(self) -> list[Ended]:
        blobs = self._blobs()
        try:
            return await ended_in(blobs)
        finally:
            await blobs.close()

    async def left(self) -> list[str]:
        blobs = self._blobs()
        try:
            return await left_in(blobs)
        finally:
            await blobs.close()

    def _blobs(self) -> CloudBlobs:
        return CloudBlobs(connect_bucket(*parse_url(s3_url(self._server.endpoint, PREFIX), {})))


@contextlib.contextmanager
def opened(folder: Path, seed: int, faults: bool) -> Generator[Arena]:
    server = Seaweed(folder / "seaweedfs")
    server.resume()
    try:
        end = time.monotonic() + UP_WITHIN
        while not server.answers():
            if time.monotonic() > end:
                raise RuntimeError(f"SeaweedFS did not come up within {UP_WITHIN:g} s; its log is in {folder}")
            time.sleep(0.2)
        if not faults:
            yield S3Arena(server, None)
            return
        with Proxy(server.endpoint) as proxy:
            yield S3Arena(server, proxy)
    finally:
        server.halt()
