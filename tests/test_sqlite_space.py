"""What sqlite:// needs room for: streams, space given back, and disks that are full."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from brigade.blobs import (
    CONFLICT,
    Blob,
    Copy,
    Create,
    Delete,
    DeleteIf,
    Get,
    List,
    Swap,
    sqlite_file,
    sqlite_streams,
    sqlite_upkeep,
)
from brigade.blobs.sqlite import SqliteBlobs
from brigade.blobs.sqlite_streams import Piece
from brigade.errors import MessageNotFound, StoreUnavailable
from sqlite_store import blobs, is_sound, path, pieces, rows, small_disk, stored, until

__all__ = ["blobs", "path"]


class TestStreams:
    async def test_a_large_stream_is_many_chunks_and_one_object(self, blobs: SqliteBlobs, path: str) -> None:
        size = await blobs.put_stream("q/large", pieces(5, 700_000))
        assert size == 3_500_000
        page: Any = await blobs.perform(List(""))
        assert [(item.key, item.size) for item in page.items] == [("q/large", size)]
        whole = b"".join([chunk async for chunk in pieces(5, 700_000)])
        found = await blobs.perform(Get("q/large"))
        assert isinstance(found, Blob)
        assert found.body == whole
        chunks = [chunk async for chunk in blobs.get_stream("q/large", chunk=1_000_000)]
        assert [len(chunk) for chunk in chunks] == [1_000_000, 1_000_000, 1_000_000, 500_000]
        assert b"".join(chunks) == whole
        assert blobs.try_now(Get("q/large")) is NotImplemented

    async def test_a_copy_shares_the_chunks_and_outlives_its_source(self, blobs: SqliteBlobs, path: str) -> None:
        await blobs.put_stream("q/large", pieces(3, 1_000_000))
        before = rows(path, "SELECT count(*) FROM chunks")
        assert await blobs.perform(Copy("q/large", "q/copy")) is True
        assert rows(path, "SELECT count(*) FROM chunks") == before
        await blobs.perform(Delete(("q/large",)))
        found = await blobs.perform(Get("q/copy"))
        assert isinstance(found, Blob)
        assert len(found.body) == 3_000_000
        await blobs.perform(Delete(("q/copy",)))
        await until(lambda: rows(path, "SELECT count(*) FROM chunks") == [(0,)])
        assert rows(path, "SELECT count(*) FROM leftovers") == [(0,)]

    async def test_an_object_that_lacks_bytes_is_told_of(self, blobs: SqliteBlobs, path: str) -> None:
        await blobs.put_stream("q/large", pieces(3, 1_000_000))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("DELETE FROM chunks WHERE place = 1")
        with pytest.raises(StoreUnavailable, match="lacks bytes; the file is damaged"):
            await blobs.perform(Get("q/large"))

    async def test_streams_are_kept_apart_even_if_time_stands_still(
        self, blobs: SqliteBlobs, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those that are written, those that are objects, and those of which only chunks are left."""
        monkeypatch.setattr(sqlite_streams, "wall_ns", lambda: 7)
        other = SqliteBlobs(path, fsync=False, watch=False)
        await blobs.put_stream("q/sealed", pieces(3, 1_000_000))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as damaged:
            damaged.execute("INSERT INTO chunks VALUES (20, 0, x'78')")
        first = await blobs._writer.submit(Piece(0, 0, b"x"))
        assert [first, await other._writer.submit(Piece(0, 0, b"y"))] == [21, 22]
        await other.close()
        assert len((await stored(blobs))["q/sealed"]) == 3_000_000

    async def test_a_swap_lets_go_of_the_chunks(self, blobs: SqliteBlobs, path: str) -> None:
        await blobs.put_stream("q/large", pieces(3, 1_000_000))
        page: Any = await blobs.perform(List(""))
        assert isinstance(await blobs.perform(Swap("q/large", b"small", page.items[0].etag)), str)
        await blobs.perform(Delete(("q/none",)))
        await until(lambda: rows(path, "SELECT count(*) FROM chunks") == [(0,)])
        assert await stored(blobs) == {"q/large": b"small"}

    @pytest.mark.parametrize("end", ["taken", "broken"])
    async def test_a_stream_that_comes_to_nothing_leaves_nothing(self, blobs: SqliteBlobs, path: str, end: str) -> None:
        await blobs.perform(Create("q/taken", b"x"))

        async def chunks() -> AsyncIterator[bytes]:
            async for piece in pieces(3, 1_000_000):
                yield piece
            if end == "broken":
                raise RuntimeError("broken")

        with contextlib.suppress(RuntimeError):
            await blobs.put_stream("q/taken", chunks())
        await until(lambda: rows(path, "SELECT count(*) FROM chunks") == [(0,)])
        assert rows(path, "SELECT count(*) FROM leftovers") == [(0,)]
        assert await stored(blobs) == {"q/taken": b"x"}

    async def test_chunks_of_a_dead_writer_are_swept_when_they_are_old(
        self, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        blobs = SqliteBlobs(path, fsync=False, watch=False)
        await blobs._writer.submit(Piece(0, 0, b"x" * 100_000))
        await blobs.close()
        again = SqliteBlobs(path, fsync=False, watch=False)
        await again.perform(Create("q/a", b"x"))
        await again.close()
        assert rows(path, "SELECT count(*) FROM chunks") == [(1,)]
        monkeypatch.setattr(sqlite_upkeep, "LEFTOVER_AGE", -1)
        again = SqliteBlobs(path, fsync=False, watch=False)
        await again.perform(Create("q/b", b"x"))
        await until(lambda: rows(path, "SELECT count(*) FROM chunks") == [(0,)])
        await again.close()

    async def test_a_stream_that_was_swept_under_its_writer_is_an_error(self, blobs: SqliteBlobs, path: str) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"x" * 1_500_000
            with contextlib.closing(sqlite3.connect(path)) as other:
                other.execute("DELETE FROM leftovers")
                other.commit()
            yield b"x" * 1_500_000

        with pytest.raises(StoreUnavailable, match=r"stood still for an hour.*send it again"):
            await blobs.put_stream("q/large", chunks())
        assert await stored(blobs) == {}

    async def test_what_is_deleted_while_it_is_read_is_gone(self, blobs: SqliteBlobs, path: str) -> None:
        await blobs.put_stream("q/large", pieces(30, 1_000_000))
        reading = blobs.get_stream("q/large")
        await anext(reading)
        await blobs.perform(Delete(("q/large",)))
        await until(lambda: rows(path, "SELECT count(*) FROM chunks") == [(0,)])
        with pytest.raises(MessageNotFound, match="q/large"):
            _ = [chunk async for chunk in reading]

    def test_large_payloads_pass_through_little_memory(self, path: str) -> None:
        script = """
import asyncio, resource, sys
from brigade.blobs.sqlite import SqliteBlobs

async def chunks():
    for n in range(200):
        yield bytes([n]) * 1_000_000

async def main(path):
    blobs = SqliteBlobs(path, fsync=False, watch=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await blobs.put_stream("q/large", chunks())
    size = sum([len(chunk) async for chunk in blobs.get_stream("q/large")])
    print(size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    await blobs.close()

asyncio.run(main(sys.argv[1]))
"""
        ran = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
        size, grown = map(int, ran.stdout.split())
        assert size == 200_000_000
        assert grown < 60_000, "kilobytes"


class TestBodies:
    """What is longer than a fifth of a page lies apart from its key."""

    async def test_go_with_their_object(self, blobs: SqliteBlobs, path: str) -> None:
        small, large, larger = b"s", b"l" * 5000, b"L" * 9000
        first: Any = await blobs.perform(Create("q/a", large))
        assert rows(path, "SELECT length(body) FROM bodies") == [(5000,)]
        assert await blobs.perform(Create("q/a", larger)) is CONFLICT
        assert await blobs.perform(Swap("q/a", larger, "no etag")) is CONFLICT
        second: Any = await blobs.perform(Swap("q/a", larger, first))
        assert rows(path, "SELECT length(body) FROM bodies") == [(9000,)]
        assert await blobs.perform(Copy("q/a", "q/b")) is True
        third: Any = await blobs.perform(Swap("q/a", small, second))
        assert await stored(blobs) == {"q/a": small, "q/b": larger}
        assert await blobs.perform(Copy("q/a", "q/b")) is True
        assert rows(path, "SELECT * FROM bodies") == []
        fourth: Any = await blobs.perform(Swap("q/a", large, third))
        assert await stored(blobs) == {"q/a": large, "q/b": small}
        assert await blobs.perform(DeleteIf("q/a", fourth)) == fourth
        await blobs.perform(Create("q/c", large))
        await blobs.perform(Delete(("q/c",)))
        assert rows(path, "SELECT * FROM bodies") == []

    async def test_a_body_that_fails_leaves_no_object(self, blobs: SqliteBlobs, path: str) -> None:
        first: Any = await blobs.perform(Create("q/old", b"o" * 2000))
        writer: Any = blobs
        writer._writer._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 10_000)
        done = await asyncio.gather(
            blobs.perform(Create("q/new", b"x" * 20_000)),
            blobs.perform(Swap("q/old", b"x" * 20_000, first)),
            blobs.perform(Create("q/fine", b"f" * 3000)),
            return_exceptions=True,
        )
        assert [type(one) for one in done] == [StoreUnavailable, StoreUnavailable, str]
        assert await stored(blobs) == {"q/fine": b"f" * 3000, "q/old": b"o" * 2000}
        assert rows(path, "SELECT count(*) FROM bodies") == [(2,)]


