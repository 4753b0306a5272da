"""Who listens on sqlite:// is told which keys were written."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade.blobs import CONFLICT, Copy, Create, Delete, DeleteIf, Swap, sqlite_watch, sqlite_writer
from brigade.blobs.sqlite import SqliteBlobs
from brigade.blobs.sqlite_watch import NewsWatch
from sqlite_store import SOON, as_nobody, blobs, in_child, path, pieces, rows, stored, until

__all__ = ["blobs", "path"]

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


def news(path: str) -> Path:
    return Path(f"{path}-news")


@contextlib.asynccontextmanager
async def listening(path: str, prefix: str = "q/") -> AsyncIterator[tuple[SqliteBlobs, list[str]]]:
    """A bucket that listens, and what it was told since everybody looked first."""
    blobs = SqliteBlobs(path, fsync=False)
    told: list[str] = []
    assert blobs.watch(prefix, told.append) is not None
    await until(lambda: told == [prefix])
    told.clear()
    try:
        yield blobs, told
    finally:
        await blobs.close()


class TestNews:
    """What is in the file, and what becomes of it."""

    async def test_all_that_writes_bytes_is_told_in_order_and_nothing_else(self, path: str) -> None:
        writing = SqliteBlobs(path, fsync=False, watch=False)
        async with listening(path) as (_, told):
            etag: Any = await writing.perform(Create("q/a", b"x"))
            assert await writing.perform(Create("q/a", b"x")) is CONFLICT
            etag = await writing.perform(Swap("q/a", b"y", etag))
            assert await writing.perform(Swap("q/a", b"y", "never")) is CONFLICT
            await writing.perform(Copy("q/a", "q/copy"))
            assert await writing.perform(Copy("q/none", "q/nothing")) is False
            await writing.perform(DeleteIf("q/a", etag))
            await writing.perform(Delete(("q/copy",)))
            await writing.put_stream("q/long", pieces(3, 1_000_000))
            assert isinstance(writing.try_now(Create("q/at once", b"x")), str)
            writing.try_all([Create("q/1", b"x"), Create("q/1", b"x"), Create("q/2", b"x")])
            await until(lambda: told[-1:] == ["q/2"])
            assert told == ["q/a", "q/a", "q/copy", "q/long", "q/at once", "q/1", "q/2"]
        await writing.close()

    async def test_any_text_is_told(self, path: str) -> None:
        keys = ["q/\n", "q/a\nb\r\n", "q/\0", 'q/"\\', "q/#0123456789abcdef", "q/ü/\U0001f600\u2028", "q/\U0010ffff"]
        async with listening(path) as (blobs, told):
            for key in keys:
                await blobs.perform(Create(key, b"x"))
            await until(lambda: len(told) >= len(keys))
            assert told == keys

    async def test_writes_of_many_writers_are_all_told(self, path: str) -> None:
        writers = [SqliteBlobs(path, fsync=False, watch=False) for _ in range(3)]
        async with listening(path) as (_, told), listening(path) as (_, others):
            await asyncio.gather(
                *(writer.perform(Create(f"q/{w}/{n:03}", b"x")) for n in range(100) for w, writer in enumerate(writers))
            )
            for heard in (told, others):
                await until(lambda heard=heard: len(heard) >= 300)
                for w in range(3):
                    assert [key for key in heard if key.startswith(f"q/{w}/")] == [f"q/{w}/{n:03}" for n in range(100)]
        for writer in writers:
            await writer.close()

    async def test_nothing_is_missed_by_who_starts_to_listen_between_writes(self, path: str) -> None:
        """What was not told was there when everybody was let look."""
        writing, stop = SqliteBlobs(path, fsync=False, watch=False), threading.Event()
        written: list[str] = []

        def write() -> None:
            while not stop.is_set():
                key = f"q/{len(written):05}"
                if isinstance(writing.try_now(Create(key, b"x")), str):
                    written.append(key)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(5):
                watch, told, seen = NewsWatch(path), list[str](), set[str]()

                def wake(key: str, told: list[str] = told, seen: set[str] = seen) -> None:
                    if key == "q/":
                        seen.update(key for (key,) in rows(path, "SELECT key FROM objects"))
                    told.append(key)

                watch.subscribe("q/", wake)
                await until(lambda told=told: len(told) > 20)
                reached = len(written)
                await until(lambda told=told, reached=reached: told[-1] > f"q/{reached:05}")
                missed = set(written[:reached]) - seen - set(told)
                watch.close()
                assert not missed
        finally:
            stop.set()
            writer.join()
            await writing.close()

    async def test_who_found_nobody_listening_asks_again_a_moment_later(
        self, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moment, asked = [10**9], list[int]()

        def flock(fd: int, how: int) -> None:
            asked.append(moment[0])
            fcntl.flock(fd, how)

        monkeypatch.setattr(sqlite_watch, "monotonic_ns", lambda: moment[0])
        monkeypatch.setattr(sqlite_watch, "flock", flock)
        blobs = SqliteBlobs(path, fsync=False, watch=False)
        for n in range(30):
            await blobs.perform(Create(f"q/{n}", b"x"))
            moment[0] += sqlite_watch.DEAF_FOR // 10
        assert asked == [10**9 + turn * sqlite_watch.DEAF_FOR for turn in (0, 0, 1, 1, 2, 2)]
        await blobs.close()

    async def test_where_nobody_listens_nothing_is_written(self, path: str) -> None:
        blobs = SqliteBlobs(path, fsync=False)
        for n in range(20):
            while blobs.try_now(Create(f"q/{n}", b"x")) is NotImplemented:  # The log is being made long.
                pass
            await blobs.perform(Create(f"q/more/{n}", b"x"))
            assert news(path).read_bytes() == b""
        await blobs.close()

    async def test_what_nobody_listens_to_any_more_goes(self, path: str) -> None:
        writing = SqliteBlobs(path, fsync=False, watch=False)
        async with listening(path) as (_, told):
            await writing.perform(Create("q/a", b"x"))
            await until(lambda: told == ["q/a"])
            assert b'"q/a"' in news(path).read_bytes()
        await writing.perform(Create("q/b", b"x"))
        assert news(path).read_bytes() == b""
        await writing.close()

    async def test_a_file_that_is_long_is_begun_anew_and_nothing_is_missed(
        self, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who listens is told to look, or told of the key."""
        monkeypatch.setattr(sqlite_watch, "LONGEST", 300)
        longest = 0
        seen: set[str] = set()
        blobs = SqliteBlobs(path, fsync=False)

        def wake(key: str) -> None:
            seen.update([key] if key != "q/" else [key for (key,) in rows(path, "SELECT key FROM objects")])

        blobs.watch("q/", wake)
        for n in range(200):
            await blobs.perform(Create(f"q/{n}", b"x"))
            longest = max(longest, news(path).stat().st_size)
            await asyncio.sleep(0.001 if n % 3 else 0)
        await until(lambda: len(seen) == 200)
        assert 200 < longest < 400
        await blobs.close()

    async def test_a_file_that_was_begun_anew_and_is_longer_than_before_is_noticed(self, path: str) -> None:
        async with listening(path) as (blobs, told):
            with news(path).open("r+b") as file:
                file.truncate()
                file.write(b"\n#0123456789abcdef\n" + b'"q/somewhere else"\n' * 1000)
            await until(lambda: told)
            assert set(told) == {"q/"}
            told.clear()
            await blobs.perform(Create("q/a", b"x"))
            await until(lambda: told == ["q/a"])

    async def test_a_line_that_was_left_half_written_is_in_nobodys_way(self, path: str) -> None:
        """What it would have told is not known: everybody looks."""
        async with listening(path) as (blobs, told):
            with news(path).open("ab") as file:
                file.write(b'\n#0123456789abcdef\n"q/whole"\n"q/ha')
            await until(lambda: told == ["q/whole"])
            await blobs.perform(Create("q/a", b"x"))
            await until(lambda: told == ["q/whole", "q/"])
            await blobs.perform(Create("q/b", b"x"))
            await until(lambda: told == ["q/whole", "q/", "q/b"])

    async def test_a_line_that_is_written_in_two_parts_is_told_once_it_is_whole(self, path: str) -> None:
        async with listening(path) as (_, told):
            with news(path).open("ab", buffering=0) as file:
                file.write(b'\n#0123456789abcdef\n"q/ha')
                await asyncio.sleep(0.05)
                assert told == []
                file.write(b'lf"\n')
            await until(lambda: told == ["q/half"])

    async def test_a_file_that_was_removed_is_made_again(self, path: str) -> None:
        writing = SqliteBlobs(path, fsync=False, watch=False)
        async with listening(path) as (_, told):
            await writing.perform(Create("q/a", b"x"))
            await until(lambda: told == ["q/a"])
            news(path).unlink()
            await asyncio.sleep(2 * sqlite_writer.CHECKED_FOR / 1e9)
            await writing.perform(Create("q/b", b"x"))
            await until(lambda: told[1:] == ["q/"])
            await writing.perform(Create("q/c", b"x"))
            await until(lambda: told[1:] == ["q/", "q/c"])
        await writing.close()

    async def test_it_has_the_mode_of_the_database(self, path: str) -> None:
        await SqliteBlobs(path).close()
        Path(path).chmod(0o660)
        blobs = SqliteBlobs(path)
        assert news(path).stat().st_mode & 0o777 == 0o660
        await blobs.close()

    async def test_it_stays_as_long_as_anybody_has_the_database_open(self, path: str) -> None:
        first, second = SqliteBlobs(path, watch=False), SqliteBlobs(path, watch=False)
        await first.perform(Create("q/a", b"x"))
        await first.close()
        assert news(path).exists()
        await second.close()
        assert not news(path).exists()


