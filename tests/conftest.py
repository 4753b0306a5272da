"""The installed `brigade` command, run as a user would run it: alone, in bash, or at a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from installed import BRIGADE, environment

Done = subprocess.CompletedProcess[bytes]
SLOW_GROUND = (
    "tests/spark/",
    "tests/dashboard/",
    "tests/server/",
    "tests/test_cli",
    "tests/test_docs.py",
    "tests/test_bench.py",
)
TOGETHER = {"tests/spark/": "spark", "run_in_order[docs/spark": "spark", "tests/dashboard/": "dashboard"}


# How long an example takes says how busy the machine is, and nothing else.
hypothesis.settings.register_profile("brigade", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("brigade")


class Together(LoadScopeScheduling):
    """Shares tests out one by one, except those that share one Java, or one browser."""

    def _split_scope(self, nodeid: str) -> str:
        return next((name for part, name in TOGETHER.items() if part in nodeid), nodeid)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A second try, told of in the summary, where a browser, Java, shells or many sockets meet a busy machine.

    None where a failure would be a broken promise: conformance, simulation, races, crashes and chaos have to hold.
    """
    for item in items:
        if item.nodeid.startswith(SLOW_GROUND):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    return Together(config, log)


@pytest.fixture(scope="session", autouse=True)
def temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What commands leave in the system's temporary directory goes with pytest's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("system")))
        yield


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Done]:
    """Runs `brigade` in a fresh directory and checks its exit code."""

    def runner(*arguments: str, stdin: bytes = b"", code: int = 0, **more: str) -> Done:
        done = subprocess.run(
            [BRIGADE, *arguments],
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            env=environment(**more),
            timeout=100,
        )
        assert done.returncode == code, f"ended with {done.returncode}: {done.stdout!r} {done.stderr!r}"
        return done

    return runner


@pytest.fixture
def bash(tmp_path: Path) -> Callable[..., str]:
    """Runs a bash script in the same directory, and gives what it printed."""

    def runner(script: str, *, code: int = 0, **more: str) -> str:
        temp = tmp_path / "tmp"
        temp.mkdir(exist_ok=True)
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            capture_output=True,
            env=environment(TMPDIR=str(temp), **more),
            timeout=100,
        )
        assert done.returncode == code, f"ended with {done.returncode}: {done.stdout!r} {done.stderr!r}"
        return done.stdout.decode()

    return runner


@pytest.fixture
def terminal(tmp_path: Path) -> Callable[..., bytes]:
    """Runs `brigade` at a terminal, types `keys`, and gives all that the terminal was sent."""

    def runner(*arguments: str, keys: bytes = b"", code: int = 0) -> bytes:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [BRIGADE, *arguments],
            cwd=tmp_path,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(TERM="xterm", COLUMNS="120"),
            start_new_session=True,
        )
        os.close(theirs)
        os.write(ours, keys)
        shown = b""
        with contextlib.suppress(OSError):
            while chunk := os.read(ours, 65536):
                shown += chunk
        os.close(ours)
        assert process.wait(60) == code, shown
        return shown

    return runner


def pytest_configure() -> None:
    """Where this runs in the background, Ctrl-C may be ignored, also by everything that tests start: listen again."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)
