"""Two `brigade serve` processes on one store: either may be killed, the crew talks to both."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path

from brigade.testing.chaos.arenas import Arena, Break
from brigade.testing.chaos.arenas.disk import DiskArena, small_disk
from brigade.testing.chaos.arenas.file import directory_at
from brigade.testing.chaos.judge.ended import Ended
from brigade.testing.servers.running import free_ports
from brigade.testing.sim import records as r

__all__ = ["HttpArena", "opened"]

UP_WITHIN = 60.0


class _Server:
    """One server process that keeps its port."""

    def __init__(self, url: str, log: Path) -> None:
        (self.port,) = free_ports(1)
        self._url = url
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def resume(self) -> None:
        start = "import sys; from brigade.cli import main; sys.exit(main())"
        line = [sys.executable, "-c", start, "serve", "--url", self._url, "--port", str(self.port)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*line, "--log-level", "error"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def halt(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)

    def answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.address}/healthz", timeout=5).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True


class HttpArena:
    """The store behind the servers is a directory."""

    keeps_own_time = True
    takes_large = False

    def __init__(self, store: DiskArena, servers: list[_Server]) -> None:
        self._store = store
        self._servers = servers
        self.faults: Counter[str] = Counter()
        self.witnessed: list[tuple[int, r.Record]] = []

    @property
    def url(self) -> str:
        return self._servers[0].address

    @property
    def urls(self) -> list[str]:
        return [server.address for server in self._servers]

    @property
    def drain_url(self) -> str:
        return self._store.url

    @property
    def breaks(self) -> Mapping[str, Break]:
        return {
            "server killed and started": lambda rng: self._restart(signal.SIGKILL, rng),
            "server stopped and started": lambda rng: self._restart(signal.SIGTERM, rng),
            "server frozen": self._freeze,
            **self._store.breaks,
        }

    async def _restart(self, how: signal.Signals, rng: random.Random) -> None:
        server = rng.choice(self._servers)
        await asyncio.to_thread(server.halt, how)
        await asyncio.sleep(rng.uniform(0, 2))
        server.resume()
        await asyncio.to_thread(_wait, server)

    async def _freeze(self, rng: random.Random) -> None:
        """Stopped past the lease: what it hands out afterwards must still be right."""
        process = rng.choice(self._servers).process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(rng.uniform(2, 4))
        process.send_signal(signal.SIGCONT)

    def calm(self) -> None:
        """The servers end; what they knew and did not write must not matter."""
        self._store.calm()
        for server in self._servers:
            server.halt(signal.SIGTERM)

    async def ended(self) -> list[Ended]:
        return await self._store.ended()

    async def left(self) -> list[str]:
        return await self._store.left()


def _wait(server: _Server) -> None:
    end = time.monotonic() + UP_WITHIN
    while not server.answers():
        if time.monotonic() > end:
            raise RuntimeError(f"the server at {server.address} did not come up within {UP_WITHIN:g} s")
        time.sleep(0.1)


@contextlib.contextmanager
def opened(folder: Path, seed: int, faults: bool) -> Generator[Arena]:
    with small_disk(folder / "disk") as mounted:
        store = directory_at(folder / "disk", can_fill=mounted and faults)
        servers = [_Server(store.url, folder / f"server{n}.log") for n in range(2)]
        try:
            for server in servers:
                server.resume()
            for server in servers:
                _wait(server)
            yield HttpArena(store, servers)
        finally:
            for server in servers:
                server.halt(signal.SIGKILL)
