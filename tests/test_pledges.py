"""First claims that are made durable later: what a machine that dies leaves behind keeps every promise."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade import Backoff, Failure, QueuePolicy
from brigade.blobs import CONFLICT, Create, Get, Op, Pledge
from brigade.blobs import sqlite_pledges as pledges
from brigade.blobs.sqlite import SqliteBlobs
from brigade.stores.bucket import pledge as pledging
from brigade.stores.bucket import process
from sqlite_store import rows

POLICY = QueuePolicy(failure=Failure("retry", max_retries=9), backoff=Backoff(base=0), visibility_timeout=0.05)
Later = list[bool]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pledges, nothing in the background, and a listing that is not old however slow the machine is."""
    monkeypatch.setattr(pledging, "AHEAD", 5)
    monkeypatch.setattr(pledging, "WORTH", 3)
    monkeypatch.setattr(process, "FINISH_LINGER", 3600.0)
    monkeypatch.setattr(SqliteBlobs, "listing_ttl", 60.0)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """For each claim whether it was left to be made durable later."""
    found: Later = []
    real = SqliteBlobs.try_now

    def noted(blobs: SqliteBlobs, op: Op) -> object:
        if isinstance(op, Create) and "/led/" in op.key:
            found.append(op.later)
        return real(blobs, op)

    monkeypatch.setattr(SqliteBlobs, "try_now", noted)
    return found


