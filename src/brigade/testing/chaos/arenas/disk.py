"""What stores on a disk have in common: a small file system of their own, where one can be mounted, to be filled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from pathlib import Path
from types import MappingProxyType

from brigade.blobs import Blobs
from brigade.testing.chaos.arenas import Break
from brigade.testing.chaos.arenas.bucket import ended_in, left_in
from brigade.testing.chaos.judge.ended import Ended
from brigade.testing.sim import records as r

__all__ = ["DiskArena", "small_disk"]

SIZE = 256
BLOCK = 1 << 20


@contextlib.contextmanager
def small_disk(folder: Path) -> Generator[bool]:
    """A file system of its own at `folder`, for root; False where there can be none."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}m", "tmpfs", str(folder)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


async def _nothing() -> list[str]:
    return []


class DiskArena:
    """A bucket on the disk at `root`. Besides filling the disk there are `breaks`; besides keys that are left `unkept`
    tells what is wrong."""

    keeps_own_time = False

    def __init__(
        self,
        root: Path,
        url: str,
        blobs: Callable[[], Blobs],
        *,
        can_fill: bool,
        takes_large: bool = False,
        breaks: Mapping[str, Break] = MappingProxyType({}),
        unkept: Callable[[], Awaitable[list[str]]] = _nothing,
    ) -> None:
        self.url = url
        self.takes_large = takes_large
        self._root = root
        self._blobs = blobs
        self.breaks = {"disk full": self._fill, **breaks} if can_fill else dict(breaks)
        self._unkept = unkept
        self.faults: Counter[str] = Counter()
        self.witnessed: list[tuple[int, r.Record]] = []

    @property
    def urls(self) -> list[str]:
        return [self.url]

    @property
    def drain_url(self) -> str:
        return self.url

    async def _fill(self, rng: random.Random) -> None:
        """Take every byte there is, for a while."""
        ballast = self._root / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            size, block = 0, 64 * BLOCK
            while block >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), size, block)
                    size += block
                except OSError:
                    block //= 2
        await asyncio.sleep(rng.uniform(0.5, 2.5))
        ballast.unlink(missing_ok=True)

    def calm(self) -> None:
        (self._root / "ballast").unlink(missing_ok=True)

    async def ended(self) -> list[Ended]:
        async with self._opened() as blobs:
            return await ended_in(blobs)

    async def left(self) -> list[str]:
        async with self._opened() as blobs:
            keys = await left_in(blobs)
        return [*keys, *await self._unkept()]

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncGenerator[Blobs]:
        blobs = self._blobs()
        try:
            yield blobs
        finally:
            await blobs.close()