class TestSpace:
    async def test_a_queue_that_was_long_gives_its_space_back(self, path: str) -> None:
        blobs = SqliteBlobs(path, fsync=False, watch=False)
        keys = tuple(f"q/{n}" for n in range(2000))
        await asyncio.gather(*(blobs.perform(Create(key, os.urandom(20_000))) for key in keys))
        for start in range(0, 2000, 500):
            await blobs.perform(Delete(keys[start : start + 500]))
        kept = (sqlite_upkeep.FREE_PAGES + sqlite_upkeep.VACUUM_PAGES) * sqlite_file.PAGE
        await until(lambda: rows(path, "PRAGMA page_count")[0][0] * sqlite_file.PAGE <= kept)
        await blobs.close()
        assert Path(path).stat().st_size <= kept

    async def test_the_log_is_copied_into_the_file_and_begun_anew(self, path: str) -> None:
        blobs = SqliteBlobs(path, fsync=False, watch=False)
        for turn in range(12):
            await asyncio.gather(*(blobs.perform(Create(f"q/{turn}/{n}", os.urandom(40_000))) for n in range(50)))
        assert Path(f"{path}-wal").stat().st_size < 6 * sqlite_upkeep.CHECKPOINT_AFTER
        await until(lambda: Path(path).stat().st_size > 5 * sqlite_upkeep.CHECKPOINT_AFTER)
        await blobs.close()


