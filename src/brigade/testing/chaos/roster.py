"""The crew as the nemesis sees it: processes that can be killed, frozen and replaced."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from brigade.testing.chaos.plan import FLEET, Brief

__all__ = ["Member", "Roster", "send"]

STOP_WITHIN = 60.0
AT_WORK_WITHIN = 120.0


class Member:
    """One place in the crew and the process that fills it now."""

    def __init__(self, role: str, index: int) -> None:
        self.role = role
        self.index = index
        self.lives = 0
        self.frozen = False
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return f"{self.role}{self.index}.{self.lives}"


class Roster:
    """Starts the members, one process each, with a journal for each life."""

    def __init__(
        self,
        folder: Path,
        urls: Sequence[str],
        roles: Sequence[str],
        *,
        seed: int,
        lease: float,
        faults: bool = True,
        large: bool = False,
    ) -> None:
        self._folder = folder
        self._urls = urls
        self._seed = seed
        self._lease = lease
        self._faults = faults
        self._large = large
        self._started = 0
        self._groups: set[int] = set()
        self.pause = 0.1
        self.died: Counter[str] = Counter()
        self.members = [Member(role, index) for index, role in enumerate(roles)]
        (folder / "journals").mkdir(parents=True, exist_ok=True)

    def start(self, member: Member, skew: int = 0) -> None:
        """Give a place a new process."""
        member.lives += 1
        url = self._urls[member.index % len(self._urls)]
        member.process = self._spawn(self._brief(member.role, member.name, url, skew))
        member.frozen = False

    def _brief(self, role: str, name: str, url: str, skew: int = 0) -> Brief:
        self._started += 1
        return Brief(
            role=role,
            name=name,
            number=self._started,
            url=url,
            journal=str(self._folder / "journals" / f"{name}.jsonl"),
            seed=self._seed * 1000 + self._started,
            parent=os.getpid(),
            lease=self._lease,
            skew=skew,
            pause=self.pause,
            faults=self._faults,
            large=self._large,
        )

    def _spawn(self, brief: Brief) -> subprocess.Popen[bytes]:
        with (self._folder / "crew.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "brigade.testing.chaos.crew", msgspec.json.encode(brief).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if brief.role == "drain" else log,
                stderr=log,
                start_new_session=True,
            )
        self._groups.add(process.pid)
        return process

    def do(self, role: str, url: str) -> bytes:
        """Have one process do its part and end; what it said."""
        process = self._spawn(self._brief(role, role, url))
        said, _ = process.communicate(timeout=600)
        if process.returncode:
            raise RuntimeError(f"{role} ended with {process.returncode}; see {self._folder / 'crew.log'}")
        return said or b""

    def signal(self, member: Member, number: signal.Signals, *, group: bool = False) -> bool:
        """Send a signal to the process, or to it and all that it started; False where it was gone."""
        process = member.process
        if process is None or process.poll() is not None:
            return False
        for pid in _session(process.pid) if group else [process.pid]:
            send(pid, number)
        return True

    def is_at_work(self, member: Member) -> bool:
        """Spark takes long to start: until its tasks run, there is little to break."""
        return member.role != FLEET or bool(self.executors(member))

    def executors(self, member: Member) -> list[int]:
        """The processes of a fleet that run handlers; each has a journal."""
        if member.process is None:
            return []
        alive = set(_session(member.process.pid))
        paths = (self._folder / "journals").glob(f"{member.name}-*.jsonl")
        return sorted(pid for path in paths if (pid := int(path.stem.rpartition("-")[2])) in alive)

    def replace_dead(self) -> None:
        """Members that ended by themselves are counted, and replaced."""
        for member in self.members:
            if not member.frozen and member.process is not None and member.process.poll() is not None:
                self.died[f"{member.role} ended with {member.process.returncode}"] += 1
                self.start(member)

    def stop(self) -> None:
        """Everybody ends in good order; who doesn't is killed, and counted."""
        for member in self.members:
            self.signal(member, signal.SIGCONT, group=True)
            self.signal(member, signal.SIGTERM)
        end = time.monotonic() + STOP_WITHIN
        for member in self.members:
            if member.process is None:
                continue
            try:
                code = member.process.wait(max(0.1, end - time.monotonic()))
                if code not in (0, -signal.SIGTERM):
                    self.died[f"{member.role} ended with {code}"] += 1
            except subprocess.TimeoutExpired:
                self.died[f"{member.role} did not stop within {STOP_WITHIN:g} s"] += 1
                self.signal(member, signal.SIGKILL, group=True)
                member.process.wait()

    def kill_all(self) -> None:
        for member in self.members:
            if self.signal(member, signal.SIGKILL, group=True) and member.process is not None:
                member.process.wait()

    def left_running(self, within: float = 30.0) -> list[str]:
        """Processes of former members that are still there: a worker's children must not outlive it."""
        end = time.monotonic() + within
        while (left := [pid for pid in self._groups if _session(pid)]) and time.monotonic() < end:
            time.sleep(0.2)
        told = [f"processes of {pid} outlived it: {', '.join(map(_command, _session(pid)))}" for pid in left]
        for leader in left:
            for pid in _session(leader):
                send(pid, signal.SIGKILL)
        return told

    def wait_at_work(self, within: float = AT_WORK_WITHIN) -> None:
        """Until an ack of somebody's, and of each fleet's, was answered: before that there is little to break.

        A fleet that has ended by itself is not waited for.
        """
        fleets = [member for member in self.members if member.role == FLEET]
        waiting = [f"{member.name}-*.jsonl" for member in fleets] or ["*.jsonl"]
        end = time.monotonic() + within
        while time.monotonic() < end and not all(map(self._has_acked, waiting)):
            if any(member.process is not None and member.process.poll() is not None for member in fleets):
                return
            time.sleep(0.2)

    def _has_acked(self, journals: str) -> bool:
        return any(b'"op":"ack ok"' in path.read_bytes() for path in (self._folder / "journals").glob(journals))

    def memory(self) -> dict[str, int]:
        """Resident bytes of every member, with its children."""
        found: dict[str, int] = {}
        for member in self.members:
            if member.process is not None and member.process.poll() is None:
                found[member.name] = sum(_resident(pid) for pid in _session(member.process.pid))
        return found


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return str(pid)


def _session(leader: int) -> list[int]:
    """The leader's processes, and what those have started, in whatever process group."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
