"""What the tests of workers stand on: waiting for conditions, processes that are watched, and faults on demand."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from brigade import Backoff, Event, Failure, Queue, QueuePolicy
from brigade.stores.bucket.store import BucketStore
from leftovers import whole_lines

T = TypeVar("T")
HERE = Path(__file__).parent
PATIENCE = 60.0
AT_ONCE = Backoff(base=0, maximum=0, jitter=None)
PATIENT = QueuePolicy(backoff=AT_ONCE, failure=Failure("retry", 1000))
"""Retries at once, and so often that a slow machine fails nothing for good."""


def until(check: Callable[[], T], what: str = "") -> T:
    """The first true answer of `check`, asked again and again."""
    end = time.monotonic() + PATIENCE
    while not (answer := check()):
        assert time.monotonic() < end, f"it did not come true within {PATIENCE:g} seconds: {what or check}"
        time.sleep(0.01)
    return answer


def ended(queue: Queue) -> bool:
    """Whether nothing waits and nothing is in flight."""
    stats = queue.stats()
    return not stats.ready + stats.delayed + stats.in_flight


def named(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event.name == name]


class Running:
    """A process whose lines are collected as they come."""

    def __init__(self, *command: str) -> None:
        self.lines: list[str] = []
        paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._said: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines)),
            threading.Thread(target=self._read, args=(self.process.stderr, self._said)),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: Any, into: list[str]) -> None:
        into.extend(whole_lines(stream))

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        """What it wrote to stderr so far."""
        return "\n".join(self._said)

    def send(self, how: signal.Signals) -> None:
        self.process.send_signal(how)

    def end(self) -> int:
        """Wait for its end; returns the exit code."""
        until(lambda: self.process.poll() is not None, f"its end, after {self.lines}, {self.said}")
        code = self.process.wait()
        for reader in self._readers:
            reader.join(PATIENCE)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def wait_for(self, start: str, count: int = 1) -> list[str]:
        """The lines that start like this, once there are `count`."""

        def found() -> list[str]:
            lines = [line for line in list(self.lines) if line.startswith(start)]
            if len(lines) < count:
                assert self.process.poll() is None, f"it ended early: {self.said}"
                return []
            return lines

        return until(found, f"{count} times {start!r} in {self.lines}, {self.said}")


def worker_process(url: str, handler: str, *, how: str = "run", queue: str = "tasks", **options: Any) -> Running:
    """A worker in a process of its own, that prints every event as a line."""
    given = {"url": url, "handler": handler, "how": how, "queue": queue, "options": options}
    return Running("-m", "worker_main", json.dumps(given))


class Faults:
    """Lets the operations of every bucket store in this process fail, wait, or be watched.

    A rule is called with the arguments of the operation, before it is done; it may raise, and it may be async.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rules: dict[str, Callable[..., Any]] = {}
        for name in ("claim", "load", "settle", "stats"):
            monkeypatch.setattr(BucketStore, name, self._with_rule(name, getattr(BucketStore, name)))

    def on(self, name: str, rule: Callable[..., Any]) -> None:
        self._rules[name] = rule

    def off(self, *names: str) -> None:
        for name in names or list(self._rules):
            self._rules.pop(name, None)

    def _with_rule(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        async def operation(store: BucketStore, *args: Any, **kwargs: Any) -> Any:
            rule = self._rules.get(name)
            if rule is not None:
                answer = rule(*args, **kwargs)
                if inspect.isawaitable(answer):
                    await answer
            return await real(store, *args, **kwargs)

        return operation


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not yet waited for does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def children(pid: int) -> dict[int, str]:
    """The processes that a process has started, and their command lines."""
    found: dict[int, str] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(place.joinpath("stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found[int(place.name)] = place.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def handler_processes(pid: int) -> list[int]:
    """Processes that run handlers: multiprocessing's own helper is not one."""
    return [child for child, command in children(pid).items() if "spawn_main" in command and alive(child)]
