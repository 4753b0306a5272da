"""Short chaos runs: real processes killed and frozen on a real store, drained and judged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import brigade
from brigade.blobs.sqlite import SqliteBlobs
from brigade.testing.chaos.__main__ import main
from brigade.testing.chaos.arenas import ARENAS, why_not
from brigade.testing.chaos.arenas.postgres import PostgresArena
from brigade.testing.chaos.arenas.sqlite import swept, unsound
from brigade.testing.chaos.auditing import Audited
from brigade.testing.chaos.judge.recorded import Recorded
from brigade.testing.chaos.plan import JOBS, ROLES
from brigade.testing.chaos.run import Report, chaos, set_up
from brigade.testing.servers.postgres import PostgresServer
from postgres_server import postgres

__all__ = ["postgres"]

CHAOS = Path(sys.executable).parent / "brigade-chaos"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ARENAS)
def test_every_promise_holds_while_processes_and_servers_die(name: str, tmp_path: Path) -> None:
    """[G1] [G2] [G3] [G4] [G5] [G6] A producer, a consumer by hand, and a worker of each kind."""
    reason = why_not(name)
    if reason is not None:
        pytest.skip(reason)
    report = chaos(name, tmp_path, seed=11, seconds=10, lease=1.5, every=1, crew=("producer", *ROLES))
    assert report.violations == [], report.evidence
    assert report.messages > 0
    assert report.acked > 0
    assert sum(report.faults.values()) > 3


def test_the_command_says_what_it_does_and_refuses_what_it_cannot() -> None:
    said = subprocess.run([CHAOS, "--help"], capture_output=True, timeout=100)
    assert said.returncode == 0
    assert b"--soak --minutes 30" in said.stdout
    nothing = ["--read", __file__]
    for wrong in (["--arena", "moon"], ["--minutes", "0"], ["--minutes", "soon"], ["--soak", "--spark"], nothing):
        refused = subprocess.run([CHAOS, *wrong], capture_output=True, timeout=100)
        assert refused.returncode == 2, refused


def test_the_judge_reads_every_lease_of_a_message_that_failed(postgres: PostgresServer) -> None:
    """Also the last one, which PostgreSQL keeps apart from those before it."""
    arena = PostgresArena(postgres)
    set_up(arena, lease=30)
    with brigade.connect(arena.url) as hub:
        jobs = hub.queue(JOBS)
        jobs.enqueue(1, correlation_id="a")
        for reject in (False, True):
            (message,) = jobs.claim(wait=10)
            jobs.settle([brigade.Nack(message, "no", delay=0, reject=reject)])
    (ended,) = [one for one in asyncio.run(arena.ended()) if one.queue == JOBS]
    assert (ended.uid, ended.outcome) == ("a", "dead-lettered")
    assert [(held.version, held.how) for held in ended.held] == [(1, "nacked"), (2, "failed")]


def test_what_is_wrong_inside_a_database_is_found(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")

    async def fill() -> None:
        blobs = SqliteBlobs(path, watch=False)

        async def cut_off() -> AsyncIterator[bytes]:
            yield bytes(3 << 20)
            with contextlib.closing(sqlite3.connect(path)) as other, other:
                other.execute("INSERT INTO leftovers VALUES (7, 1 << 62)")
                other.execute("INSERT INTO chunks VALUES (7, 0, 'of a process that died'), (8, 0, 'of nobody')")

        await blobs.put_stream("whole", cut_off())
        await blobs.close()

    asyncio.run(fill())
    no_object = "chunks of streams that are no object's"
    assert unsound(path) == ["1 streams that nobody refers to and nobody swept", f"2 {no_object}"]
    asyncio.run(swept(path))
    assert unsound(path) == [f"1 {no_object}"]
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("DELETE FROM chunks WHERE stream = 8 OR place = 1")
    assert unsound(path) == ["1 objects without all of their bytes"]


def test_reports_become_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    audit = Audited(messages=1003, leases=1500, acks=1000, seconds=2)
    reports = [
        Report(
            arena="file", seed=7, seconds=180, messages=1000, acked=999, faults={"kill -9 of fleet": 2}, audit=audit
        ),
        Report(arena="s3", seed=7, seconds=180, messages=20, operations={"claim": 5}, violations=["[G1] at 0: lost"]),
    ]
    reports[0].recorded = Recorded(messages=1003, leases=1500, acks=1001)
    path = tmp_path / "chaos.json"
    path.write_bytes(msgspec.json.encode(reports))
    assert main(["--read", str(path), "--markdown"]) == 1
    told = capsys.readouterr().out.splitlines()
    assert told[:3] == ["| | `file` | `s3` |", "|---|---:|---:|", "| seed | 7 | 7 |"]
    assert "| kill -9 of fleet | 2 | - |" in told
    assert "| claim | - | 5 |" in told
    assert "| acks in history | 1,000, 1,001 | - |" in told
    assert told[-1] == "| **violations** | none | 1 |"
    assert main(["--read", str(path)]) == 1
    assert "[G1] at 0: lost" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_soak_tells_memory_and_what_is_left(tmp_path: Path) -> None:
    line = [CHAOS, "--soak", "--arena", "file", "--minutes", "0.1", "--seed", "5", "--json", "--keep", tmp_path]
    done = subprocess.run(line, capture_output=True, timeout=500)
    (report,) = json.loads(done.stdout)
    assert report["violations"] == []
    assert report["messages"] > 0
    assert {one["name"].rstrip(".1234567890") for one in report["memory"]} == set(ROLES)
    assert b"without faults" in done.stderr