class TestWithoutNews:
    """A write is done though nobody can be told of it."""

    async def test_a_file_that_may_not_be_written(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o777)
            path = f"{folder}/jobs.db"
            await SqliteBlobs(path, watch=False).close()
            Path(path).chmod(0o666)
            news(path).touch(0o400)

            def work() -> str:
                blobs = SqliteBlobs(path, fsync=False, watch=False)
                written = blobs.try_now(Create("q/a", b"x"))
                asyncio.run(blobs.perform(Create("q/b", b"x")))
                return type(written).__name__

            assert as_nobody(work) == "str"
            blobs = SqliteBlobs(path)
            assert sorted(await stored(blobs)) == ["q/a", "q/b"]
            await blobs.close()

    async def test_a_folder_in_its_place(self, path: str, caplog: pytest.LogCaptureFixture) -> None:
        news(path).mkdir()
        blobs = SqliteBlobs(path, fsync=False)
        woken: list[str] = []
        with caplog.at_level("WARNING", "brigade"):
            blobs.watch("q/", woken.append)
            await until(lambda: woken)
        assert "cannot watch" in caplog.text
        assert isinstance(blobs.try_now(Create("q/a", b"x")), str)
        assert isinstance(await blobs.perform(Create("q/b", b"x")), str)
        assert blobs.watch("q/", print) is None
        await blobs.close()

    async def test_a_full_disk(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, "no space left")

        async with listening(path) as (blobs, _):
            monkeypatch.setattr(sqlite_watch.os, "write", full)
            assert isinstance(blobs.try_now(Create("q/a", b"x")), str)
            monkeypatch.undo()


