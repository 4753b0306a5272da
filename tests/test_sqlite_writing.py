"""Writes to sqlite://: etags, keys, commits that are shared, and calls that are answered at once."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from brigade.blobs import CONFLICT, UNKNOWN, Blob, Create, Delete, DeleteIf, Get, List, Swap, sqlite_file, sqlite_writer
from brigade.blobs.sqlite import SqliteBlobs
from brigade.clock import SystemClock
from brigade.errors import StoreUnavailable
from sqlite_store import blobs, path, stored

__all__ = ["blobs", "path"]


class TestEtags:
    async def test_etags_are_new_even_if_time_stands_still(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also where another process wrote before, and its objects are gone."""
        moment = time.time_ns()
        monkeypatch.setattr(sqlite_writer, "wall_ns", lambda: moment)
        seen: set[str] = set()
        for _ in range(4):
            blobs = SqliteBlobs(path, fsync=False, watch=False)
            for _ in range(3):
                etag: Any = await blobs.perform(Create("q/a", b"same"))
                assert etag not in seen
                seen.add(etag)
                etag = await blobs.perform(Swap("q/a", b"same", etag))
                assert etag not in seen
                seen.add(etag)
                await blobs.perform(Delete(("q/a",)))
            await blobs.close()
            moment -= 3_600_000_000_000

    async def test_etags_of_a_writer_grow(self, blobs: SqliteBlobs) -> None:
        last = ""
        for n in range(5):
            etag: Any = await blobs.perform(Create(f"q/{n}", b"x"))
            swapped: Any = await blobs.perform(Swap(f"q/{n}", b"y", etag))
            assert last < etag < swapped
            last = swapped

    @pytest.mark.parametrize("etag", ["", "-1", "0x1", "zz", "f" * 40, "00", " 1", "1_0"])
    async def test_what_never_was_an_etag_is_a_conflict(self, blobs: SqliteBlobs, etag: str) -> None:
        await blobs.perform(Create("q/a", b"x"))
        assert await blobs.perform(Swap("q/a", b"y", etag)) is CONFLICT
        assert await blobs.perform(DeleteIf("q/a", etag)) is CONFLICT


HOSTILE = [
    "q/'; DROP TABLE objects; --",
    "q/%_*?[",
    'q/"',
    "q/a\0b",
    "q/a",
    "q/ü/\U0001f600",
    "q/\U0010ffff",
    "q/..",
    "q/\ud7ff",
]


async def test_any_text_is_a_key(blobs: SqliteBlobs) -> None:
    for key in HOSTILE:
        assert isinstance(await blobs.perform(Create(key, key.encode())), str)
    assert await stored(blobs) == {key: key.encode() for key in sorted(HOSTILE)}
    for prefix in [*HOSTILE, "q/a\0", "q/\U0010fffe", "", "\U0010ffff"]:
        page: Any = await blobs.perform(List(prefix))
        assert [item.key for item in page.items] == [key for key in sorted(HOSTILE) if key.startswith(prefix)]
    with pytest.raises(UnicodeEncodeError):
        await blobs.perform(Create("q/\ud800", b"x"))


