"""A store on disk, processes that don't outlive their test, and faults."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_support import Faults, Running

import brigade
from brigade import Hub


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/jobs"


@pytest.fixture
def hub(url: str) -> Iterator[Hub]:
    """A hub on disk."""
    with brigade.connect(url, fsync=False) as hub:
        yield hub


@pytest.fixture
def memory() -> Iterator[Hub]:
    """A hub in memory."""
    with brigade.connect("memory://") as hub:
        yield hub


@pytest.fixture
def running() -> Iterator[list[Running]]:
    """Processes of a test; none outlives it, not even one that is stopped."""
    processes: list[Running] = []
    yield processes
    for one in processes:
        if one.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        one.end()


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)
