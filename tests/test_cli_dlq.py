"""`brigade dlq`: failures, parked or in a dead-letter queue, seen and brought back from a shell."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import brigade
from brigade import Backoff, Failure, Nack, QueuePolicy

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def fail(tmp_path: Path, name: str, ids: list[str], *, letters: str | None = None, error: str = "boom") -> None:
    """Enqueue messages and let them fail for good."""
    failure = Failure("retry", max_retries=0) if letters is None else Failure("dead-letter", dead_letter_queue=letters)
    with brigade.connect(f"file://{tmp_path}/.brigade") as hub:
        queue = hub.queue(name, policy=QueuePolicy(failure=failure, backoff=Backoff(base=0)))
        queue.enqueue_many([brigade.NewMessage(payload={"n": one}, id=one) for one in ids])
        held: list[brigade.Message] = []
        while len(held) < len(ids):
            held += queue.claim(len(ids), wait=5)
        queue.settle([Nack(message, error=error) for message in held])


def listed(run: Run, name: str) -> list[str]:
    done = run("dlq", "list", name, "--json", code=0)
    return sorted(one["id"] for one in json.loads(done.stdout))


@pytest.fixture(params=["parked", "letters"])
def letters(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "parked" else "tasks_dlq"


def test_list_show_redrive(run: Run, tmp_path: Path, letters: str | None) -> None:
    fail(tmp_path, "tasks", ["a", "b", "c"], letters=letters)
    assert listed(run, "tasks") == ["a", "b", "c"]
    shown = json.loads(run("dlq", "show", "tasks", "b", "--json").stdout)
    assert (shown["queue"], shown["error"], shown["attempts"], shown["data"]) == ("tasks", "boom", 1, {"n": "b"})
    assert shown["lies_in"] == (letters or "tasks")
    assert '{"n":"b"}' in run("dlq", "show", "tasks", "b").stdout.decode()
    assert run("dlq", "redrive", "tasks", "--id", "b").stdout == b"1 message brought back\n"
    assert listed(run, "tasks") == ["a", "c"]
    assert json.loads(run("peek", "tasks", "--json").stdout)[0]["id"] == "b"
    assert json.loads(run("dlq", "redrive", "tasks", "--limit", "1", "--json").stdout)["redriven"] == 1
    assert run("dlq", "redrive", "tasks").stdout == b"1 message brought back\n"
    run("dlq", "list", "tasks", code=3)
    run("dlq", "redrive", "tasks", code=3)
    run("dlq", "show", "tasks", "a", code=3)
    assert json.loads(run("stats", "tasks", "--json").stdout)["tasks"]["ready"] == 3


def test_ids_that_did_not_fail_are_told(run: Run, tmp_path: Path, letters: str | None) -> None:
    fail(tmp_path, "tasks", ["a"], letters=letters)
    done = run("dlq", "redrive", "tasks", "--id", "a", "--id", "nope", code=3)
    assert done.stdout == b"1 message brought back\n"
    assert b"1 of 2 ids" in done.stderr


def test_a_dead_letter_queue_shows_what_lies_in_it(run: Run, tmp_path: Path) -> None:
    fail(tmp_path, "tasks", ["a"], letters="dlq")
    fail(tmp_path, "other", ["b"], letters="dlq")
    assert listed(run, "dlq") == ["a", "b"]
    assert listed(run, "tasks") == ["a"]
    letter = json.loads(run("dlq", "show", "dlq", "b", "--json").stdout)["letter_id"]
    assert json.loads(run("dlq", "show", "dlq", letter, "--json").stdout)["id"] == "b"
    assert run("dlq", "redrive", "dlq").stdout == b"2 messages brought back\n"
    assert [json.loads(run("stats", "--json").stdout)[name]["ready"] for name in ("dlq", "other", "tasks")] == [0, 1, 1]


def test_failures_are_counted_by_error(run: Run, tmp_path: Path, letters: str | None) -> None:
    fail(tmp_path, "tasks", ["a", "b", "c"], letters=letters)
    fail(tmp_path, "tasks", ["d"], letters=letters, error="other")
    groups = json.loads(run("dlq", "list", "tasks", "--group", "--json").stdout)
    assert [(group["count"], group["error"]) for group in groups] == [(3, "boom"), (1, "other")]
    assert "boom" in run("dlq", "list", "tasks", "--group").stdout.decode()


def test_purge_drops_failures_and_nothing_else(run: Run, tmp_path: Path, letters: str | None) -> None:
    fail(tmp_path, "tasks", ["a", "b"], letters=letters)
    run("enqueue", "tasks", "still to do")
    if letters:
        fail(tmp_path, "other", ["c"], letters=letters)
        run("enqueue", letters, "an ordinary message")
    assert json.loads(run("dlq", "purge", "tasks", "--yes", "--json").stdout)["purged"] == 2
    run("dlq", "list", "tasks", code=3)
    assert json.loads(run("stats", "--json").stdout)["tasks"]["ready"] == 1
    if letters:
        assert listed(run, letters) == ["c"]
        assert run("dlq", "purge", letters, "--yes").stdout == b"1 failure dropped\n"
        stats = json.loads(run("stats", "--json").stdout)[letters]
        assert (stats["ready"], stats["in_flight"]) == (1, 0)


def test_many_are_brought_back_in_rounds(run: Run, tmp_path: Path) -> None:
    fail(tmp_path, "tasks", [f"m{n}" for n in range(2300)])
    done = run("dlq", "list", "tasks", "--limit", "2")
    assert b"more than 2" in done.stderr
    assert run("dlq", "redrive", "tasks", "--limit", "1500").stdout == b"1,500 messages brought back\n"
    assert run("dlq", "redrive", "tasks").stdout == b"800 messages brought back\n"


def test_a_redrive_shows_its_progress_on_a_terminal(
    run: Run, terminal: Callable[..., bytes], tmp_path: Path, letters: str | None
) -> None:
    fail(tmp_path, "tasks", [f"m{n}" for n in range(20)], letters=letters)
    shown = terminal("dlq", "redrive", "tasks")
    assert b"20/20" in shown
    assert b"20 messages brought back" in shown


def test_a_queue_that_never_failed(run: Run) -> None:
    run("queue", "create", "tasks", "--mode", "hybrid", "--dead-letter-queue", "never_made")
    for command in (["list"], ["redrive"]):
        done = run("dlq", *command, "tasks", code=3)
        assert b"has no failures" in done.stderr
    assert run("dlq", "purge", "tasks", "--yes").stdout == b"0 failures dropped\n"
    run("dlq", "list", "nowhere", code=3)
