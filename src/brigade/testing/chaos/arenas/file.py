"""A directory, on a small file system of its own where that can be mounted, so that it can be filled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
from collections import Counter
from collections.abc import Generator, Mapping
from pathlib import Path

from brigade.blobs.disk import DiskBlobs
from brigade.testing.chaos.arenas import Arena, Break
from brigade.testing.chaos.arenas.bucket import ended_in, left_in
from brigade.testing.chaos.judge.ended import Ended
from brigade.testing.sim import records as r

__all__ = ["FileArena", "opened", "small_disk"]

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


class FileArena:
    keeps_own_time = False

    def __init__(self, root: Path, *, can_fill: bool) -> None:
        self._root = root
        self._can_fill = can_fill
        self.faults: Counter[str] = Counter()
        self.witnessed: list[tuple[int, r.Record]] = []

    @property
    def url(self) -> str:
        return f"file://{self._root}/jobs"

    @property
    def urls(self) -> list[str]:
        return [self.url]

    @property
    def drain_url(self) -> str:
        return self.url

    @property
    def breaks(self) -> Mapping[str, Break]:
        return {"disk full": self._fill} if self._can_fill else {}

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
        blobs = DiskBlobs(f"{self._root}/jobs", watch=False)
        try:
            return await ended_in(blobs)
        finally:
            await blobs.close()

    async def left(self) -> list[str]:
        blobs = DiskBlobs(f"{self._root}/jobs", watch=False)
        try:
            return await left_in(blobs)
        finally:
            await blobs.close()


@contextlib.contextmanager
def opened(folder: Path, seed: int, faults: bool) -> Generator[Arena]:
    with small_disk(folder / "disk") as mounted:
        yield FileArena(folder / "disk", can_fill=mounted and faults)
