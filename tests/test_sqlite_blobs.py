"""What is only about SQLite: its file, shared commits, dead processes, forks, full disks, and space given back."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade.blobs import (
    CONFLICT,
    UNKNOWN,
    Blob,
    Copy,
    Create,
    Delete,
    DeleteIf,
    Get,
    List,
    Swap,
    sqlite_file,
    sqlite_upkeep,
    sqlite_writer,
)
from brigade.blobs.sqlite import SqliteBlobs
from brigade.blobs.sqlite_file import prepare
from brigade.blobs.sqlite_streams import Piece
from brigade.clock import SystemClock
from brigade.crypto.keys import Keys, new_key, write_keys
from brigade.errors import ConfigError, MessageNotFound, PermissionDenied, StoreUnavailable

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


FORMAT_1 = """
PRAGMA page_size = 4096;
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
CREATE TABLE objects (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, stream INTEGER, body BLOB
);
CREATE INDEX streamed ON objects (stream) WHERE stream IS NOT NULL;
CREATE TABLE chunks (stream INTEGER NOT NULL, place INTEGER NOT NULL, body BLOB NOT NULL, UNIQUE (stream, place));
CREATE TABLE leftovers (stream INTEGER PRIMARY KEY, since INTEGER NOT NULL);
CREATE TABLE clock (latest INTEGER NOT NULL);
INSERT INTO clock VALUES (0);
CREATE TRIGGER deleted AFTER DELETE ON objects WHEN old.stream IS NOT NULL BEGIN
    INSERT OR IGNORE INTO leftovers
        SELECT old.stream, 0 WHERE NOT EXISTS (SELECT 1 FROM objects WHERE stream = old.stream);
END;
CREATE TRIGGER replaced AFTER UPDATE OF stream ON objects WHEN old.stream IS NOT NULL BEGIN
    INSERT OR IGNORE INTO leftovers
        SELECT old.stream, 0 WHERE NOT EXISTS (SELECT 1 FROM objects WHERE stream = old.stream);
