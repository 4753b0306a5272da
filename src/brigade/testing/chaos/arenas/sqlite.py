"""One SQLite database. In the end it is looked into as well: is it whole, and has every chunk an object?"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
import time
from collections.abc import Generator
from pathlib import Path

from brigade.blobs import Delete
from brigade.blobs.sqlite import SqliteBlobs
from brigade.testing.chaos.arenas import Arena
from brigade.testing.chaos.arenas.disk import DiskArena, small_disk

__all__ = ["opened", "swept", "unsound"]

SWEPT_WITHIN = 20.0
HELD_WITHIN = 20.0
LEFTOVERS = "SELECT count(*) FROM leftovers"
UNSOUND = {
    "streams that nobody refers to and nobody swept": LEFTOVERS,
    "chunks of streams that are no object's": (
        "SELECT count(*) FROM chunks WHERE stream NOT IN (SELECT stream FROM objects WHERE stream IS NOT NULL)"
    ),
    "objects without all of their bytes": (
        "SELECT count(*) FROM objects AS o WHERE size IS NOT CASE "
        "WHEN stream IS NOT NULL THEN (SELECT coalesce(sum(length(body)), 0) FROM chunks WHERE stream = o.stream) "
        "WHEN apart IS NOT NULL THEN (SELECT length(body) FROM bodies WHERE id = o.apart) ELSE length(body) END"
    ),
    "bodies that are no object's": (
        "SELECT count(*) FROM bodies WHERE id NOT IN (SELECT apart FROM objects WHERE apart IS NOT NULL)"
    ),
}


def unsound(path: str) -> list[str]:
    """What is wrong inside the database."""
    with contextlib.closing(sqlite3.connect(path, timeout=SWEPT_WITHIN)) as connection:
        told: list[tuple[str]] = connection.execute("PRAGMA integrity_check").fetchall()
        counts = {what: connection.execute(query).fetchone()[0] for what, query in UNSOUND.items()}
    damage = [f"integrity_check: {text}" for (text,) in told if text != "ok"]
    return [*damage, *(f"{count} {what}" for what, count in counts.items() if count)]


async def swept(path: str) -> None:
    """Let an hour pass for streams that were cut off by a death, and have the writer's upkeep see to them."""
    with contextlib.closing(sqlite3.connect(path, timeout=SWEPT_WITHIN)) as connection:
        with connection:
            connection.execute("UPDATE leftovers SET since = 0")
        blobs = SqliteBlobs(path, watch=False)
        try:
            end = time.monotonic() + SWEPT_WITHIN
            while connection.execute(LEFTOVERS).fetchone()[0] and time.monotonic() < end:
                await blobs.perform(Delete(("nothing",)))
                await asyncio.sleep(0.05)
        finally:
            await blobs.close()


async def _held(path: str, rng: random.Random) -> None:
    """What a process does to the others that is frozen in the middle of a transaction."""
    holder = sqlite3.connect(path, timeout=HELD_WITHIN, isolation_level=None, check_same_thread=False)
    with contextlib.closing(holder):
        await asyncio.to_thread(holder.execute, "BEGIN IMMEDIATE")
        await asyncio.sleep(rng.uniform(2, 4))


@contextlib.contextmanager
def opened(folder: Path, seed: int, faults: bool) -> Generator[Arena]:
    root = folder / "disk"
    path = f"{root}/jobs.db"

    async def unkept() -> list[str]:
        await swept(path)
        return unsound(path)

    with small_disk(root) as mounted:
        yield DiskArena(
            root,
            f"sqlite://{path}",
            lambda: SqliteBlobs(path, watch=False),
            can_fill=mounted and faults,
            takes_large=True,
            breaks={"write lock held past the lease": lambda rng: _held(path, rng)},
            unkept=unkept,
        )
