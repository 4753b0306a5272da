"""What is only about the disk: durability, torn files, full and read-only disks, dead processes, and the watcher."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brigade.blobs import CONFLICT, Blob, Copy, Create, Delete, Get, List, Swap
from brigade.blobs import disk as disk_module
from brigade.blobs.disk import DiskBlobs
from brigade.blobs.watch import DirectoryWatch, is_network_filesystem
from brigade.errors import ConfigError, PermissionDenied, StoreUnavailable

NOBODY = 65534


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[DiskBlobs]:
    made = DiskBlobs(str(tmp_path / "store"), fsync=False, watch=False)
    yield made
    await made.close()


async def stored(blobs: DiskBlobs) -> dict[str, bytes]:
    page: Any = await blobs.perform(List(""))
    found: dict[str, bytes] = {}
    for item in page.items:
        blob = await blobs.perform(Get(item.key))
        assert isinstance(blob, Blob)
        found[item.key] = blob.body
    return found


def leftovers(root: Path) -> list[str]:
    return [path.name for path in (root / ".tmp").iterdir()]


async def one_chunk(body: bytes) -> AsyncIterator[bytes]:
    yield body


class TestDurability:
    @pytest.fixture
    def calls(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        made: list[str] = []

        def spy(name: str) -> None:
            real: Callable[..., Any] = getattr(os, name)

            def recorded(*args: Any, **kwargs: Any) -> Any:
                what = name
                if name == "fsync":
                    what = "fsync folder" if Path(f"/proc/self/fd/{args[0]}").is_dir() else "fsync file"
                made.append(what)
                return real(*args, **kwargs)

            monkeypatch.setattr(os, name, recorded)

        for name in ("fsync", "link", "replace"):
            spy(name)
        return made

    async def test_a_create_is_synced_before_it_appears_and_its_folder_after(
        self, tmp_path: Path, calls: list[str]
    ) -> None:
        blobs = DiskBlobs(str(tmp_path), watch=False)
        await blobs.perform(Create("q/a", b"x"))
        calls.clear()
        await blobs.perform(Create("q/b", b"x"))
        assert calls == ["fsync file", "link", "fsync folder"]
        await blobs.close()

    async def test_a_new_folder_is_synced_into_its_parent(self, tmp_path: Path, calls: list[str]) -> None:
        blobs = DiskBlobs(str(tmp_path), watch=False)
        calls.clear()
        await blobs.perform(Create("q/deep/er/b", b"x"))
        assert calls.count("fsync folder") >= 4
        await blobs.close()

    async def test_a_swap_is_synced_before_it_replaces_and_its_folder_after(
        self, tmp_path: Path, calls: list[str]
    ) -> None:
        blobs = DiskBlobs(str(tmp_path), watch=False)
        etag: Any = await blobs.perform(Create("q/a", b"x"))
        calls.clear()
        await blobs.perform(Swap("q/a", b"y", etag))
        assert calls == ["fsync file", "replace", "fsync folder"]
        await blobs.close()

    async def test_streams_and_copies_are_synced_too(self, tmp_path: Path, calls: list[str]) -> None:
        blobs = DiskBlobs(str(tmp_path), watch=False)
        await blobs.perform(Create("q/first", b"x"))
        calls.clear()
        await blobs.put_stream("q/a", one_chunk(b"x"))
        await blobs.perform(Copy("q/a", "q/b"))
        assert calls == ["fsync file", "link", "fsync folder", "fsync file", "replace", "fsync folder"]
        await blobs.close()

    async def test_without_fsync_nothing_is_synced(self, tmp_path: Path, calls: list[str]) -> None:
        blobs = DiskBlobs(str(tmp_path), fsync=False, watch=False)
        etag: Any = await blobs.perform(Create("q/a", b"x"))
        await blobs.perform(Swap("q/a", b"y", etag))
        await blobs.put_stream("q/b", one_chunk(b"x"))
        await blobs.perform(Delete(("q/a",)))
        assert [call for call in calls if "fsync" in call] == []
        await blobs.close()


WRITER = """
import asyncio, hashlib, sys
from brigade.blobs import Create, Get, Swap
from brigade.blobs.disk import DiskBlobs