END;
PRAGMA application_id = 1112688964;
PRAGMA user_version = 1;
"""


class TestTheFile:
    async def test_its_folder_is_made(self, tmp_path: Path) -> None:
        blobs = SqliteBlobs(str(tmp_path / "a" / "b" / "jobs.db"))
        await blobs.perform(Create("q/a", b"x"))
        await blobs.close()
        assert sorted(one.name for one in (tmp_path / "a" / "b").iterdir()) == ["jobs.db", "jobs.db-news"]

    async def test_closing_leaves_its_files_no_thread_and_nothing_open(self, path: str) -> None:
        blobs = SqliteBlobs(path)
        stop = blobs.watch("q/", print)
        assert stop is not None
        await blobs.perform(Create("q/a", b"x"))
        assert await blobs.perform(Get("q/a"))
        await blobs.close()
        assert sorted(one.name for one in Path(path).parent.iterdir()) == ["store.db", "store.db-news"]
        assert Path(f"{path}-news").read_bytes() == b""
        names = ("brigade-sqlite", "brigade-watch")
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith(names)] == []
        if sys.platform == "linux":
            files = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
            assert [name for name in map(str, map(_target, files)) if path in name] == []

    def test_many_may_make_it_at_once(self, tmp_path: Path) -> None:
        """None of them takes what another one has half made for a database of another program."""
        gate = threading.Barrier(4)

        def make(number: int) -> None:
            gate.wait()
            prepare(f"{tmp_path}/{number}.db", fsync=False).close()

        with ThreadPoolExecutor(4) as pool:
            for number in range(50):
                list(pool.map(make, [number] * 4))

    async def test_an_empty_file_will_do(self, path: str) -> None:
        Path(path).touch()
        blobs = SqliteBlobs(path)
        assert isinstance(await blobs.perform(Create("q/a", b"x")), str)
        await blobs.close()

    async def test_a_file_that_is_no_database_is_left_alone(self, path: str) -> None:
        Path(path).write_text("I am a letter to my aunt, and longer than a hundred bytes. " * 5)
        before = Path(path).read_bytes()
        with pytest.raises(ConfigError, match=r"is not a SQLite database; name another file"):
            SqliteBlobs(path)
        assert Path(path).read_bytes() == before

    async def test_a_database_of_another_program_is_left_alone(self, path: str) -> None:
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TABLE aunts (name TEXT)")
            other.commit()
        before = Path(path).read_bytes()
        with pytest.raises(ConfigError, match="of another program; name another file"):
            SqliteBlobs(path)
        assert Path(path).read_bytes() == before

    async def test_a_file_of_the_first_format_is_brought_up_to_date(self, path: str) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as old:
            old.executescript(FORMAT_1)
            old.execute("INSERT INTO objects VALUES (17, 'q/a', 3, NULL, x'616263')")
            old.execute("INSERT INTO objects VALUES (18, 'q/long', 2, 5, NULL)")
            old.executemany("INSERT INTO chunks VALUES (5, ?, ?)", [(0, b"x"), (1, b"y")])
        blobs = SqliteBlobs(path)
        etag = "000000000000001100000000"
        assert await blobs.perform(Get("q/a")) == Blob(b"abc", etag, 0)
        assert await blobs.perform(Get("q/long")) == Blob(b"xy", "000000000000001200000000", 0)
        assert isinstance(await blobs.perform(Swap("q/a", b"new", etag)), str)
        assert await blobs.perform(Swap("q/a", b"newer", etag)) is CONFLICT
        await blobs.perform(Delete(("q/long",)))
        await blobs.close()
        again = SqliteBlobs(path)
        assert await stored(again) == {"q/a": b"new"}
        await again.close()
        assert is_sound(path)

    async def test_a_newer_format_is_refused(self, path: str) -> None:
        await SqliteBlobs(path).close()
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("PRAGMA user_version = 4")
        with pytest.raises(ConfigError, match=r"has format 4, and this version of Brigade knows 3; install a newer"):
            SqliteBlobs(path)

    async def test_a_directory_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"is a directory; .* needs a file"):
            SqliteBlobs(str(tmp_path))

    async def test_a_file_in_the_way_of_its_folder_is_explained(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StoreUnavailable, match="check the disk"):
            SqliteBlobs(str(tmp_path / "file" / "jobs.db"))

    async def test_network_file_systems_are_refused(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_file, "is_network_filesystem", lambda _: True)
        with pytest.raises(ConfigError, match=r"network file system.*use file://"):
            SqliteBlobs(path)

    async def test_a_database_that_is_removed_is_told_of(self, path: str) -> None:
        blobs = SqliteBlobs(path)
        await blobs.perform(Create("q/a", b"x"))
        Path(path).unlink()
        await asyncio.sleep(2 * sqlite_writer.CHECKED_FOR / 1e9)
        for key in ("q/b", "q/c", "q/d"):
            with pytest.raises(StoreUnavailable, match="removed or replaced while it was open"):
                await blobs.perform(Create(key, b"x"))
        await blobs.close()

    async def test_damage_is_told_of(self, path: str) -> None:
        blobs = SqliteBlobs(path)
        for n in range(200):
            await blobs.perform(Create(f"q/{n}", b"x" * 1000))
        await blobs.close()
        with Path(path).open("r+b") as file:
            for place in range(1, 30):
                file.seek(place * 4096)
                file.write(b"\xa5" * 4096)
        again = SqliteBlobs(path)
        with pytest.raises(StoreUnavailable, match=r"is damaged .*restore it from a backup"):
            await stored(again)
        await again.close()

    async def test_a_url_opens_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        async with brigade.connect_async("sqlite://./a%20b.db?fsync=off&watch=no") as hub:
            await (await hub.queue("tasks")).enqueue("hello")
        assert (tmp_path / "a b.db").is_file()
        with pytest.raises(ConfigError, match=r"needs a file: write sqlite://\./jobs\.db"):
            brigade.connect("sqlite://")
        with pytest.raises(ConfigError, match="has no option 'sync'"):
            brigade.connect("sqlite://./x.db?sync=on")


async def test_what_is_sealed_is_not_in_the_file(path: str, tmp_path: Path) -> None:
    name, key = new_key(0)
    write_keys(tmp_path / "keys", Keys(name, {name: key}), replace=False)
    options = {"encryption": f"file:{tmp_path}/keys"}
    async with brigade.connect_async(f"sqlite://{path}", **options) as hub:
        await (await hub.queue("tasks")).enqueue("a secret that nobody may read")
    assert b"nobody may read" not in Path(path).read_bytes()
    async with brigade.connect_async(f"sqlite://{path}", **options) as hub:
        (message,) = await (await hub.queue("tasks")).claim()
        assert message.data == "a secret that nobody may read"


def _target(link: Path) -> Path | None:
    with contextlib.suppress(FileNotFoundError):
        return link.readlink()
    return None


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


RACER = """
import asyncio, sys
from brigade.blobs import CONFLICT, Create, Get, Swap
from brigade.blobs.sqlite import SqliteBlobs

