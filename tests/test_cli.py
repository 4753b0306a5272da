"""The installed `brigade` command, run as a user would run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import brigade
from brigade.cli.app import COMMANDS

BRIGADE = Path(sys.executable).parent / "brigade"
GROUPED = [f"queue {name}" for name in ("create", "policy", "pause", "resume", "purge", "delete")]
GROUPED += [f"dlq {name}" for name in ("list", "show", "redrive", "purge")]
GROUPED += [
    f"spark {name}" for name in ("audit", "cancel", "enqueue", "history", "redrive", "report", "reprioritize", "run")
]
GROUPED += ["state load", "state save", "migrate status", "migrate up", "key create", "key rotate", "key status"]
GROUPED += ["token create", "token list", "token revoke"]
Run = Callable[..., subprocess.CompletedProcess[bytes]]


def test_version_and_help_name_every_command(run: Run) -> None:
    assert run("--version").stdout.decode().strip() == f"brigade {brigade.__version__}"
    overview = run("--help").stdout.decode()
    for command in COMMANDS:
        assert f"\n  {command} " in overview
    for code in ("0 done", "1 error", "2 wrong usage", "3 nothing there", "4 the lease is stale", "130 interrupted"):
        assert code in " ".join(overview.split())


@pytest.mark.parametrize("command", [*COMMANDS, *GROUPED])
def test_every_command_has_examples_and_json(run: Run, command: str) -> None:
    shown = run(*command.split(), "--help").stdout.decode()
    assert "Examples:" in shown
    assert "--json" in shown or command in ("completion", "dlq", "key", "migrate", "queue", "spark", "state", "token")


def test_the_default_store_is_a_directory_beside_the_user(run: Run, tmp_path: Path) -> None:
    run("enqueue", "tasks", "hello")
    assert (tmp_path / ".brigade" / "q" / "tasks").is_dir()


def test_the_store_may_be_named_before_or_after_the_command_or_in_the_environment(run: Run) -> None:
    run("enqueue", "a", "x", "--url", "file://./one")
    run("--url", "file://./one", "enqueue", "b", "x")
    run("enqueue", "c", "x", BRIGADE_URL="file://./one")
    assert run("queues", BRIGADE_URL="file://./one").stdout.split() == [b"a", b"b", b"c"]


def test_a_database_is_a_store_for_every_command_and_looking_makes_none(run: Run, tmp_path: Path) -> None:
    assert b"there is no store at ./jobs.db" in run("stats", "--url", "sqlite://./jobs.db", code=3).stderr
    assert not (tmp_path / "jobs.db").exists()
    run("enqueue", "tasks", "x", "--url", "sqlite://./jobs.db")
    assert json.loads(run("peek", "tasks", "--json", "--url", "sqlite://./jobs.db").stdout)[0]["data"] == "x"
    run("dequeue", "tasks", "--url", "sqlite://./jobs.db")
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.db"]


def test_enqueue_takes_arguments_and_prints_an_id_for_each(run: Run) -> None:
    ids = run("enqueue", "tasks", '{"type": "email"}', "plain text", "[not json").stdout.decode().split()
    found = json.loads(run("peek", "tasks", "--json").stdout)
    assert [message["id"] for message in found] == ids
    assert [message["data"] for message in found] == [{"type": "email"}, "plain text", "[not json"]


def test_enqueue_reads_standard_input_as_one_message(run: Run) -> None:
    run("enqueue", "tasks", "--priority", "0", stdin=b'{"from": "stdin"}')
    run("enqueue", "tasks", "-", stdin=b"\xff\xfe not text")
    run("enqueue", "tasks", "--text", stdin=b"[1, 2]")
    data = [message["data"] for message in json.loads(run("peek", "tasks", "--json").stdout)]
    assert data == [{"from": "stdin"}, "//4gbm90IHRleHQ=", "[1, 2]"]


def test_enqueue_streams_large_input_and_files(run: Run, tmp_path: Path) -> None:
    payload = os.urandom(1_000_000)
    (tmp_path / "film.mp4").write_bytes(payload)
    run("enqueue", "films", "--file", "film.mp4", "--content-type", "video/mp4")
    run("enqueue", "films", stdin=payload)
    with brigade.connect(f"file://{tmp_path}/.brigade") as hub:
        films = hub.queue("films")
        first, second = films.claim(2)
        assert first.content_type == "video/mp4"
        for message in (first, second):
            with message.open() as file:
                assert file.read() == payload


def test_enqueue_reads_json_lines(run: Run) -> None:
    lines = b"".join(b'{"n": %d}\n' % n for n in range(2500)) + b"\n" + b"null\n"
    assert run("enqueue", "orders", "--lines", stdin=lines).stdout == b"2,501 messages enqueued\n"
    assert json.loads(run("stats", "orders", "--json").stdout)["orders"]["ready"] == 2501
    first = json.loads(run("peek", "orders", "--limit", "1", "--json").stdout)[0]
    assert first["data"] == {"n": 0}


def test_a_bad_json_line_is_named_and_nothing_of_its_batch_is_sent(run: Run) -> None:
    done = run("enqueue", "orders", "--lines", stdin=b'{"n": 1}\nnope\n', code=1)
    assert b"line 2 is not JSON" in done.stderr
    assert json.loads(run("stats", "orders", "--json").stdout)["orders"]["total"] == 0


def test_enqueue_passes_every_option_on(run: Run) -> None:
    options = ["--id", "order-1", "--attribute", "a=1", "--attribute", "b=x=y", "--correlation-id", "c-1"]
    options += ["--group", "g", "--delay", "60", "--ttl", "90", "--max-attempts", "7"]
    (receipt,) = json.loads(run("enqueue", "tasks", "hi", *options, "--json").stdout)
    assert (receipt["id"], receipt["duplicate"]) == ("order-1", False)
    shown = json.loads(run("get", "tasks", "order-1", "--json").stdout)
    assert shown["attributes"] == {"a": "1", "b": "x=y"}
    assert (shown["correlation_id"], shown["group"], shown["max_attempts"]) == ("c-1", "g", 7)
    assert shown["due_at"] > shown["enqueued_at"]


def test_the_same_id_twice_is_said_and_not_added(run: Run) -> None:
    run("enqueue", "tasks", "hi", "--id", "once")
    again = run("enqueue", "tasks", "hi", "--id", "once")
    assert again.stdout == b"once\n"
    assert b"had been enqueued before" in again.stderr
    assert json.loads(run("stats", "tasks", "--json").stdout)["tasks"]["ready"] == 1


def test_get_shows_a_message_and_its_payload_byte_for_byte(run: Run) -> None:
    payload = bytes(range(256))
    run("enqueue", "tasks", "--id", "raw", stdin=payload)
    assert run("get", "tasks", "raw", "--payload").stdout == payload
    shown = run("get", "tasks", "raw").stdout.decode()
    assert "ready" in shown
    assert "application/octet-stream" in shown


def test_stats_counts_all_queues_as_a_table_and_as_json(run: Run, tmp_path: Path) -> None:
    run("enqueue", "a", "1", "2", "3")
    run("enqueue", "b", "later", "--delay", "60")
    with brigade.connect(f"file://{tmp_path}/.brigade") as hub:
        queue = hub.queue("a")
        queue.ack(queue.claim()[0])
        queue.pause()
    found = json.loads(run("stats", "--json").stdout)
    assert (found["a"]["ready"], found["a"]["succeeded"], found["a"]["paused"]) == (2, 1, True)
    assert found["b"]["delayed"] == 1
    table = run("stats").stdout.decode()
    assert "a (paused)" in table
    assert "succeeded" in table


def test_sweep_tells_what_it_did(run: Run) -> None:
    run("enqueue", "tasks", "stale", "--ttl", "0.001")
    time.sleep(0.01)
    assert json.loads(run("sweep", "--json").stdout)["tasks"]["decided"] == 1
    assert "tasks" in run("sweep", "tasks").stdout.decode()


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("stats",), "there is no store"),
        (("queues",), "there is no store"),
        (("peek", "tasks"), "there is no store"),
    ],
)
def test_looking_at_no_store_ends_with_3_and_makes_none(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = run(*arguments, code=3)
    assert said in done.stderr.decode()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("stats", "nowhere"), "'nowhere' does not exist"),
        (("peek", "nowhere"), "'nowhere' does not exist"),
        (("peek", "empty"), "nothing to hand out"),
        (("get", "empty", "no-such-id"), "no message 'no-such-id'"),
    ],
)
def test_what_is_not_there_ends_with_3(run: Run, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    with brigade.connect(f"file://{tmp_path}/.brigade") as hub:
        hub.queue("empty")
    done = run(*arguments, code=3)
    assert said in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("nonsense",), "No such command"),
        (("enqueue",), "Missing argument"),
        (("enqueue", "../x", "hi"), "queue name '../x' is not allowed"),
        (("enqueue", "tasks", "hi", "--priority", "10"), "10 is not in the range"),
        (("enqueue", "tasks", "hi", "--delay", "-1"), "delay is -1.0"),
        (("enqueue", "tasks", "hi", "--attribute", "novalue"), "is not KEY=VALUE"),
        (("enqueue", "tasks", "a", "b", "--id", "x"), "--id names one message"),
        (("enqueue", "tasks", "--file", "missing"), "does not exist"),
        (("stats", "--url", "s3://"), "s3:// needs a bucket"),
        (("stats", "--url", "ftp://x"), "is not a kind of store"),
        (("stats", "--url", "memory://x"), "lives inside one process"),
        (("stats", "--url", "file://./x?fsnc=off"), "has no option 'fsnc'"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_to_do(run: Run, arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments, code=2)
    assert said in " ".join(done.stderr.decode().split())
    assert b"Traceback" not in done.stderr


def test_a_store_that_cannot_be_used_is_one_line_and_1(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    done = run("enqueue", "tasks", "hi", "--url", "file://./file", code=1)
    assert done.stderr.startswith(b"brigade: ")
    assert done.stderr.count(b"\n") == 1


def test_a_closed_pipe_is_no_traceback(run: Run, tmp_path: Path) -> None:
    run("enqueue", "many", "--lines", stdin=b"".join(b'{"n": %d}\n' % n for n in range(5000)))
    command = f"{BRIGADE} peek many --limit 5000 --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, timeout=60)
    assert done.stdout == b"["
    assert b"Traceback" not in done.stderr


@pytest.mark.slow
def test_the_demo_kills_a_consumer_and_loses_nothing(run: Run, tmp_path: Path) -> None:
    done = run("demo", "--messages", "300", "--json", TMPDIR=str(tmp_path))
    summary = json.loads(done.stdout)
    assert summary["nothing_lost"]
    assert summary["enqueued"] == 300 == summary["processed"] + summary["dead_lettered"]
    assert (summary["lost"], summary["ended_twice"]) == (0, 0)
    assert summary["dead_lettered"] >= 2
    assert summary["killed"] == "worker-2"
    assert summary["leases_recovered"] >= summary["leases_left_behind"] > 0
    assert "Nothing was lost" in done.stderr.decode()
    assert list(tmp_path.iterdir()) == [], "the demo leaves nothing behind"


@pytest.mark.slow
def test_an_interrupted_demo_takes_its_processes_and_files_along(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen(
        [BRIGADE, "demo"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert demo.stdout is not None
    while "done," not in demo.stdout.readline():
        pass
    demo.send_signal(signal.SIGINT)
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 130, errors
    assert list(tmp_path.iterdir()) == []