class TestFullDisk:
    async def test_a_full_disk_is_unavailable_and_nothing_is_half_written(self) -> None:
        with small_disk(4) as root:
            path = str(root / "store.db")
            (root / "ballast").write_bytes(b"x" * 1_000_000)
            blobs = SqliteBlobs(path, watch=False)
            etag: Any = await blobs.perform(Create("q/kept", b"k" * 1000))
            number = 0

            async def fill() -> None:
                nonlocal number
                while True:
                    await blobs.perform(Create(f"q/{number}", bytes([number]) * 100_000))
                    number += 1

            with pytest.raises(StoreUnavailable, match=r"no space left.*nothing was written"):
                await fill()
            with pytest.raises(StoreUnavailable, match="no space left"):
                await blobs.perform(Swap("q/kept", b"n" * 200_000, etag))
            with pytest.raises(StoreUnavailable, match="no space left"):
                await blobs.put_stream("q/stream", pieces(3, 1_000_000))
            with pytest.raises(StoreUnavailable, match="no space left"):
                await blobs.perform(Copy("q/0", "q/copy"))
            found = await stored(blobs)
            assert sorted(found) == sorted([f"q/{n}" for n in range(number)] + ["q/kept"])
            assert {len(body) for key, body in found.items() if key != "q/kept"} == {100_000}
            assert found["q/kept"] == b"k" * 1000
            (root / "ballast").unlink()
            await blobs.perform(Delete(("q/0", "q/1", "q/2")))
            assert isinstance(await blobs.perform(Swap("q/kept", b"n" * 1000, etag)), str)
            await blobs.close()
            assert is_sound(path)

    async def test_a_write_that_is_too_large_does_not_spoil_its_neighbours(self) -> None:
        with small_disk(2) as root:
            blobs = SqliteBlobs(str(root / "store.db"), watch=False)
            answers: list[Any] = await asyncio.gather(
                blobs.perform(Create("q/a", b"x")),
                blobs.perform(Create("q/large", b"x" * 5_000_000)),
                blobs.perform(Create("q/b", b"x")),
                return_exceptions=True,
            )
            assert [type(one) for one in answers] == [str, StoreUnavailable, str]
            assert sorted(await stored(blobs)) == ["q/a", "q/b"]
            await blobs.close()

    def test_a_limit_on_file_size_is_unavailable_too(self, path: str) -> None:
        script = """
import asyncio, resource, signal, sys
from brigade.blobs import Create, List
from brigade.blobs.sqlite import SqliteBlobs
from brigade.errors import StoreUnavailable

async def main():
    blobs = SqliteBlobs(sys.argv[1], watch=False)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    try:
        await blobs.perform(Create("q/a", b"x" * 400_000))
    except StoreUnavailable as error:
        print(error)
    print([item.key for item in (await blobs.perform(List(""))).items])

asyncio.run(main())
"""
        ran = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=False)
        assert ran.stderr == ""
        said, listed = ran.stdout.splitlines()
        assert "check the disk" in said
        assert listed == "[]"
