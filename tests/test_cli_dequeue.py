"""`brigade dequeue`, `ack`, `nack`, `extend`, `release` and `state`: working on a queue from a shell."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import brigade
from brigade import Backoff, Failure, QueuePolicy
from installed import BRIGADE, environment

Run = Callable[..., subprocess.CompletedProcess[bytes]]
Bash = Callable[..., str]
HOSTILE = (
    'it\'s "quoted" $(touch pwned) `touch pwned`; touch pwned & \\ \n\ttwo lines\r\x1b[31mred\x1b]0;title\x07 '
    "[bold]markup[/bold] \x9b2J \u202e* ~ !! é €"
)


def open_store(tmp_path: Path) -> brigade.Hub:
    return brigade.connect(f"file://{tmp_path}/.brigade")


def leases(tmp_path: Path, queue: str = "tasks") -> int:
    with open_store(tmp_path) as hub:
        return hub.queue(queue).stats().in_flight


def test_what_dequeue_exports_leads_ack_to_the_message(run: Run, bash: Bash, tmp_path: Path) -> None:
    run("enqueue", "tasks", '{"to": "ada"}', "--id", "first", "--correlation-id", "c-1", "--attribute", "a=1")
    said = bash(
        """
        eval "$(brigade dequeue tasks --owner me --visibility 60)" || exit 9
        cat "$BRIGADE_QUEUE_PAYLOAD_PATH"; echo
        cd /
        echo "$BRIGADE_QUEUE_NAME $BRIGADE_QUEUE_MESSAGE_ID $BRIGADE_QUEUE_OWNER $BRIGADE_QUEUE_LEASE_VERSION"
        echo "$BRIGADE_QUEUE_ATTEMPT of $BRIGADE_QUEUE_MAX_ATTEMPTS $BRIGADE_QUEUE_CORRELATION_ID"
        echo "$BRIGADE_QUEUE_CONTENT_TYPE $BRIGADE_QUEUE_PAYLOAD_BYTES $BRIGADE_QUEUE_ATTRIBUTES"
        stat -c %a "$BRIGADE_QUEUE_PAYLOAD_PATH"
        brigade ack --result '{"ok": true}'
        ls "$TMPDIR"
        """
    )
    assert said.splitlines() == [
        '{"to": "ada"}',
        "tasks first me 1",
        "1 of 4 c-1",
        'application/json 13 {"a":"1"}',
        "600",
        "first acked",
    ]
    shown = json.loads(run("get", "tasks", "first", "--json").stdout)
    assert (shown["outcome"], shown["result"]) == ("processed", {"ok": True})


def test_exports_are_safe_to_eval_whatever_the_message_holds(run: Run, bash: Bash, tmp_path: Path) -> None:
    with open_store(tmp_path) as hub:
        hub.queue("tasks").enqueue(
            HOSTILE,
            id=HOSTILE,
            group=HOSTILE,
            attributes={HOSTILE: HOSTILE},
            correlation_id="it's $(touch pwned)",
            content_type="text/plain; x='$(touch pwned)'",
        )
    said = bash(
        """
        eval "$(brigade dequeue tasks --owner "$EVIL")"
        printf '%s\\0' "$BRIGADE_QUEUE_MESSAGE_ID" "$BRIGADE_QUEUE_GROUP" "$BRIGADE_QUEUE_OWNER"
        printf '%s\\0' "$BRIGADE_QUEUE_CORRELATION_ID" "$BRIGADE_QUEUE_CONTENT_TYPE" "$BRIGADE_QUEUE_ATTRIBUTES"
        cat "$BRIGADE_QUEUE_PAYLOAD_PATH"
        brigade ack >/dev/null || exit 9
        """,
        EVIL=HOSTILE,
    )
    ids, payload = said.split("\0")[:6], said.split("\0")[6]
    assert ids[:3] == [HOSTILE] * 3
    assert ids[3:5] == ["it's $(touch pwned)", "text/plain; x='$(touch pwned)'"]
    assert json.loads(ids[5]) == {HOSTILE: HOSTILE}
    assert payload == HOSTILE
    assert not (tmp_path / "pwned").exists()


def test_exports_do_not_upset_a_terminal(terminal: Callable[..., bytes], tmp_path: Path) -> None:
    with open_store(tmp_path) as hub:
        hub.queue("tasks").enqueue("x", id=HOSTILE)
    shown = terminal("dequeue", "tasks")
    assert b"\x1b" not in shown
    line = next(line for line in shown.decode().split("\r\n") if "MESSAGE_ID=" in line)
    again = subprocess.run(["bash", "-c", f'{line}; printf %s "$BRIGADE_QUEUE_MESSAGE_ID"'], capture_output=True)
    assert again.stdout.decode() == HOSTILE


def test_an_id_that_no_variable_can_hold_is_exported_as_its_ref(bash: Bash, tmp_path: Path) -> None:
    with open_store(tmp_path) as hub:
        hub.queue("tasks").enqueue("x", id="nul\0id")
    said = bash(
        'eval "$(brigade dequeue tasks)"; [ "$BRIGADE_QUEUE_MESSAGE_ID" = "$BRIGADE_QUEUE_MESSAGE_REF" ] && brigade ack'
    )
    assert said.endswith("acked\n")


def test_a_large_payload_is_streamed_to_the_file(run: Run, tmp_path: Path) -> None:
    payload = os.urandom(3_000_000)
    run("enqueue", "films", stdin=payload)
    done = json.loads(run("dequeue", "films", "--payload-out", "film.mp4", "--json").stdout)
    assert done["payload_bytes"] == len(payload)
    assert Path(done["payload_path"]) == tmp_path / "film.mp4"
    assert (tmp_path / "film.mp4").read_bytes() == payload
    assert stat.S_IMODE((tmp_path / "film.mp4").stat().st_mode) == 0o600


def test_a_dash_sends_the_payload_to_standard_output_and_the_exports_to_standard_error(run: Run) -> None:
    payload = bytes(range(256))
    run("enqueue", "tasks", "--id", "raw", stdin=payload)
    done = run("dequeue", "tasks", "--payload-out", "-")
    assert done.stdout == payload
    assert b"export BRIGADE_QUEUE_MESSAGE_ID=raw\n" in done.stderr


def test_nothing_there_ends_with_3_and_makes_eval_fail(run: Run, bash: Bash) -> None:
    run("queue", "create", "tasks")
    done = run("dequeue", "tasks", "--block", "0", code=3)
    assert done.stdout == b"(exit 3)\n"
    assert b"nothing to hand out" in done.stderr
    assert run("dequeue", "tasks", "--block", "0.1", "--json", code=3).stdout == b""
    assert bash('eval "$(brigade dequeue tasks --block 0)"; echo $?') == "3\n"
    assert bash('eval "$(brigade dequeue nowhere)" && echo went on', code=3) == ""


def test_a_loop_over_a_queue_ends_when_it_is_empty(run: Run, bash: Bash, tmp_path: Path) -> None:
    run("enqueue", "tasks", "a", "b", "c")
    said = bash(
        """
        while eval "$(brigade dequeue tasks --block 0)"; do
            cat "$BRIGADE_QUEUE_PAYLOAD_PATH"; echo
            brigade ack > /dev/null
        done 2> /dev/null
        """
    )
    assert said.split() == ["a", "b", "c"]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_dequeue_waits_for_a_message(run: Run, tmp_path: Path) -> None:
    run("queue", "create", "tasks")
    waiting = start(tmp_path, "dequeue", "tasks", "--json")
    run("enqueue", "tasks", "hello", "--id", "late")
    shown, _ = waiting.communicate(timeout=60)
    assert waiting.returncode == 0
    assert json.loads(shown)["id"] == "late"


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_dequeue_that_is_interrupted_while_it_waits_leaves_nothing_leased(
    run: Run, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    run("queue", "create", "tasks")
    waiting = start(tmp_path, "dequeue", "tasks")
    wait_for_watch(waiting)
    waiting.send_signal(number)
    shown, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == code, errors
    assert shown == f"(exit {code})\n".encode()
    assert errors.strip() == {130: b"brigade: interrupted", 143: b"brigade: terminated"}[code]
    run("enqueue", "tasks", "y")
    assert leases(tmp_path) == 0


def test_a_dequeue_that_is_interrupted_while_it_writes_gives_the_message_back(run: Run, tmp_path: Path) -> None:
    """The reader of the fifo never reads, so that the payload stays half written."""
    run("enqueue", "tasks", "--id", "held", stdin=b"x" * 200_000)
    os.mkfifo(tmp_path / "fifo")
    reader = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    writing = start(tmp_path, "dequeue", "tasks", "--payload-out", "fifo")
    while leases(tmp_path) == 0:
        assert writing.poll() is None
    while writing.poll() is None:
        writing.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            writing.wait(1)
    shown, errors = writing.communicate()
    os.close(reader)
    assert (writing.returncode, shown) == (130, b"(exit 130)\n"), errors
    held = json.loads(run("get", "tasks", "held", "--json").stdout)
    assert (held["state"], held["attempts"]) == ("ready", 0)


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [BRIGADE, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )


def wait_for_watch(process: subprocess.Popen[bytes]) -> None:
    """Until the process watches its store, which it does when it waits for a message."""
    while process.poll() is None:
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if "inotify" in str(entry.readlink()):
                    return


def test_a_payload_that_cannot_be_written_gives_the_message_back(run: Run, tmp_path: Path) -> None:
    run("enqueue", "tasks", "x", "--id", "one")
    for target in ("/dev/full", "/proc/nope"):
        done = run("dequeue", "tasks", "--payload-out", target, code=1)
        assert b"it was given back" in done.stderr
        assert done.stderr.count(b"\n") == 1
    for target in ("no/such/directory/x", "."):
        run("dequeue", "tasks", "--payload-out", target, code=2)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [BRIGADE, "dequeue", "tasks"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(TMPDIR=str(tmp_path)),
        )
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert not list(tmp_path.glob("brigade-*"))
    shown = json.loads(run("get", "tasks", "one", "--json").stdout)
    assert (shown["state"], shown["attempts"]) == ("ready", 0)


def test_a_file_in_which_the_payload_did_not_fit_is_removed(run: Run, bash: Bash, tmp_path: Path) -> None:
    run("enqueue", "films", "--id", "big", stdin=os.urandom(1_000_000))
    bash("ulimit -f 500; trap '' XFSZ; brigade dequeue films --payload-out film.mp4", code=1)
    assert not (tmp_path / "film.mp4").exists()
    assert leases(tmp_path, "films") == 0


def test_a_settled_lease_is_stale_and_ends_with_4(run: Run, tmp_path: Path) -> None:
    run("enqueue", "tasks", "x", "--id", "one")
    lease = json.loads(run("dequeue", "tasks", "--json").stdout)
    named = ["--queue", "tasks", "--id", "one", "--token", lease["token"], "--version", str(lease["version"])]
    assert run("release", *named).stdout == b"one released\n"
    for command in (["ack"], ["nack"], ["release"], ["extend", "5"]):
        done = run(*command, *named, code=4)
        assert done.stderr.startswith(b"brigade: the lease on message")
        assert done.stderr.count(b"\n") == 1
    again = json.loads(run("dequeue", "tasks", "--json").stdout)
    assert (again["version"], again["attempt"]) == (2, 1)
    run("ack", *named, code=4)
    for token in ("", "nonsense", "x.0", HOSTILE):
        run("ack", "--queue", "tasks", "--ref", again["ref"], "--token", token or " ", code=4)
    run("ack", "--queue", "tasks", "--ref", "x", "--token", "t.x", code=4)
    run("ack", "--queue", "tasks", "--id", "no such", "--token", "t.x", code=4)
    run("ack", "--queue", "tasks", "--ref", again["ref"], "--token", again["token"])


def test_options_name_another_message_than_the_environment_does(run: Run) -> None:
    run("enqueue", "tasks", "x", "--id", "a")
    run("enqueue", "tasks", "y", "--id", "b")
    first, second = (json.loads(run("dequeue", "tasks", "--json").stdout) for _ in range(2))
    exported = {
        "BRIGADE_QUEUE_NAME": "tasks",
        "BRIGADE_QUEUE_MESSAGE_ID": first["id"],
        "BRIGADE_QUEUE_MESSAGE_REF": first["ref"],
        "BRIGADE_QUEUE_LEASE_TOKEN": first["token"],
    }
    assert run("ack", "--id", second["id"], "--token", second["token"], **exported).stdout == b"b acked\n"
    assert run("ack", **exported).stdout == b"a acked\n"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("ack",), "which queue?"),
        (("ack", "--queue", "tasks"), "which message?"),
        (("ack", "--queue", "tasks", "--id", "x"), "--token"),
        (("nack", "--reject", "--delay", "5"), "--reject takes neither"),
        (("state", "load", "--queue", "tasks"), "--id or --ref"),
        (("state", "save", "not json", "--queue", "tasks", "--id", "x"), "is not JSON"),
        (("dequeue", "tasks", "--block", "-1"), "--block is -1.0"),
        (("dequeue", "tasks", "--visibility", "0"), "visibility is 0.0"),
    ],
)
def test_wrong_usage_says_what_is_missing(run: Run, arguments: tuple[str, ...], said: str) -> None:
    run("queue", "create", "tasks")
    done = run(*arguments, code=2)
    assert said in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_nack_retries_and_then_fails(run: Run, bash: Bash, tmp_path: Path) -> None:
    with open_store(tmp_path) as hub:
        hub.queue("tasks", policy=QueuePolicy(failure=Failure("retry", max_retries=1), backoff=Backoff(base=0)))
    run("enqueue", "tasks", "x", "--id", "one")
    take = 'eval "$(brigade dequeue tasks --block 0)" && '
    assert bash(take + "brigade nack --error down --no-penalty") == "one nacked; it will be retried\n"
    assert (
        bash(take + "echo $BRIGADE_QUEUE_ATTEMPT; brigade nack --error down") == "1\none nacked; it will be retried\n"
    )
    assert bash(take + "brigade nack --error 'down again'") == "one nacked, and failed for good\n"
    with open_store(tmp_path) as hub:
        (parked,) = hub.queue("tasks").failed()
    assert (parked.error, parked.attempts) == ("down again", 2)
    run("enqueue", "tasks", "y", "--id", "two")
    assert json.loads(bash(take + "brigade nack --reject --json"))["state"] == "failed"
    run("enqueue", "tasks", "z", "--id", "three")
    bash(take + "brigade nack --delay 3600")
    assert json.loads(run("stats", "--json").stdout)["tasks"]["delayed"] == 1


def test_extend_exports_the_new_expiry(run: Run, bash: Bash) -> None:
    run("enqueue", "tasks", "x", "--id", "one")
    before, after, json_too = bash(
        """
        eval "$(brigade dequeue tasks --visibility 60)"; echo "$BRIGADE_QUEUE_LEASE_EXPIRES_AT"
        eval "$(brigade extend 600)"; echo "$BRIGADE_QUEUE_LEASE_EXPIRES_AT"
        brigade extend 900 --json | tr -d '\\n'
        """
    ).splitlines()
    assert before < after < json.loads(json_too)["expires_at"]


def test_release_gives_the_message_back_with_a_delay(run: Run, bash: Bash) -> None:
    run("enqueue", "tasks", "x", "--id", "one")
    assert bash('eval "$(brigade dequeue tasks)"; brigade release --delay 3600') == "one released\n"
    stats = json.loads(run("stats", "--json").stdout)["tasks"]
    assert (stats["delayed"], stats["in_flight"]) == (1, 0)


def test_workflow_state_goes_from_one_shell_to_the_next(run: Run, bash: Bash, tmp_path: Path) -> None:
    run("enqueue", "tasks", "x", "--id", "one")
    said = bash(
        """
        eval "$(brigade dequeue tasks --stateful)"
        cat "$BRIGADE_QUEUE_STATE_PATH"; echo " ${BRIGADE_QUEUE_STATE_ETAG-none}"
        brigade state load; echo $?
        eval "$(brigade state save '{"step": 1}')"
        eval "$(echo '{"step": 2}' | brigade state save -)"
        cat "$BRIGADE_QUEUE_STATE_PATH"; echo
        brigade release --json > /dev/null
        """
    )
    assert said.splitlines() == ["null none", "3", '{"step":2}']
    said = bash(
        """
        eval "$(brigade dequeue tasks --stateful)"
        cat "$BRIGADE_QUEUE_STATE_PATH"; echo
        brigade state save '"theirs"' --id one --etag "$BRIGADE_QUEUE_STATE_ETAG" > /dev/null
        brigade state save '"mine"'; echo $?
        brigade state load
        brigade ack > /dev/null
        ls "$TMPDIR"
        """
    )
    assert said.splitlines() == ['{"step":2}', "4", '"theirs"']


def test_a_paused_queue_is_said_and_waits(run: Run) -> None:
    run("enqueue", "tasks", "x")
    run("queue", "pause", "tasks")
    done = run("dequeue", "tasks", "--block", "0", code=1)
    assert b"`brigade queue resume` hands messages out again" in done.stderr


def test_a_damaged_payload_counts_as_an_attempt(run: Run, tmp_path: Path) -> None:
    run("enqueue", "films", "--id", "big", stdin=os.urandom(1_000_000))
    (blob,) = (tmp_path / ".brigade" / "q" / "films" / "blob").iterdir()
    blob.write_bytes(b"short")
    done = run("dequeue", "films", "--payload-out", "film.mp4", code=1)
    assert b"is damaged" in done.stderr
    assert not (tmp_path / "film.mp4").exists()
    shown = json.loads(run("get", "films", "big", "--json").stdout)
    assert (shown["state"], shown["attempts"]) == ("ready", 1)