class TestForkedListeners:
    async def test_a_child_does_not_keep_the_lock_of_its_parent(self, path: str) -> None:
        """Nor does it go on listening: a write after its parent's end is told to nobody."""
        writing = SqliteBlobs(path, fsync=False, watch=False)
        reading, going = os.pipe()
        async with listening(path) as (_, told):
            child = os.fork()
            if child == 0:
                os.close(going)
                os.read(reading, 1)
                os._exit(0)
            await writing.perform(Create("q/a", b"x"))
            await until(lambda: told == ["q/a"])
        await writing.perform(Create("q/b", b"x"))
        left = news(path).read_bytes()
        for fd in (reading, going):
            os.close(fd)
        os.waitpid(child, 0)
        assert left == b""
        await writing.close()

    async def test_what_a_child_writes_is_told_to_its_parent(self, path: str) -> None:
        async with listening(path) as (blobs, told):
            assert in_child(lambda: type(blobs.try_now(Create("q/child", b"x"))).__name__) == "str"
            await until(lambda: told == ["q/child"])
            await blobs.perform(Create("q/parent", b"x"))
            await until(lambda: told == ["q/child", "q/parent"])

    async def test_a_child_has_etags_of_its_own(self, blobs: SqliteBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
        moment = time.time_ns()
        monkeypatch.setattr(sqlite_writer, "wall_ns", lambda: moment)
        assert isinstance(blobs.try_now(Create("q/first", b"x")), str)
        said = in_child(lambda: str(blobs.try_now(Create("q/child", b"x"))))
        mine: Any = blobs.try_now(Create("q/mine", b"x"))
        assert said[:16] == mine[:16]
        assert said != mine