def body(n):
    data = bytes([n % 256]) * (200_000 + n)
    return hashlib.sha256(data).digest() + data

async def main(root):
    blobs = DiskBlobs(root, fsync=False, watch=False)
    etag = await blobs.perform(Create("q/swapped", body(0)))
    print("go", flush=True)
    n = 0
    while True:
        n += 1
        await blobs.perform(Create(f"q/made/{n}", body(n)))
        etag = await blobs.perform(Swap("q/swapped", body(n), etag))

asyncio.run(main(sys.argv[1]))
"""


class TestTornFiles:
    @pytest.mark.parametrize("turn", range(3))
    async def test_a_writer_killed_by_sigkill_leaves_nothing_torn(self, tmp_path: Path, turn: int) -> None:
        """Everything that is visible is whole, whenever the writer died, and others go on."""
        root = tmp_path / "store"
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        while len(list((root / "q" / "made").glob("*"))) < 20 * (turn + 1):
            await asyncio.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        blobs = DiskBlobs(str(root), fsync=False, watch=False)
        found = await stored(blobs)
        assert len(found) > 20
        for key, body in found.items():
            assert hashlib.sha256(body[32:]).digest() == body[:32], key
        blob = await blobs.perform(Get("q/swapped"))
        assert isinstance(blob, Blob)
        assert isinstance(await blobs.perform(Swap("q/swapped", b"mine", blob.etag)), str)
        await blobs.close()

    async def test_temporary_files_and_locks_are_never_listed(self, blobs: DiskBlobs, tmp_path: Path) -> None:
        await blobs.perform(Create("q/a", b"x"))
        (tmp_path / "store" / ".tmp" / "half").write_bytes(b"half")
        page: Any = await blobs.perform(List(""))
        assert [item.key for item in page.items] == ["q/a"]

    async def test_what_dead_writers_left_is_removed_when_it_is_old(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        left = tmp_path / ".tmp" / "left"
        left.parent.mkdir()
        left.write_bytes(b"half")
        await DiskBlobs(str(tmp_path), watch=False).close()
        assert left.exists()
        monkeypatch.setattr(disk_module, "TEMPORARY_AGE", -1)
        await DiskBlobs(str(tmp_path), watch=False).close()
        assert not left.exists()

    async def test_no_temporary_file_is_left_by_any_operation(self, blobs: DiskBlobs, tmp_path: Path) -> None:
        etag: Any = await blobs.perform(Create("q/a", b"x"))
        assert await blobs.perform(Create("q/a", b"y")) is CONFLICT
        await blobs.perform(Swap("q/a", b"z", etag))
        assert await blobs.perform(Swap("q/a", b"z", etag)) is CONFLICT
        await blobs.perform(Copy("q/a", "q/b"))
        await blobs.perform(Copy("q/none", "q/c"))
        await blobs.put_stream("q/d", one_chunk(b"x"))
        assert leftovers(tmp_path / "store") == []


HOLDER = """
import sys, time
from brigade.blobs.disk import DiskBlobs
blobs = DiskBlobs(sys.argv[1], watch=False)
with blobs._lock("q/a"):
    print("held", flush=True)
    time.sleep(600)
