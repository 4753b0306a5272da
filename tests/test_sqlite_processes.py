"""Many processes on one sqlite:// file: races, deaths and forks."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time

from brigade.blobs import Blob, Create, Get, Swap
from brigade.blobs.sqlite import SqliteBlobs
from sqlite_store import blobs, in_child, is_sound, path, stored

__all__ = ["blobs", "path"]

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
