"""The file of sqlite://: how it is made, what it is not mistaken for, older formats, and who may not write it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade.blobs import CONFLICT, Blob, Create, Delete, Get, List, Swap, sqlite_file, sqlite_writer
from brigade.blobs.sqlite import SqliteBlobs
from brigade.blobs.sqlite_file import prepare
from brigade.crypto.keys import Keys, new_key, write_keys
from brigade.errors import ConfigError, PermissionDenied, StoreUnavailable
from sqlite_store import as_nobody, is_sound, path, rows, small_disk, stored, until

__all__ = ["path"]

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


FORMAT_2 = """
PRAGMA page_size = 4096;
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
CREATE TABLE chunks (stream INTEGER NOT NULL, place INTEGER NOT NULL, body BLOB NOT NULL, UNIQUE (stream, place));
CREATE TABLE leftovers (stream INTEGER PRIMARY KEY, since INTEGER NOT NULL);
CREATE TABLE clock (latest INTEGER NOT NULL);
INSERT INTO clock VALUES (0);
CREATE TABLE objects (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    etag INTEGER NOT NULL,
    size INTEGER NOT NULL,
    stream INTEGER,
    body BLOB
);
CREATE INDEX streamed ON objects (stream) WHERE stream IS NOT NULL;
CREATE TABLE changes (id INTEGER PRIMARY KEY, key TEXT NOT NULL);
CREATE TRIGGER changed AFTER UPDATE OF etag ON objects BEGIN
    INSERT INTO changes VALUES (new.etag, new.key);
END;
CREATE TRIGGER deleted AFTER DELETE ON objects WHEN old.stream IS NOT NULL BEGIN
    INSERT OR IGNORE INTO leftovers
        SELECT old.stream, 0 WHERE NOT EXISTS (SELECT 1 FROM objects WHERE stream = old.stream);
END;
CREATE TRIGGER replaced AFTER UPDATE OF stream ON objects WHEN old.stream IS NOT NULL BEGIN
    INSERT OR IGNORE INTO leftovers
        SELECT old.stream, 0 WHERE NOT EXISTS (SELECT 1 FROM objects WHERE stream = old.stream);
END;
PRAGMA application_id = 1112688964;
PRAGMA user_version = 2;
"""
RECENT = 1_790_000_000_123_456_789


class TestTheFile:
    async def test_its_folder_is_made(self, tmp_path: Path) -> None:
        blobs = SqliteBlobs(str(tmp_path / "a" / "b" / "jobs.db"))
        await blobs.perform(Create("q/a", b"x"))
        await blobs.close()
        assert [one.name for one in (tmp_path / "a" / "b").iterdir()] == ["jobs.db"]

    async def test_closing_leaves_one_file_no_thread_and_nothing_open(self, path: str) -> None:
        blobs = SqliteBlobs(path)
        stop = blobs.watch("q/", print)
        assert stop is not None
        await blobs.perform(Create("q/a", b"x"))
        assert await blobs.perform(Get("q/a"))
        await blobs.close()
        assert [one.name for one in Path(path).parent.iterdir()] == ["store.db"]
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

    @pytest.mark.parametrize("size", [500, 1000])
    async def test_damage_is_told_of(self, path: str, size: int) -> None:
        """When the file is opened, or when what is damaged is read."""
        blobs = SqliteBlobs(path)
        for n in range(200):
            await blobs.perform(Create(f"q/{n}", b"x" * size))
        await blobs.close()
        pages = Path(path).stat().st_size // 4096
        for first in (pages // 2, 1):
            with Path(path).open("r+b") as file:
                for place in range(first, pages):
                    file.seek(place * 4096)
                    file.write(b"\xa5" * 4096)
            with pytest.raises(StoreUnavailable, match=r"is damaged .*restore it from a backup"):
                await stored(again := SqliteBlobs(path))
            if first > 1:
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


def make_format_2(path: str) -> None:
    """A file as format 2 had it: two objects that share a stream, one that was swapped, and a stream given up."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.executescript(FORMAT_2)
        old.execute("INSERT INTO objects VALUES (17, 'q/b', 17, 3, NULL, x'616263')")
        old.execute("INSERT INTO objects VALUES (18, 'q/long', 18, 2, 5, NULL)")
        old.execute("INSERT INTO objects VALUES (19, 'q/also', 19, 2, 5, NULL)")
        old.execute("INSERT INTO objects VALUES (16, 'q/c', 16, 3000, NULL, ?)", (b"c" * 3000,))
        old.execute("INSERT INTO objects VALUES (?, 'q/a', ?, 0, NULL, x'')", (RECENT, RECENT))
        old.executemany("INSERT INTO chunks VALUES (?, ?, ?)", [(5, 0, b"x"), (5, 1, b"y"), (6, 0, b"given up")])
        old.execute("INSERT INTO leftovers VALUES (6, 0)")
        old.execute("UPDATE objects SET etag = 20, size = 4, stream = NULL, body = x'61626364' WHERE key = 'q/b'")
        assert old.execute("SELECT * FROM changes").fetchall() == [(20, "q/b")]


