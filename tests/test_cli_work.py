"""`brigade work`: handlers run from a shell, with real signals and processes."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from installed import BRIGADE, environment

Run = Callable[..., subprocess.CompletedProcess[bytes]]
HANDLERS = """
import pathlib, time

def handle(message):
    if message.data == "bad":
        raise ValueError("no \\x1b[31m good [red]")
    return message.data

async def handle_async(message, context):
    return [context.attempt, context.worker_id]

def slow(message):
    pathlib.Path("begun").touch()
    while not pathlib.Path("go on").exists():
        time.sleep(0.01)

class Thing:
    def method(self, message):
        return "from a method"

thing = Thing()
number = 3
"""


@pytest.fixture
def handlers(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(HANDLERS)
    return tmp_path


def results(run: Run, *ids: str) -> list[object]:
    return [json.loads(run("get", "tasks", one, "--json").stdout)["result"] for one in ids]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_queue_is_worked_off(run: Run, handlers: Path, executor: str) -> None:
    run("queue", "create", "tasks", "--max-retries", "1", "--backoff-base", "0")
    run("enqueue", "tasks", "x", "--id", "one")
    run("enqueue", "tasks", "bad", "--id", "two")
    done = run("work", "tasks", "jobs:handle", "--drain", "--executor", executor, "--concurrency", "2")
    assert done.stdout == b""
    assert b"1 done, 1 retried, 1 dead" in done.stderr
    assert b"attempt 1 of 2 failed: ValueError: no \\x1b[31m good [red]" in done.stderr
    assert b"\x1b" not in done.stderr
    assert results(run, "one") == ["x"]
    assert json.loads(run("dlq", "list", "tasks", "--json").stdout)[0]["id"] == "two"


def test_async_handlers_and_methods(run: Run, handlers: Path) -> None:
    run("enqueue", "tasks", "x", "--id", "one")
    run("work", "tasks", "jobs:handle_async", "--drain", "--worker-id", "me")
    run("enqueue", "tasks", "x", "--id", "two")
    run("work", "tasks", "jobs:thing.method", "--drain")
    assert results(run, "one", "two") == [[1, "me"], "from a method"]


def test_several_queues(run: Run, handlers: Path) -> None:
    run("enqueue", "tasks", "x")
    run("enqueue", "urgent", "y")
    run("work", "tasks", "jobs:handle", "--queue", "urgent=3", "--drain")
    stats = json.loads(run("stats", "--json").stdout)
    assert [stats[name]["succeeded"] for name in ("tasks", "urgent")] == [1, 1]


def test_every_event_is_a_json_line(run: Run, handlers: Path) -> None:
    run("enqueue", "tasks", "x", "--id", "one")
    done = run("work", "tasks", "jobs:handle", "--drain", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events if event["id"] == "one"] == [
        "message-claimed",
        "message-processing",
        "message-completed",
        "message-outcome",
    ]
    assert {"workers-started", "workers-stopped"} < {event["event"] for event in events}
    assert done.stderr == b""


def test_it_ends_when_it_has_been_idle(run: Run, handlers: Path) -> None:
    run("enqueue", "tasks", "x")
    done = run("work", "tasks", "jobs:handle", "--max-idle", "0.5")
    assert b"1 done" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_handlers_finish_and_ends_with_0(run: Run, handlers: Path, number: signal.Signals) -> None:
    run("enqueue", "tasks", "x", "--id", "one")
    working = subprocess.Popen(
        [BRIGADE, "work", "tasks", "jobs:slow"], cwd=handlers, stderr=subprocess.PIPE, env=environment()
    )
    while not (handlers / "begun").exists():
        assert working.poll() is None
    working.send_signal(number)
    (handlers / "go on").touch()
    _, errors = working.communicate(timeout=60)
    assert working.returncode == 0, errors
    assert b"1 done" in errors
    assert json.loads(run("get", "tasks", "one", "--json").stdout)["state"] == "succeeded"


def test_a_status_line_on_a_terminal(run: Run, terminal: Callable[..., bytes], handlers: Path) -> None:
    run("enqueue", "tasks", "x", "y")
    shown = terminal("work", "tasks", "jobs:handle", "--drain")
    assert b"2 done, 0 retried, 0 dead in " in shown
    assert b"running" in shown


@pytest.mark.parametrize(
    "place, said",
    [
        ("jobs", "write it as module:function"),
        ("jobs:nope", "has no 'nope'; it has handle, handle_async, slow, Thing"),
        ("jobs:number", "is int, not a function"),
        ("nowhere:handle", "there is no module 'nowhere'"),
        ("jobs.deeper:handle", "there is no module 'jobs.deeper'"),
        ("broken:handle", "ZeroDivisionError: division by zero ("),
        ("needy:handle", "module 'needy' needs 'no_such_package'"),
    ],
)
def test_a_handler_that_cannot_be_found_is_wrong_usage(run: Run, handlers: Path, place: str, said: str) -> None:
    (handlers / "broken.py").write_text("1 / 0\n")
    (handlers / "needy.py").write_text("import no_such_package\n")
    done = run("work", "tasks", place, code=2)
    assert said in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_bad_options_are_wrong_usage(run: Run, handlers: Path) -> None:
    run("work", "tasks", "jobs:handle", "--queue", "other=many", code=2)
    run("work", "tasks", "jobs:handle", "--queue", "tasks", code=2)
    run("work", "tasks", "jobs:handle", "--concurrency", "0", code=2)
