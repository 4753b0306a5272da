"""`brigade queue`, `enqueue --fields`, `stats --watch`, completion, and text that means harm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import brigade
from brigade.policy import QueuePolicy, encode_policy
from installed import BRIGADE, environment

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Terminal = Callable[..., bytes]
HOSTILE = "\x1b[31mred\x1b]0;title\x07\r\n\tnext [bold]markup[/bold] [/] \x9b2J \u202ertl \x7f"


def policy_of(run: Run, name: str) -> dict[str, object]:
    return json.loads(run("queue", "policy", name, "--json").stdout)


def test_create_stores_a_policy_from_options(run: Run) -> None:
    options = ["--ordering", "lifo", "--strict", "--visibility", "120", "--execution-timeout", "60"]
    options += ["--mode", "hybrid", "--max-retries", "5", "--dead-letter-queue", "tasks_dlq"]
    options += ["--backoff-base", "1", "--backoff-maximum", "10", "--jitter", "none"]
    options += ["--ttl", "3600", "--retention", "86400", "--max-payload", "1000"]
    assert run("queue", "create", "tasks", *options).stdout == b"queue tasks created\n"
    assert policy_of(run, "tasks") == {
        **encode_policy(QueuePolicy()),
        "ordering": "lifo",
        "ordering_guarantee": True,
        "visibility_timeout": 120,
        "execution_timeout": 60,
        "failure": {"mode": "hybrid", "max_retries": 5, "dead_letter_queue": "tasks_dlq"},
        "backoff": {"base": 1, "maximum": 10, "jitter": None},
        "ttl": 3600,
        "retention": 86400,
        "max_payload": 1000,
    }
    assert b"already" in run("queue", "create", "tasks").stdout
    assert b"already" in run("queue", "create", "tasks", *options).stdout
    done = run("queue", "create", "tasks", "--visibility", "5", code=2)
    assert b"exists with another policy" in done.stderr


def test_policy_changes_just_the_given_fields(run: Run) -> None:
    run("queue", "create", "tasks", "--mode", "hybrid", "--dead-letter-queue", "tasks_dlq", "--ttl", "5")
    before = policy_of(run, "tasks")
    run("queue", "policy", "tasks", "--visibility", "90", "--ttl", "none")
    assert policy_of(run, "tasks") == {**before, "visibility_timeout": 90, "ttl": None}
    shown = run("queue", "policy", "tasks", "--mode", "retry").stdout.decode()
    assert " ".join(shown.split()).count("failure.dead_letter_queue none") == 1


def test_a_policy_goes_from_one_queue_to_another_as_json(run: Run, bash: Callable[..., str], tmp_path: Path) -> None:
    run("queue", "create", "a", "--visibility", "77")
    bash("brigade queue policy a --json | brigade queue create b --policy - --max-retries 9")
    assert policy_of(run, "b")["visibility_timeout"] == 77
    (tmp_path / "policy.json").write_text('{"ttl": 60, "failure": {"max_retries": 1}}')
    run("queue", "policy", "b", "--policy", "policy.json")
    stored = policy_of(run, "b")
    assert (stored["ttl"], stored["visibility_timeout"]) == (60, 30)


@pytest.mark.parametrize(
    "options, said",
    [
        (["--mode", "hybrid"], "dead_letter_queue is missing"),
        (["--dead-letter-queue", "x"], "use mode 'hybrid'"),
        (["--mode", "hybrid", "--dead-letter-queue", "tasks"], "the queue itself"),
        (["--ttl", "soon"], "neither a number of seconds nor 'none'"),
        (["--visibility", "0"], "visibility_timeout is 0.0"),
        (["--policy", "-"], "is not JSON"),
        (["--ordering", "random"], "is not one of 'fifo', 'lifo'"),
    ],
)
def test_a_bad_policy_names_the_field(run: Run, options: list[str], said: str) -> None:
    done = run("queue", "create", "tasks", *options, code=2)
    assert said in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_pause_and_resume(run: Run) -> None:
    run("enqueue", "tasks", "x")
    assert json.loads(run("queue", "pause", "tasks", "--json").stdout) == {"queue": "tasks", "paused": True}
    run("dequeue", "tasks", "--block", "0", code=1)
    run("queue", "resume", "tasks")
    run("dequeue", "tasks", "--block", "0")


@pytest.mark.parametrize("command", [["queue", "purge"], ["queue", "delete"], ["dlq", "purge"]])
def test_what_destroys_asks_first(run: Run, terminal: Terminal, command: list[str]) -> None:
    run("enqueue", "tasks", "x", "--ttl", "0.001")
    run("sweep")
    run("enqueue", "tasks", "y")
    done = run(*command, "tasks", code=2)
    assert b"--yes" in done.stderr
    assert b"interrupted" in terminal(*command, "tasks", keys=b"n\n", code=130)
    assert json.loads(run("stats", "--json").stdout)["tasks"]["total"] == 2
    assert b"[y/N]" in terminal(*command, "tasks", keys=b"y\n")
    left = json.loads(run("queues", "--json", code=3 if "delete" in command else 0).stdout)
    assert left == ([] if "delete" in command else ["tasks"])


def test_purge_and_delete_with_yes(run: Run) -> None:
    run("enqueue", "tasks", "x", "y")
    assert run("queue", "purge", "tasks", "--yes").stdout == b"2 messages dropped\n"
    assert json.loads(run("queue", "delete", "tasks", "--yes", "--json").stdout)["deleted"] is True
    done = run("queue", "delete", "tasks", "--yes", code=3)
    assert b"`brigade queue create` makes it" in done.stderr


def test_lines_may_bring_their_own_options(run: Run) -> None:
    lines = [
        {"payload": {"n": 1}, "id": "a", "priority": 0, "attributes": {"k": [1]}, "correlation_id": "c"},
        {"payload": "text", "id": "b", "group": "g", "delay": 60, "ttl": 90, "max_attempts": 7},
        {"payload": [1], "id": "a"},
        {"payload": None},
    ]
    text = b"\n".join(json.dumps(line).encode() for line in lines)
    done = json.loads(run("enqueue", "tasks", "--fields", "--priority", "7", "--json", stdin=text).stdout)
    assert (done["enqueued"], done["duplicates"]) == (3, 1)
    first, last = json.loads(run("peek", "tasks", "--json").stdout)
    assert (first["id"], first["priority"], first["attributes"]) == ("a", 0, {"k": [1]})
    assert (last["data"], last["priority"]) == (None, 7)
    second = json.loads(run("get", "tasks", "b", "--json").stdout)
    assert (second["group"], second["max_attempts"], second["data"]) == ("g", 7, "text")


@pytest.mark.parametrize(
    "line, said",
    [
        (b'{"id": "x"}', 'is not an object with a "payload"'),
        (b"[1]", 'is not an object with a "payload"'),
        (b'{"payload": 1, "prio": 2}', "unknown field 'prio'"),
        (b'{"payload": 1, "priority": "high"}', "$.priority"),
        (b'{"payload": 1, "priority": 12}', "priority is 12"),
        (b'{"payload": 1, "delay": -1}', "delay is -1"),
        (b'{"payload": NaN}', "is not JSON"),
    ],
)
def test_a_bad_line_is_named(run: Run, line: bytes, said: str) -> None:
    done = run("enqueue", "tasks", "--fields", stdin=b'{"payload": 1}\n' + line + b"\n", code=1)
    assert f"line 2 {said}" in done.stderr.decode() or (b"line 2" in done.stderr and said in done.stderr.decode())
    assert done.stderr.count(b"\n") == 1
    assert json.loads(run("stats", "--json").stdout)["tasks"]["total"] == 0


def test_json_is_stored_byte_for_byte(run: Run, tmp_path: Path) -> None:
    text = b'{"n": 1.0000000000000000000001,\n  "n": 2}\n'
    (tmp_path / "order.json").write_bytes(text)
    run("enqueue", "tasks", "--file", "order.json", "--id", "file")
    run("enqueue", "tasks", "--id", "stdin", stdin=text)
    for one in ("file", "stdin"):
        assert run("get", "tasks", one, "--payload").stdout == text
        assert json.loads(run("get", "tasks", one, "--json").stdout)["content_type"] == "application/json"


def test_stats_are_watched_until_interrupted(run: Run, tmp_path: Path) -> None:
    run("enqueue", "tasks", "x")
    watching = subprocess.Popen(
        [BRIGADE, "stats", "--watch", "0.1", "tasks", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert watching.stdout is not None
    first = json.loads(watching.stdout.readline())["queues"]["tasks"]
    assert (first["ready"], first["enqueued_per_second"]) == (1, None)
    with brigade.connect(f"file://{tmp_path}/.brigade") as hub:
        queue = hub.queue("tasks")
        queue.enqueue_many(range(10))
        queue.ack_many(queue.claim(4))
    added = done = 0.0
    while added == 0 or done == 0:
        line = json.loads(watching.stdout.readline())
        added += line["queues"]["tasks"]["enqueued_per_second"]
        done += line["queues"]["tasks"]["done_per_second"]
    assert line["requests"] > 0
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=60)
    assert (watching.returncode, errors) == (0, b"")


def test_a_watch_is_a_live_table_on_a_terminal(run: Run, tmp_path: Path) -> None:
    run("enqueue", "tasks", "x")
    ours, theirs = os.openpty()
    watching = subprocess.Popen(
        [BRIGADE, "stats", "--watch", "0.2"],
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(TERM="xterm", COLUMNS="100"),
    )
    os.close(theirs)
    shown = b""
    while shown.count(b"storage requests") < 3:
        shown += os.read(ours, 65536)
    watching.send_signal(signal.SIGINT)
    while watching.poll() is None:
        try:
            shown += os.read(ours, 65536)
        except OSError:
            break
    assert watching.wait(60) == 0, shown
    os.close(ours)
    assert b"done/s" in shown
    assert b"Traceback" not in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run: Run, shell: str) -> None:
    assert b"_BRIGADE_COMPLETE" in run("completion", shell).stdout


def complete(run: Run, words: str, **more: str) -> list[str]:
    count = str(len(words.split(" ")) - 1)
    done = run(_BRIGADE_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=count, **more)
    assert done.stderr == b""
    return [line.partition(",")[2] for line in done.stdout.decode().split("\n") if line]


def completed(run: Run, words: str, **more: str) -> list[str]:
    """The same where a store has to answer: on a busy machine completion gives up rather than keep a shell waiting."""
    return next(filter(None, (complete(run, words, **more) for _ in range(20))), [])


def test_commands_and_queues_are_completed(run: Run) -> None:
    run("enqueue", "tasks", "x")
    run("enqueue", "tables", "x")
    run("enqueue", "other", "x", "--url", "file://./there")
    assert complete(run, "brigade pee") == ["peek"]
    assert complete(run, "brigade queue pu") == ["purge"]
    assert completed(run, "brigade peek ta") == ["tables", "tasks"]
    assert completed(run, "brigade stats tasks tab") == ["tables"]
    assert completed(run, "brigade --url file://./there peek o") == ["other"]
    assert completed(run, "brigade peek o", BRIGADE_URL="file://./there") == ["other"]


@pytest.mark.parametrize("url", ["file://./nowhere", "ftp://x", "nonsense", "memory://", "file:///dev/null"])
def test_completion_is_silent_where_there_is_no_store(run: Run, url: str) -> None:
    assert complete(run, "brigade peek t", BRIGADE_URL=url) == []


def test_hostile_text_is_shown_as_it_is(run: Run, terminal: Terminal, tmp_path: Path) -> None:
    with brigade.connect(f"file://{tmp_path}/.brigade") as hub:
        queue = hub.queue("tasks", policy=QueuePolicy(failure=brigade.Failure("retry", max_retries=0)))
        queue.enqueue(HOSTILE, id=f"failed {HOSTILE}", attributes={HOSTILE: HOSTILE}, group=HOSTILE)
        (message,) = queue.claim()
        queue.nack(message, error=f"boom {HOSTILE}")
        queue.enqueue(HOSTILE, id=HOSTILE, attributes={HOSTILE: HOSTILE})
        queue.enqueue({HOSTILE: HOSTILE})
        queue.enqueue(b"not json", content_type="application/json")
    for arguments in (
        ["peek", "tasks"],
        ["peek", "tasks", "--json"],
        ["get", "tasks", HOSTILE],
        ["get", "tasks", HOSTILE, "--json"],
        ["dlq", "list", "tasks"],
        ["dlq", "list", "tasks", "--group"],
        ["dlq", "show", "tasks", f"failed {HOSTILE}"],
        ["dlq", "show", "tasks", f"failed {HOSTILE}", "--json"],
    ):
        shown = terminal(*arguments).decode()
        # What rich itself writes is styles of tables' heads.
        plain = shown.replace("\x1b[1m", "").replace("\x1b[0m", "").replace("\x1b[2m", "")
        for bad in ("\x1b", "\x07", "\x9b", "\u202e", "\x7f"):
            assert bad not in plain, (arguments, shown)
        if "--json" not in arguments:
            joined = "".join(plain.split())
            assert "[bold]markup[/bold]" in joined or "[bold]" in joined, (arguments, shown)
    assert b"control characters" in terminal("get", "tasks", HOSTILE, "--payload", code=2)
    assert run("get", "tasks", HOSTILE, "--payload").stdout == HOSTILE.encode()
    shown = json.loads(run("get", "tasks", HOSTILE, "--json").stdout)
    assert (shown["id"], shown["data"], shown["attributes"]) == (HOSTILE, HOSTILE, {HOSTILE: HOSTILE})


@pytest.mark.parametrize(
    "arguments, code",
    [
        (("get", "tasks", HOSTILE), 3),
        (("peek", HOSTILE), 2),
        (("dlq", "show", "tasks", HOSTILE), 3),
        (("stats", "--url", f"file://{HOSTILE}"), 3),
        (("queue", "create", "q", "--mode", HOSTILE), 2),
        ((HOSTILE,), 2),
    ],
)
def test_errors_about_hostile_text_are_one_line(run: Run, arguments: tuple[str, ...], code: int) -> None:
    run("queue", "create", "tasks")
    done = run(*arguments, code=code)
    assert done.stderr.count(b"\n") == 1
    for bad in (b"\x1b", b"\x07", b"\r", b"\xc2\x9b", b"\x7f"):
        assert bad not in done.stderr