class TestTheFormatBefore:
    async def test_its_objects_are_all_there_and_in_order(self, path: str) -> None:
        make_format_2(path)
        blobs = SqliteBlobs(path, fsync=False)
        page: Any = await blobs.perform(List(""))
        assert [(item.key, item.size, item.etag, item.modified) for item in page.items] == [
            ("q/a", 0, f"{RECENT:016x}00000000", RECENT // 1_000_000),
            ("q/also", 2, "000000000000001300000000", 0),
            ("q/b", 4, "000000000000001400000000", 0),
            ("q/c", 3000, "000000000000001000000000", 0),
            ("q/long", 2, "000000000000001200000000", 0),
        ]
        assert await stored(blobs) == {
            "q/a": b"",
            "q/also": b"xy",
            "q/b": b"abcd",
            "q/c": b"c" * 3000,
            "q/long": b"xy",
        }
        assert b"".join([chunk async for chunk in blobs.get_stream("q/long")]) == b"xy"
        await blobs.close()
        assert is_sound(path)
        assert rows(path, "SELECT name FROM sqlite_master WHERE type <> 'index' ORDER BY name") == [
            ("bodies",),
            ("body_replaced",),
            ("chunks",),
            ("deleted",),
            ("leftovers",),
            ("objects",),
            ("pledges",),
            ("replaced",),
        ]
        assert rows(path, "PRAGMA user_version") == [(3,)]
        assert rows(path, "PRAGMA auto_vacuum") == [(2,)]
        assert rows(path, "PRAGMA journal_mode") == [("wal",)]

    async def test_its_objects_can_be_swapped_under_the_etag_that_is_listed(self, path: str) -> None:
        make_format_2(path)
        blobs = SqliteBlobs(path, fsync=False)
        found: Any = await blobs.perform(Get("q/b"))
        assert isinstance(await blobs.perform(Swap("q/b", b"new", found.etag)), str)
        assert await blobs.perform(Swap("q/b", b"newer", found.etag)) is CONFLICT
        assert await blobs.perform(Create("q/a", b"taken")) is CONFLICT
        assert (await stored(blobs))["q/b"] == b"new"
        await blobs.close()

    async def test_its_streams_go_with_the_last_object_that_refers_to_them(self, path: str) -> None:
        make_format_2(path)
        blobs = SqliteBlobs(path, fsync=False)
        await blobs.perform(Delete(("q/also",)))
        await until(lambda: rows(path, "SELECT DISTINCT stream FROM chunks") == [(5,)])
        assert await blobs.perform(Get("q/long")) == Blob(b"xy", "000000000000001200000000", 0)
        assert isinstance(await blobs.perform(Swap("q/long", b"short", "000000000000001200000000")), str)
        await blobs.perform(Delete(("q/none",)))
        await until(lambda: rows(path, "SELECT count(*) FROM chunks") == [(0,)])
        assert rows(path, "SELECT count(*) FROM leftovers") == [(0,)]
        await blobs.close()

    @pytest.mark.parametrize("before", [1, 2])
    def test_many_may_bring_it_up_to_date_at_once(self, tmp_path: Path, before: int) -> None:
        gate = threading.Barrier(4)

        def update(number: int) -> None:
            gate.wait()
            prepare(f"{tmp_path}/{number}.db", fsync=False).close()

        with ThreadPoolExecutor(4) as pool:
            for number in range(20):
                path = f"{tmp_path}/{number}.db"
                with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as old:
                    old.executescript(FORMAT_1 if before == 1 else FORMAT_2)
                    columns = "id, key, size, body" if before == 1 else "id, key, size, body, etag"
                    old.execute(f"INSERT INTO objects ({columns}) VALUES (7, 'q/a', 1, x'78'{', 7' * (before - 1)})")
                list(pool.map(update, [number] * 4))
                assert rows(path, "SELECT key, etag, body FROM objects") == [("q/a", "000000000000000700000000", b"x")]
                assert is_sound(path)


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