async def main(path, times, name):
    blobs = SqliteBlobs(path, fsync=False, watch=False)
    wins = 0
    for n in range(times):
        wins += await blobs.perform(Create(f"q/create/{n}", name.encode())) is not CONFLICT
    done = 0
    while done < times:
        found = await blobs.perform(Get("q/n"))
        done += await blobs.perform(Swap("q/n", str(int(found.body) + 1).encode(), found.etag)) is not CONFLICT
    print(wins)
    await blobs.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
"""

WRITER = """
import asyncio, hashlib, sys
from brigade.blobs import Create, Swap
from brigade.blobs.sqlite import SqliteBlobs

def body(n):
    data = bytes([n % 256]) * (n % 40 * 1000)
    return hashlib.sha256(data).digest() + data

async def main(path, name):
    blobs = SqliteBlobs(path, watch=False)
    etag = await blobs.perform(Create(f"q/{name}/swapped", body(0)))
    n = 0
    while True:
        n += 1
        swapping = asyncio.ensure_future(blobs.perform(Swap(f"q/{name}/swapped", body(n), etag)))
        await blobs.perform(Create(f"q/{name}/made/{n}", body(n)))
        etag = await swapping
        print(n, etag, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


class TestProcesses:
    async def test_processes_race_and_one_wins(self, path: str) -> None:
        blobs = SqliteBlobs(path, fsync=False, watch=False)
        await blobs.perform(Create("q/n", b"0"))
        times, names = 40, ("a", "b", "c")
        racers = [
            subprocess.Popen([sys.executable, "-c", RACER, path, str(times), name], stdout=subprocess.PIPE, text=True)
            for name in names
        ]
        wins = [int(racer.communicate()[0]) for racer in racers]
        assert sum(wins) == times
        found = await stored(blobs)
        assert found.pop("q/n") == str(times * len(names)).encode()
        assert sorted(wins) == sorted(list(found.values()).count(name.encode()) for name in names)
        await blobs.close()

    async def test_writers_killed_by_sigkill_lose_nothing_that_was_answered(self, path: str) -> None:
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, path, str(name)], stdout=subprocess.PIPE, text=True)
            for name in range(3)
        ]
        told: list[list[str]] = []
        for place, writer in enumerate(writers):
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(20 * (place + 1))]
            writer.send_signal(signal.SIGKILL)
            lines += writer.communicate()[0].splitlines()
            told.append([line for line in lines if line.count(" ") == 1][:-1])
        assert is_sound(path)
        blobs = SqliteBlobs(path, watch=False)
        found = await stored(blobs)
        for key, body in found.items():
            assert hashlib.sha256(body[32:]).digest() == body[:32], key
        for name, lines in enumerate(told):
            assert len(lines) > 10
            for line in lines:
                assert f"q/{name}/made/{line.split()[0]}" in found
            blob = await blobs.perform(Get(f"q/{name}/swapped"))
            assert isinstance(blob, Blob)
            assert blob.etag >= lines[-1].split()[1]
            assert isinstance(await blobs.perform(Swap(f"q/{name}/swapped", b"mine", blob.etag)), str)
        await blobs.close()

    async def test_many_processes_may_make_it_at_once(self, path: str) -> None:
        script = "import sys; from brigade.blobs.sqlite import SqliteBlobs; SqliteBlobs(sys.argv[1], watch=False)"
        makers = [subprocess.Popen([sys.executable, "-c", script, path], stderr=subprocess.PIPE) for _ in range(6)]
        assert [maker.communicate()[1] for maker in makers] == [b""] * 6
        assert is_sound(path)


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