"""


async def test_a_lock_ends_with_the_process_that_held_it(blobs: DiskBlobs, tmp_path: Path) -> None:
    etag: Any = await blobs.perform(Create("q/a", b"x"))
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    swapping = asyncio.ensure_future(blobs.perform(Swap("q/a", b"y", etag)))
    done, _ = await asyncio.wait([swapping], timeout=0.1)
    assert not done, "the swap did not wait for the lock"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert isinstance(await asyncio.wait_for(swapping, 15), str)


class TestClock:
    async def test_swaps_get_new_etags_even_if_time_stands_still(
        self, blobs: DiskBlobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moment = time.time_ns()
        monkeypatch.setattr(disk_module, "wall_ns", lambda: moment)
        etag: Any = await blobs.perform(Create("q/a", b"same"))
        seen = {etag}
        for _ in range(10):
            etag = await blobs.perform(Swap("q/a", b"same", etag))
            assert etag not in seen
            seen.add(etag)

    async def test_swaps_get_new_etags_even_if_time_goes_back(
        self, blobs: DiskBlobs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moment = time.time_ns()
        monkeypatch.setattr(disk_module, "wall_ns", lambda: moment)
        etag: Any = await blobs.perform(Create("q/a", b"same"))
        first = etag
        moment -= 3_600_000_000_000
        etag = await blobs.perform(Swap("q/a", b"same", etag))
        moment += 3_600_000_000_000
        assert await blobs.perform(Swap("q/a", b"same", etag)) not in (first, etag)

    async def test_a_file_system_that_rounds_times_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = os.utime

        def rounding(path: Any, *, ns: tuple[int, int]) -> None:
            real(path, ns=(ns[0] // 10**9 * 10**9, ns[1] // 10**9 * 10**9))

        monkeypatch.setattr(os, "utime", rounding)
        with pytest.raises(ConfigError, match=r"nanosecond.*use another directory"):
            DiskBlobs(str(tmp_path), watch=False)


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
        with small_disk(1) as root:
            blobs = DiskBlobs(str(root), fsync=False, watch=False)
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
                await blobs.put_stream("q/stream", one_chunk(b"s" * 300_000))
            with pytest.raises(StoreUnavailable, match="no space left"):
                await blobs.perform(Copy("q/0", "q/copy"))
            found = await stored(blobs)
            assert sorted(found) == sorted([f"q/{n}" for n in range(number)] + ["q/kept"])
            assert {len(body) for key, body in found.items() if key != "q/kept"} == {100_000}
            assert found["q/kept"] == b"k" * 1000
            assert leftovers(root) == []
            await blobs.perform(Delete(("q/0", "q/1", "q/2")))
            assert isinstance(await blobs.perform(Swap("q/kept", b"n" * 1000, etag)), str)
            await blobs.close()

    async def test_a_limit_on_file_size_is_unavailable_too(self, tmp_path: Path) -> None:
        script = """
import asyncio, resource, signal, sys
from brigade.blobs import Create, List
from brigade.blobs.disk import DiskBlobs
from brigade.errors import StoreUnavailable

async def main():
    blobs = DiskBlobs(sys.argv[1], fsync=False, watch=False)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    try:
        await blobs.perform(Create("q/a", b"x" * 20_000))
    except StoreUnavailable as error:
        print(error)
    print([item.key for item in (await blobs.perform(List(""))).items])

asyncio.run(main())
"""
        ran = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
        assert ran.stderr == ""
        said, listed = ran.stdout.splitlines()
        assert "check the disk" in said
        assert listed == "[]"
        assert leftovers(tmp_path) == []


def as_nobody(work: Callable[[], str]) -> str:
    """What `work` says in a process without root's privileges."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setegid(NOBODY)
                os.seteuid(NOBODY)
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


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that everybody may look into."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


class TestPermissions:
    async def test_a_directory_that_may_not_be_written_is_permission_denied(self, shared_folder: Path) -> None:
        (shared_folder / "jobs").mkdir(mode=0o555)

        def work() -> str:
            DiskBlobs(str(shared_folder / "jobs"), watch=False)
            return "opened"

        assert as_nobody(work).startswith("PermissionDenied")

    async def test_a_refused_write_names_the_directory_and_what_to_check(self, shared_folder: Path) -> None:
        made = DiskBlobs(str(shared_folder / "jobs"), fsync=False, watch=False)
        await made.perform(Create("q/a", b"x"))
        await made.close()
        for folder in (".tmp", ".locks"):
            (shared_folder / "jobs" / folder).chmod(0o777)
        for folder in ("q", "."):
            (shared_folder / "jobs" / folder).chmod(0o555)

        def work() -> str:
            blobs = DiskBlobs(str(shared_folder / "jobs"), fsync=False, watch=False)
            blobs._perform(Create("q/b", b"x"))
            return "written"

        said = as_nobody(work)
        assert said.startswith("PermissionDenied")
        assert "check the directory's owner and mode" in said
        assert str(shared_folder / "jobs") in said
        assert not (shared_folder / "jobs" / "q" / "b").exists()
        assert leftovers(shared_folder / "jobs") == []

    async def test_a_read_only_file_system_is_permission_denied(self) -> None:
        with small_disk(1) as root:
            blobs = DiskBlobs(str(root), fsync=False, watch=False)
            etag: Any = await blobs.perform(Create("q/a", b"x"))
            await blobs.perform(Swap("q/a", b"y", etag))
            await blobs.close()
            subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
            with pytest.raises(PermissionDenied, match=r"read-only.*mount it writable"):
                DiskBlobs(str(root), watch=False)

    async def test_a_file_in_the_way_is_explained(self, tmp_path: Path) -> None:
        (tmp_path / "jobs").write_text("I am a file")
        with pytest.raises(StoreUnavailable, match="check the disk"):
            DiskBlobs(str(tmp_path / "jobs"), watch=False)

    async def test_a_disk_error_names_the_operation(self, blobs: DiskBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
        def failing(*_: Any, **__: Any) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "link", failing)
        with pytest.raises(StoreUnavailable, match=r"cannot create under .*Input/output error"):
            await blobs.perform(Create("q/a", b"x"))