async def test_a_listing_is_good_for_longer_while_nobody_else_writes(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not, as soon as somebody was seen to, or when the last look is a while ago."""
    now = time.time_ns()

    def tick() -> int:
        nonlocal now
        now += 1000
        return now

    async def write(blobs: SqliteBlobs, after: float) -> None:
        nonlocal now
        now += int(after * 1e9)
        await blobs.perform(Create(f"q/{now}", b"x"))

    monkeypatch.setattr(sqlite_writer, "wall_ns", tick)
    blobs, other = SqliteBlobs(path, watch=False), SqliteBlobs(path, watch=False)
    found: list[float] = []
    for writer, after in ((blobs, 0), (blobs, 0.2), (other, 0.001), (blobs, 0.011), (blobs, 0.05), (blobs, 0.1)):
        await write(writer, after)
        found.append(blobs.listing_ttl)
    assert found == [0.1, 1.0, 1.0, 0.1, 0.1, 1.0]
    now += 50_000_000
    assert blobs.listing_ttl == 0.1
    await blobs.close()
    await other.close()


class TestSharedCommits:
    async def test_writes_that_come_together_share_a_transaction(self, path: str) -> None:
        blobs = SqliteBlobs(path, watch=False)
        answers = await asyncio.gather(*(blobs.perform(Create(f"q/{n}", b"x")) for n in range(200)))
        assert len(set(answers)) == 200
        assert blobs.commits <= 20
        await blobs.close()

    async def test_one_that_fails_does_not_spoil_the_others(self, blobs: SqliteBlobs) -> None:
        await blobs.perform(Create("q/taken", b"x"))
        answers: list[Any] = await asyncio.gather(
            blobs.perform(Create("q/a", b"x")),
            blobs.perform(Create("q/taken", b"y")),
            blobs.perform(Create("q/\ud800", b"y")),
            blobs.perform(Swap("q/none", b"y", "1")),
            blobs.perform(Delete(("q/none", "q/\ud800"))),
            blobs.perform(Create("q/b", b"x")),
            return_exceptions=True,
        )
        assert [type(one) for one in answers] == [
            str,
            type(CONFLICT),
            UnicodeEncodeError,
            type(CONFLICT),
            UnicodeEncodeError,
            str,
        ]
        assert sorted(await stored(blobs)) == ["q/a", "q/b", "q/taken"]

    async def test_what_is_waiting_when_it_is_closed_is_still_answered(self, path: str) -> None:
        blobs = SqliteBlobs(path, watch=False)
        waiting = [asyncio.ensure_future(blobs.perform(Create(f"q/{n}", b"x"))) for n in range(50)]
        await asyncio.sleep(0)
        await blobs.close()
        assert all(isinstance(one, str) for one in await asyncio.gather(*waiting))
        with pytest.raises(StoreUnavailable, match="hub was closed"):
            await blobs.perform(Create("q/late", b"x"))
        assert blobs.try_now(Get("q/1")) is NotImplemented

    async def test_a_commit_that_may_have_happened_is_unknown(
        self, blobs: SqliteBlobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A log that was written and not synced may be found whole after a crash."""
        etag: Any = await blobs.perform(Create("q/a", b"x"))
        real = blobs._writer._connection
        assert real is not None

        class Failing:
            in_transaction = property(lambda self: real.in_transaction)
            executemany = real.executemany
            close = real.close

            def execute(self, sql: str, *args: Any) -> Any:
                if sql == "COMMIT":
                    error = sqlite3.OperationalError("disk I/O error")
                    error.sqlite_errorcode, error.sqlite_errorname = 1034, "SQLITE_IOERR_FSYNC"
                    raise error
                return real.execute(sql, *args)

        monkeypatch.setattr(blobs._writer, "_connection", Failing())
        assert await blobs.perform(Create("q/b", b"x")) is UNKNOWN
        assert await blobs.perform(Swap("q/a", b"y", etag)) is UNKNOWN
        assert await blobs.perform(DeleteIf("q/a", etag)) is UNKNOWN
        with pytest.raises(StoreUnavailable, match=r"disk I/O error; check the disk"):
            await blobs.perform(Delete(("q/a",)))
        monkeypatch.undo()
        assert await stored(blobs) == {"q/a": b"x"}


class TestAtOnce:
    async def test_reads_are_answered_at_once_and_synced_writes_are_not(self, path: str) -> None:
        blobs = SqliteBlobs(path, watch=False)
        await blobs.open(SystemClock())
        assert blobs.try_now(Create("q/a", b"x")) is NotImplemented
        etag: Any = await blobs.perform(Create("q/a", b"x"))
        found = blobs.try_now(Get("q/a"))
        assert isinstance(found, Blob)
        assert found.etag == etag
        assert blobs.try_now(Get("q/b")) is None
        page: Any = blobs.try_now(List(""))
        assert [item.key for item in page.items] == ["q/a"]
        await blobs.close()

    async def test_another_thread_than_the_loops_may_wait_for_the_disk(self, path: str) -> None:
        blobs = SqliteBlobs(path, watch=False)
        await blobs.open(SystemClock())
        etag: Any = await asyncio.to_thread(blobs.try_now, Create("q/a", b"x"))
        assert isinstance(await asyncio.to_thread(blobs.try_now, Swap("q/a", b"y", etag)), str)
        assert await asyncio.to_thread(blobs.try_now, Create("q/a", b"x")) is CONFLICT
        assert await asyncio.to_thread(blobs.try_now, Delete(("q/a",))) is None
        assert await asyncio.to_thread(blobs.try_now, Create("q/big", b"x" * 500_000)) is NotImplemented
        assert await stored(blobs) == {}
        assert blobs.requests() == {"create": 2, "swap": 1, "delete": 1, "list": 1}
        await blobs.close()

    async def test_nobody_waits_for_another_processs_lock(self, path: str) -> None:
        blobs = SqliteBlobs(path, fsync=False, watch=False)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert blobs.try_now(Create("q/a", b"x")) is NotImplemented
            assert blobs.try_now(Get("q/a")) is None
            writing = asyncio.ensure_future(blobs.perform(Create("q/a", b"x")))
            done, _ = await asyncio.wait([writing], timeout=0.05)
            assert not done
            other.execute("ROLLBACK")
        assert isinstance(await writing, str)
        await blobs.close()

    async def test_a_lock_that_is_held_for_long_is_told_of(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        blobs = SqliteBlobs(path, fsync=False, watch=False)
        monkeypatch.setattr(sqlite_file, "PATIENCE", 0.05)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match="held by another process"):
                await blobs.perform(Create("q/a", b"x"))
        assert isinstance(await blobs.perform(Create("q/a", b"x")), str)
        await blobs.close()

    async def test_callers_threads_and_the_loop_do_not_trip_over_each_other(self, path: str) -> None:
        blobs = SqliteBlobs(path, watch=False)
        await blobs.open(SystemClock())

        def caller(number: int) -> set[str]:
            missed: set[str] = set()
            for n in range(50):
                key = f"q/{number}/{n}"
                if blobs.try_now(Create(key, b"x")) is NotImplemented:
                    missed.add(key)
                blobs.try_now(Get(key))
            return missed

        with ThreadPoolExecutor(3) as threads:
            callers = [asyncio.wrap_future(threads.submit(caller, number)) for number in range(3)]
            await asyncio.gather(*(blobs.perform(Create(f"q/loop/{n}", b"x")) for n in range(50)))
            missed = set[str]().union(*await asyncio.gather(*callers))
        everything = {f"q/{number}/{n}" for number in range(3) for n in range(50)} | {f"q/loop/{n}" for n in range(50)}
        assert set(await stored(blobs)) == everything - missed
        await blobs.close()