class TestForks:
    async def test_a_child_has_connections_of_its_own(self, blobs: SqliteBlobs, path: str) -> None:
        await blobs.perform(Create("q/parent", b"x"))
        before = blobs._writer._connection

        def work() -> str:
            assert blobs._writer._connection is None
            assert blobs._reader is None
            assert isinstance(blobs.try_now(Create("q/child", b"x")), str)
            assert blobs._writer._connection is not before
            return ",".join(sorted(asyncio.run(stored(blobs))))

        assert in_child(work) == "q/child,q/parent"
        assert blobs._writer._connection is before
        assert isinstance(await blobs.perform(Create("q/after", b"x")), str)
        assert sorted(await stored(blobs)) == ["q/after", "q/child", "q/parent"]

    async def test_a_log_that_a_child_writes_to_outlives_its_parents_end(self, path: str) -> None:
        """SQLite counts its locks per process: inherited ones would let the parent remove the log under the child."""
        parent = SqliteBlobs(path, fsync=False, watch=False)
        await parent.perform(Create("q/parent", b"x"))
        ready, go = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            try:
                own = SqliteBlobs(path, fsync=False, watch=False)
                assert isinstance(own.try_now(Create("q/before", b"x")), str)
                os.write(ready[1], b"x")
                os.read(go[0], 1)
                assert isinstance(own.try_now(Create("q/after", b"x")), str)
            finally:
                os._exit(0)
        os.read(ready[0], 1)
        await parent.close()
        os.write(go[1], b"x")
        os.waitpid(child, 0)
        for fd in (*ready, *go):
            os.close(fd)
        again = SqliteBlobs(path, fsync=False, watch=False)
        assert sorted(await stored(again)) == ["q/after", "q/before", "q/parent"]
        await again.close()
        assert is_sound(path)

    async def test_two_threads_may_fork_at_once(self, blobs: SqliteBlobs) -> None:
        await blobs.perform(Create("q/parent", b"x"))

        def work() -> str:
            while (found := blobs.try_now(Get("q/parent"))) is NotImplemented:  # Others are opening theirs.
                time.sleep(0.001)
            return type(found).__name__

        said = await asyncio.gather(*(asyncio.to_thread(in_child, work) for _ in range(8)))
        assert said == ["Blob"] * 8
        assert isinstance(await blobs.perform(Create("q/after", b"x")), str)

    async def test_forks_in_the_middle_of_writes_harm_nobody(self, path: str) -> None:
        blobs = SqliteBlobs(path, fsync=False, watch=False)
        writing = asyncio.ensure_future(_write_many(blobs))
        for n in range(5):
            await asyncio.sleep(0.01)
            said = await asyncio.to_thread(in_child, lambda n=n: str(type(blobs.try_now(Create(f"q/child/{n}", b"x")))))
            assert said in ("<class 'str'>", "<class 'NotImplementedType'>")
        count = await writing
        assert len([key for key in await stored(blobs) if key.startswith("q/many")]) == count
        await blobs.close()
        assert is_sound(path)


async def _write_many(blobs: SqliteBlobs) -> int:
    for n in range(300):
        assert isinstance(await blobs.perform(Create(f"q/many/{n}", os.urandom(2000))), str)
    return 300


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