class TestWatching:
    def test_local_disks_are_not_network_file_systems(self, tmp_path: Path) -> None:
        assert is_network_filesystem(str(tmp_path)) is False

    async def test_on_a_network_file_system_claimers_poll(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Changes made by other machines raise no event there; reads may block, so none is done in the loop."""
        monkeypatch.setattr(disk_module, "is_network_filesystem", lambda _: True)
        blobs = DiskBlobs(str(tmp_path), fsync=False)
        assert blobs.watch("q/", print) is None
        assert blobs.try_now(Get("q/a")) is NotImplemented
        await blobs.close()

    async def test_watching_can_be_switched_off(self, tmp_path: Path) -> None:
        blobs = DiskBlobs(str(tmp_path), fsync=False, watch=False)
        assert blobs.watch("q/", print) is None
        await blobs.close()

    async def test_a_watcher_that_breaks_wakes_everybody_once_and_says_so(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        import watchfiles

        def broken(*_: Any, **__: Any) -> Iterator[Any]:
            raise OSError("inotify watch limit reached")

        monkeypatch.setattr(watchfiles, "watch", broken)
        if hasattr(watchfiles, "_rust_notify"):
            monkeypatch.setattr(watchfiles._rust_notify, "RustNotify", broken)
        watch = DirectoryWatch(str(tmp_path))
        woken: list[str] = []
        with caplog.at_level(logging.WARNING, "brigade"):
            watch.subscribe("q/x/", woken.append)
            end = time.monotonic() + 15
            while not caplog.records:
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
        assert "inotify watch limit reached" in caplog.text
        assert "polling" in caplog.text
        assert watch.subscribe("q/y/", print) is None
        watch.close()
        assert woken == ["q/x/"]

    async def test_the_watcher_thread_ends_with_the_blobs(self, tmp_path: Path) -> None:
        import threading

        blobs = DiskBlobs(str(tmp_path), fsync=False)
        stop = blobs.watch("q/", print)
        assert stop is not None
        await blobs.close()
        assert [thread.name for thread in threading.enumerate() if thread.name == "brigade-watch"] == []


async def test_bodies_of_every_size_are_read_whole(blobs: DiskBlobs) -> None:
    for size in (0, 1, 4095, 4096, 4097, 3_000_001):
        body = os.urandom(size)
        await blobs.perform(Create(f"q/{size}", body))
        found = await blobs.perform(Get(f"q/{size}"))
        assert isinstance(found, Blob)
        assert found.body == body


async def test_prune_takes_empty_folders_and_nothing_else(tmp_path: Path) -> None:
    blobs = DiskBlobs(str(tmp_path))
    await blobs.perform(Create("a/b/c/gone", b"x"))
    await blobs.perform(Create("a/kept", b"x"))
    await blobs.perform(Delete(("a/b/c/gone",)))
    blobs.prune("a")
    blobs.prune("nowhere/")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["kept"]
    assert isinstance(await blobs.perform(Create("a/b/c/again", b"x")), str)
    await blobs.close()
