"""A directory."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from brigade.blobs.disk import DiskBlobs
from brigade.testing.chaos.arenas import Arena
from brigade.testing.chaos.arenas.disk import DiskArena, small_disk

__all__ = ["directory_at", "opened"]


def directory_at(root: Path, *, can_fill: bool) -> DiskArena:
    """A directory on the disk that is mounted at `root`."""
    path = f"{root}/jobs"
    return DiskArena(root, f"file://{path}", lambda: DiskBlobs(path, watch=False), can_fill=can_fill)


@contextlib.contextmanager
def opened(folder: Path, seed: int, faults: bool) -> Generator[Arena]:
    with small_disk(folder / "disk") as mounted:
        yield directory_at(folder / "disk", can_fill=mounted and faults)
