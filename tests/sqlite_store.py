"""A bucket in a SQLite file, and what tests see of it from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brigade.blobs import Blob, Get, List
from brigade.blobs.sqlite import SqliteBlobs

__all__ = [
    "NOBODY",
    "SOON",
    "as_nobody",
    "blobs",
    "in_child",
    "is_sound",
    "path",
    "pieces",
    "rows",
    "small_disk",
    "stored",
    "until",
]

NOBODY = 65534
SOON = 30


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


@pytest.fixture
async def blobs(path: str) -> AsyncIterator[SqliteBlobs]:
    made = SqliteBlobs(path, fsync=False, watch=False)
    yield made
    await made.close()


async def stored(blobs: SqliteBlobs) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    after, more = "", True
    while more:
        page: Any = await blobs.perform(List("", after))
        for item in page.items:
            blob = await blobs.perform(Get(item.key))
            assert isinstance(blob, Blob)
            found[item.key] = blob.body
            after = item.key
        more = page.more
    return found


async def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end, "it did not come"
        await asyncio.sleep(0.005)


async def pieces(count: int, size: int) -> AsyncIterator[bytes]:
    for n in range(count):
        yield bytes([n % 251]) * size


def rows(path: str, sql: str) -> list[Any]:
    """What another program finds in the database."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def is_sound(path: str) -> bool:
    return rows(path, "PRAGMA integrity_check") == [("ok",)]


def in_child(work: Callable[[], str]) -> str:
    """What `work` says in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def as_nobody(work: Callable[[], str]) -> str:
    """What `work` says in a process without root's privileges."""

    def unprivileged() -> str:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setegid(NOBODY)
            os.seteuid(NOBODY)
        return work()

    return in_child(unprivileged)


@contextlib.contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A file system of its own, or a skip with the reason."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["-t", "tmpfs", "-o", f"size={megabytes}m,mode=777", "tmpfs", folder]
        mounted = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            pytest.skip(f"a small tmpfs cannot be mounted here: {mounted.stderr.strip()}")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)