def as_nobody(work: Callable[[], str]) -> str:
    """What `work` says in a process without root's privileges."""

    def unprivileged() -> str:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setegid(NOBODY)
            os.seteuid(NOBODY)
        return work()

    return in_child(unprivileged)


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that everybody may look into."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


class TestPermissions:
    def open(self, path: Path) -> Callable[[], str]:
        def work() -> str:
            SqliteBlobs(str(path), watch=False)
            return "opened"

        return work

    async def test_a_directory_that_may_not_be_written_is_permission_denied(self, shared_folder: Path) -> None:
        for place in (shared_folder / "jobs.db", shared_folder / "below" / "jobs.db"):
            said = as_nobody(self.open(place))
            assert said.startswith("PermissionDenied")
            assert "check" in said

    async def test_a_file_that_may_not_be_written_is_permission_denied(self, shared_folder: Path) -> None:
        path = shared_folder / "jobs.db"
        await SqliteBlobs(str(path), watch=False).close()
        path.chmod(0o444)
        assert as_nobody(self.open(path)).startswith("PermissionDenied")
        shared_folder.chmod(0o777)
        said = as_nobody(self.open(path))
        assert said.startswith("PermissionDenied")
        assert "check the owner and mode of the file" in said

    async def test_a_read_only_file_system_is_permission_denied(self) -> None:
        with small_disk(1) as root:
            await SqliteBlobs(str(root / "jobs.db"), watch=False).close()
            subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
            with pytest.raises(PermissionDenied):
                SqliteBlobs(str(root / "jobs.db"), watch=False)


CLAIMER = """
import sys
import brigade
with brigade.connect(sys.argv[1]) as hub:
    queue = hub.queue("tasks")
    print("waiting", flush=True)
    for message in queue.claim(wait=60):
        print(message.data, flush=True)
        queue.ack(message)
"""


class TestWatching:
    async def test_watching_can_be_switched_off(self, blobs: SqliteBlobs) -> None:
        assert blobs.watch("q/", print) is None

    async def test_a_watcher_that_breaks_wakes_everybody_once_and_says_so(
        self, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        import watchfiles._rust_notify

        def broken(*_: Any, **__: Any) -> Iterator[Any]:
            raise OSError("inotify watch limit reached")

        monkeypatch.setattr(watchfiles._rust_notify, "RustNotify", broken)
        blobs = SqliteBlobs(path, fsync=False)
        woken: list[str] = []
        with caplog.at_level("WARNING", "brigade"):
            assert blobs.watch("q/x/", woken.append) is not None
            await until(lambda: caplog.records)
        assert "inotify watch limit reached" in caplog.text
        assert "polling" in caplog.text
        assert blobs.watch("q/y/", print) is None
        await blobs.close()
        assert woken == ["q/x/"]

    async def test_every_write_is_told_once_however_many_they_are(self, path: str) -> None:
        watching, writing = SqliteBlobs(path, fsync=False), SqliteBlobs(path, fsync=False)
        woken: list[str] = []
        assert watching.watch("q/a/", woken.append) is not None
        await until(lambda: woken == ["q/a/"])
        for n in range(50):
            await writing.perform(Create(f"q/a/{n:02}", b"x"))
            await writing.perform(Create(f"q/b/{n:02}", b"x"))
        await until(lambda: len(woken) >= 51)
        assert woken[1:] == [f"q/a/{n:02}" for n in range(50)]
        await watching.close()
        await writing.close()

    def test_a_claimer_of_another_process_is_woken(self, path: str) -> None:
        url = f"sqlite://{path}"
        with brigade.connect(url) as hub:
            queue = hub.queue("tasks")
            claimer = subprocess.Popen([sys.executable, "-c", CLAIMER, url], stdout=subprocess.PIPE, text=True)
            assert claimer.stdout is not None
            assert claimer.stdout.readline() == "waiting\n"
            queue.enqueue("hello")
            assert claimer.communicate(timeout=SOON)[0] == "hello\n"
            assert claimer.returncode == 0
