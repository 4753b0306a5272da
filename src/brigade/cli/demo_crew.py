"""The demo's worker processes, seen from outside: what they report, and the one that is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Consumer", "Crew"]


@dataclass(slots=True)
class Consumer:
    """One process and what it has said so far."""

    name: str
    process: subprocess.Popen[str]
    state: str = "starting"
    holding: int = 0
    processed: int = 0
    retrying: int = 0
    dead: int = 0
    stale: int = 0
    recovered: int = 0
    requests: int = 0
    reader: threading.Thread | None = field(default=None, repr=False)

    def hear(self, report: dict[str, Any]) -> None:
        for name, value in report.items():
            setattr(self, name, value)


class Crew:
    """Several workers, one of which is to be killed while it holds leases."""

    def __init__(self, url: str, queue: str, size: int, *, work_ms: float) -> None:
        self._lock = threading.Lock()
        self._kill_after: int | None = None
        self.victim: Consumer | None = None
        self.left_behind = 0
        self.members = [self._start(url, queue, f"worker-{n}", work_ms) for n in range(1, size + 1)]
        for member in self.members:
            member.reader = threading.Thread(target=self._listen, args=(member,), daemon=True)
            member.reader.start()

    @staticmethod
    def _start(url: str, queue: str, name: str, work_ms: float) -> Consumer:
        command = [sys.executable, "-m", "brigade.cli.demo_worker", url, queue, name, f"{work_ms:.3f}"]
        return Consumer(name, subprocess.Popen(command, stdout=subprocess.PIPE, text=True))  # noqa: S603

    def kill_one_after(self, settled: int) -> None:
        """Kill the second worker with SIGKILL when that many messages are settled and it holds some."""
        self._kill_after = settled

    def _listen(self, member: Consumer) -> None:
        assert member.process.stdout is not None
        for line in member.process.stdout:
            with self._lock:
                member.hear(json.loads(line))
                if self._doomed(member):
                    member.process.kill()
                    self.victim, self.left_behind = member, member.holding
                    member.state = "killed"
                    return

    def _doomed(self, member: Consumer) -> bool:
        wanted = self.victim is None and member is self.members[1] and member.holding > 0
        return wanted and self._kill_after is not None and self.settled >= self._kill_after

    @property
    def settled(self) -> int:
        """Messages that workers say have ended."""
        return sum(member.processed + member.dead for member in self.members)

    @property
    def processed(self) -> int:
        return sum(member.processed for member in self.members)

    @property
    def retries(self) -> int:
        return sum(member.retrying for member in self.members)

    @property
    def recovered(self) -> int:
        return sum(member.recovered for member in self.members)

    @property
    def requests(self) -> int:
        return sum(member.requests for member in self.members)

    def stop(self) -> None:
        """Ask the living to finish, and wait: they write history before they go."""
        for member in self.members:
            if member.process.poll() is None:
                member.process.send_signal(signal.SIGTERM)
        for member in self.members:
            try:
                member.process.wait(30)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
            if member.reader is not None:
                member.reader.join(5)
            if member.process.stdout is not None:
                member.process.stdout.close()
