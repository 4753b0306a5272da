"""Who listens on sqlite:// is told which keys were written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import brigade
from brigade.blobs import Create
from brigade.blobs.sqlite import SqliteBlobs
from sqlite_store import SOON, blobs, path, until

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