@pytest.fixture
def another_life(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(pledges, "machine_life", lambda: "another life")


def open_queue(hub: brigade.Hub, policy: QueuePolicy = POLICY) -> brigade.Queue:
    return hub.queue("tasks", policy)


def taken(queue: brigade.Queue, **options: Any) -> brigade.Message:
    """The first calls may find the hub's own thread awake, and nothing listed."""
    while not (messages := queue.claim(**options)):
        pass
    return messages[0]


def test_one_claim_in_many_is_made_durable_at_once(file: Path, later: Later) -> None:
    with brigade.connect(f"sqlite://{file}") as hub:
        queue = open_queue(hub)
        for n in range(40):
            queue.enqueue(n)
        for n in range(40):
            message = taken(queue)
            assert message.data == n
            queue.ack(message)
        assert queue.stats().succeeded == 40
    assert later.count(True) > 10  # All but one in six, while the hub's own thread sleeps.


@pytest.mark.parametrize(
    "policy, url",
    [
        (QueuePolicy(failure=Failure("retry", max_retries=0)), "sqlite://{file}"),
        (QueuePolicy(failure=Failure("dead-letter", dead_letter_queue="dead")), "sqlite://{file}"),
        (POLICY, "sqlite://{file}?fsync=off"),
    ],
    ids=["one attempt", "dead at the first failure", "nothing is synced"],
)
def test_nothing_is_pledged_where_that_would_cost_the_only_attempt_or_save_nothing(
    file: Path, later: Later, policy: QueuePolicy, url: str
) -> None:
    with brigade.connect(url.format(file=file)) as hub:
        queue = open_queue(hub, policy)
        for n in range(20):
            queue.enqueue(n)
        for _ in range(20):
            queue.ack(taken(queue))
        assert not any(later)
        assert rows(str(file), "SELECT * FROM pledges") == []


class Disk:
    """What may be on the disk, should the machine die, and what had been told by then."""

    def __init__(self, file: Path, queue: brigade.Queue, folder: Path) -> None:
        self._file, self._folder = file, folder
        store: Any = queue.asynchronous.hub.store
        self._lock = store.blobs._writer.lock
        self.versions: dict[int, list[int]] = {}
        self.acked: set[int] = set()
        self.copies: list[tuple[Path, dict[int, list[int]], set[int]]] = []
        self._since_sync: list[Path] = []

    def claimed(self, message: brigade.Message) -> None:
        self.versions.setdefault(message.data, []).append(message.lease.version)

    def take_copy(self, synced: bool) -> None:
        """What was told up to now is told, whichever of the copies since the last sync is what the disk has."""
        if synced:
            self._since_sync.clear()
        copy = self._folder / f"copy{len(self.copies)}"
        copy.mkdir(parents=True)
        with self._lock:
            for end in ("", "-wal"):
                shutil.copyfile(f"{self._file}{end}", f"{copy / self._file.name}{end}")
        self._since_sync.append(copy)
        versions = {data: list(found) for data, found in self.versions.items()}
        for one in self._since_sync:
            self.copies.append((one, versions, set(self.acked)))


def drained(file: Path) -> list[brigade.Message]:
    with brigade.connect(f"sqlite://{file}") as hub:
        queue = open_queue(hub)
        found: list[brigade.Message] = []
        while messages := queue.claim(100, wait=0.2, visibility=30):
            found += messages
            queue.ack_many(messages)
        assert queue.stats().in_flight == 0
        return found


def test_a_machine_that_dies_at_any_moment_has_counted_every_claim(
    file: Path, tmp_path: Path, later: Later, another_life: Callable[[], None]
) -> None:
    """[G1] [G2] [G3] [G4] Versions grow beyond all that were given out, and what was acked stays so."""
    with brigade.connect(f"sqlite://{file}") as hub:
        queue = open_queue(hub)
        for n in range(24):
            queue.enqueue(n)
        disk, left_for_later = Disk(file, queue, tmp_path / "copies"), 0
        for n in range(18):
            later.clear()
            message = taken(queue, visibility=0.05)
            disk.claimed(message)
            disk.take_copy(synced=not any(later))
            left_for_later += any(later)
            if n % 4 != 3:
                queue.ack(message)
                disk.acked.add(message.data)
                disk.take_copy(synced=True)
    assert left_for_later
    another_life()
    lost = 0
    checked: set[Path] = set()
    for number, (copy, versions, acked) in enumerate(disk.copies):
        here = tmp_path / f"life{number}" / file.name
        shutil.copytree(copy, here.parent)
        found = {message.data: message for message in drained(here)}
        assert set(found) == set(range(24)) - acked
        for data, message in found.items():
            assert message.lease.version > max(versions.get(data, [0]))
            assert message.attempt > len(versions.get(data, []))
        assert sum(message.attempt > len(versions.get(data, [])) + 1 for data, message in found.items()) <= 5
        lost += copy in checked
        checked.add(copy)
    assert lost  # Some claims were told, and not on the disk.


def test_what_stands_in_for_a_lost_claim_is_told_in_history(
    file: Path, tmp_path: Path, another_life: Callable[[], None]
) -> None:
    with brigade.connect(f"sqlite://{file}") as hub:
        queue = open_queue(hub)
        for n in range(12):
            queue.enqueue(n)
        for _ in range(4):
            queue.ack(taken(queue))
        shutil.copyfile(file, tmp_path / "copy.db")
        shutil.copyfile(f"{file}-wal", tmp_path / "copy.db-wal")
    another_life()
    owners = Counter[str]()
    with brigade.connect(f"sqlite://{tmp_path}/copy.db") as hub:
        queue = open_queue(hub)
        for message in queue.claim(100, wait=1):
            queue.ack(message)
        hub.call(queue.asynchronous.hub.store.forget("tasks"))
        for record in hub.call(_history(queue)):
            owners.update(attempt.owner for attempt in record.attempts)
    assert owners[pledging.LOST] == 5


async def _history(queue: brigade.Queue) -> list[Any]:
    store: Any = queue.asynchronous.hub.store
    parts = await store.history_parts("tasks", 0)
    return [record for part in parts for record in await store.read_history(part)]


def test_whoever_comes_first_has_a_pledged_message(file: Path, later: Later) -> None:
    with brigade.connect(f"sqlite://{file}") as hub, brigade.connect(f"sqlite://{file}") as other:
        queue, others = open_queue(hub), open_queue(other)
        for n in range(12):
            queue.enqueue(n)
        for _ in range(4):
            queue.ack(taken(queue))
        theirs = others.claim(4, visibility=30)
        assert [message.data for message in theirs] == [4, 5, 6, 7]
        mine = [taken(queue, visibility=30) for _ in range(4)]
        assert {message.data for message in mine} == {8, 9, 10, 11}
        assert [message.attempt for message in (*mine, *theirs)] == [1] * 8
        queue.ack_many(mine)
        others.ack_many(theirs)
        assert queue.stats().succeeded == 12


def test_an_old_pledge_is_not_relied_on(file: Path, later: Later, monkeypatch: pytest.MonkeyPatch) -> None:
    with brigade.connect(f"sqlite://{file}") as hub:
        queue = open_queue(hub)
        for n in range(30):
            queue.enqueue(n)
        for _ in range(6):
            queue.ack(taken(queue))
        assert any(later)
        monkeypatch.setattr(pledging, "GOOD_FOR", 0.0)
        later.clear()
        for _ in range(10):
            queue.ack(taken(queue))
        assert not any(later)


def test_a_hub_that_closes_withdraws_what_it_has_pledged(file: Path) -> None:
    with brigade.connect(f"sqlite://{file}") as hub:
        queue = open_queue(hub)
        for n in range(12):
            queue.enqueue(n)
        for _ in range(6):
            queue.ack(taken(queue))
        assert len(rows(str(file), "SELECT * FROM pledges")) == 1
    assert rows(str(file), "SELECT * FROM pledges") == []


KILLED = """
import os, signal, sys, brigade
from brigade.stores.bucket import pledge
pledge.AHEAD, pledge.WORTH = 5, 3
with brigade.connect(sys.argv[1]) as hub:
    queue = hub.queue("tasks")
    for _ in range(6):
        messages = queue.claim(visibility=600)
    while not messages:
        messages = queue.claim(visibility=600)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_claimed_stays_claimed(file: Path) -> None:
    """Only the end of the machine undoes anything."""
    with brigade.connect(f"sqlite://{file}") as hub:
        queue = open_queue(hub)
        for n in range(20):
            queue.enqueue(n)
        done = subprocess.run([sys.executable, "-c", KILLED, f"sqlite://{file}"], check=False)
        assert done.returncode == -signal.SIGKILL
        assert rows(str(file), "SELECT count(*) FROM pledges") == [(1,)]
        in_flight = queue.stats().in_flight
        assert in_flight >= 5
    with brigade.connect(f"sqlite://{file}") as hub:
        queue = open_queue(hub)
        assert queue.stats().in_flight == in_flight
        assert {message.attempt for message in queue.claim(100)} == {1}


class TestTheFile:
    def pledge(self, name: str = "tasks", body: bytes = b"stand-in") -> Pledge:
        return Pledge(name, (("led/1", "seg/1"), ("led/2", "seg/2"), ("led/3", "seg/3")), body)

    async def test_stand_ins_are_made_where_there_is_nothing_and_it_is_about_something(
        self, file: Path, another_life: Callable[[], None]
    ) -> None:
        blobs = SqliteBlobs(str(file), watch=False)
        for key in ("seg/1", "seg/2"):
            await blobs.perform(Create(key, b"message"))
        await blobs.perform(Create("led/0", b"x", self.pledge()))
        await blobs.perform(Create("led/2", b"claimed", later=True))
        shutil.copyfile(file, f"{file}.copy")
        shutil.copyfile(f"{file}-wal", f"{file}.copy-wal")
        await blobs.close()
        another_life()
        for _ in range(2):
            blobs = SqliteBlobs(f"{file}.copy", watch=False)
            found: list[Any] = [await blobs.perform(Get(f"led/{n}")) for n in range(4)]
            assert [one and one.body for one in found] == [b"x", b"stand-in", b"claimed", None]
            await blobs.close()
            assert rows(f"{file}.copy", "SELECT * FROM pledges") == []

    async def test_a_pledge_takes_the_place_of_the_one_of_its_name(self, file: Path) -> None:
        blobs = SqliteBlobs(str(file), watch=False)
        for n, name in enumerate(("a", "b", "a")):
            await blobs.perform(Create(f"led/{n}", b"x", self.pledge(name)))
        assert rows(str(file), "SELECT name FROM pledges") == [("a",), ("b",)]
        await blobs.close()

    async def test_a_create_that_is_refused_pledges_nothing(self, file: Path) -> None:
        blobs = SqliteBlobs(str(file), watch=False)
        await blobs.perform(Create("led/0", b"x"))
        assert await blobs.perform(Create("led/0", b"y", self.pledge())) is CONFLICT
        assert rows(str(file), "SELECT * FROM pledges") == []
        await blobs.close()

    async def test_what_was_pledged_an_hour_ago_is_forgotten(self, file: Path) -> None:
        kept = SqliteBlobs(str(file), watch=False)
        await kept.perform(Create("led/0", b"x", self.pledge()))
        blobs = SqliteBlobs(str(file), watch=False)
        assert len(rows(str(file), "SELECT * FROM pledges")) == 1
        writer: Any = kept
        writer._writer._connection.execute("UPDATE pledges SET since = since - 3601 * 1000000000")
        await blobs.close()
        await SqliteBlobs(str(file), watch=False).close()
        assert rows(str(file), "SELECT * FROM pledges") == []
        await kept.close()

    def test_a_child_does_not_rely_on_what_its_parent_pledged(self, file: Path) -> None:
        blobs: Any = SqliteBlobs(str(file), watch=False)
        assert blobs.pledges
        pid = os.fork()
        if not pid:
            os._exit(int(blobs.pledges))
        assert os.waitpid(pid, 0)[1] == 0

    async def test_every_commit_is_synced_but_those_that_are_left_for_later(self, file: Path) -> None:
        blobs: Any = SqliteBlobs(str(file), watch=False)
        connection = blobs._writer._connection
        seen: list[str] = []
        connection.set_trace_callback(seen.append)
        blobs._writer.try_now(Create("led/1", b"x", later=True))
        blobs._writer.try_now(Create("led/2", b"x"))
        connection.set_trace_callback(None)
        words = [one.split() for one in seen if "data_version" not in one]
        assert [one[-1] if one[0] == "PRAGMA" else one[0] for one in words] == ["NORMAL", "INSERT", "FULL", "INSERT"]
        assert connection.execute("PRAGMA synchronous").fetchall() == [(2,)]
        await blobs.close()
