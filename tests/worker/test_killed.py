"""Workers that die or are frozen: what they held comes back, and what they say later is refused."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from worker_support import AT_ONCE, PATIENT, Running, alive, ended, handler_processes, until, worker_process

from brigade import Failure, Hub, QueuePolicy, Worker

LEASE = 1.5


def lines_of(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def test_what_a_killed_worker_held_is_recovered_and_counted(
    url: str, hub: Hub, tmp_path: Path, running: list[Running]
) -> None:
    """[G1] [G4] Killed in the middle of fifty messages: each is processed, those that it held at a further attempt."""
    queue = hub.queue("tasks", QueuePolicy(visibility_timeout=LEASE, backoff=AT_ONCE, failure=Failure("retry", 1000)))
    seen = tmp_path / "seen"
    receipts = queue.enqueue_many([{"path": str(seen), "n": n, "seconds": 0.02} for n in range(50)])
    victim = worker_process(url, "worker_handlers:tell", concurrency=4, worker_id="victim")
    running.append(victim)
    until(lambda: len(lines_of(seen)) >= 10)
    victim.send(signal.SIGKILL)
    assert victim.end() == -signal.SIGKILL
    held = [one for one in receipts if queue.get(one.id).owner == "victim"]
    assert held, "it died with nothing in its hands"

    heard = []
    hub.on("message-recovered", lambda event: heard.append(event.id))
    with Worker(queue, lambda message: message.data["n"], worker_id="heir"):
        until(lambda: ended(queue))
    infos = [queue.get(one.id) for one in receipts]
    assert [info.result for info in infos] == list(range(50))
    assert all(queue.get(one.id).attempts == 2 for one in held)
    assert {one.id for one in held} <= set(heard)
    assert queue.stats().succeeded == 50


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_message_that_kills_its_workers_is_dead_lettered(
    executor: str, url: str, hub: Hub, running: list[Running]
) -> None:
    """[G4] A worker that dies counts as an attempt; a process of a handler that dies does, and its worker lives."""
    policy = QueuePolicy(visibility_timeout=0.5, backoff=AT_ONCE, failure=Failure("hybrid", 1, "letters"))
    queue, letters = hub.queue("tasks", policy), hub.queue("letters")
    receipt = queue.enqueue({"times": 1000}, correlation_id="the killer")
    if executor == "process":
        running.append(worker_process(url, "worker_handlers:die", executor="process", concurrency=1))
        (letter,) = until(letters.claim)
    else:
        for _ in range(2):
            running.append(worker_process(url, "worker_handlers:die", concurrency=1))
            assert running[-1].end() == -signal.SIGKILL
        with Worker(queue, lambda message: "must not come here"):
            (letter,) = until(letters.claim)
    assert letter.correlation_id == "the killer"
    assert letter.failure is not None
    assert letter.failure.id == receipt.id
    assert letter.failure.attempts == 2
    if executor == "process":
        assert "SIGKILL" in str(letter.failure.error)
        assert running[-1].process.poll() is None


def test_a_frozen_worker_finds_that_others_have_its_messages(
    url: str, hub: Hub, tmp_path: Path, running: list[Running]
) -> None:
    """[G2] [G5] Stopped beyond its lease and continued: its ack is refused, what it had ahead isn't run by it again."""
    queue = hub.queue("tasks", QueuePolicy(visibility_timeout=LEASE, backoff=AT_ONCE, failure=Failure("retry", 1000)))
    seen, late = tmp_path / "seen", tmp_path / "late"
    queue.enqueue_many([{"path": str(seen), "n": n} for n in range(200)])
    frozen = worker_process(url, "worker_handlers:tell", concurrency=1, worker_id="frozen")
    running.append(frozen)
    until(lambda: ended(queue))
    # Handlers were fast: of those that come now it claims many ahead.
    path = str(late)
    receipts = queue.enqueue_many([{"path": path, "n": n, "seconds": 2 if n == 0 else 0.01} for n in range(20)])
    until(late.exists)
    until(lambda: all(queue.get(one.id).owner == "frozen" for one in receipts[:10]))
    frozen.send(signal.SIGSTOP)
    until(lambda: queue.stats().ready == 20 or queue.peek(20))
    with Worker(queue, lambda message: "taken over", worker_id="heir"):
        until(lambda: ended(queue))
    frozen.send(signal.SIGCONT)
    lost = frozen.wait_for("lease-lost")
    assert receipts[0].id in " ".join(until(lambda: frozen.wait_for("lease-lost", 1) and lost))
    frozen.send(signal.SIGTERM)
    assert frozen.end() == 0, frozen.said

    assert {queue.get(one.id).result for one in receipts} == {"taken over"}
    assert {queue.get(one.id).attempts for one in receipts} == {2}
    runs = Counter(line[0] for line in lines_of(late))
    assert runs == {"0": 1}, "what others had taken was run by the old worker, too"
    completed = [line for line in frozen.lines if line.startswith("message-completed")]
    assert len(completed) == 200, "a result that came too late counted"


def test_a_frozen_worker_goes_on_where_nobody_took_over(
    url: str, hub: Hub, tmp_path: Path, running: list[Running]
) -> None:
    """[G5] The token is the fence, not the clock."""
    queue = hub.queue("tasks", QueuePolicy(visibility_timeout=0.5, backoff=AT_ONCE, failure=Failure("retry", 1000)))
    receipt = queue.enqueue({"path": str(tmp_path / "seen"), "n": 7, "seconds": 1})
    frozen = worker_process(url, "worker_handlers:tell", concurrency=1)
    running.append(frozen)
    until((tmp_path / "seen").exists)
    frozen.send(signal.SIGSTOP)
    until(queue.peek)
    frozen.send(signal.SIGCONT)
    until(lambda: ended(queue))
    assert queue.get(receipt.id).result == 7
    assert not [line for line in frozen.lines if line.startswith("message-dead")]


def test_processes_of_handlers_end_with_a_killed_worker(
    url: str, hub: Hub, tmp_path: Path, running: list[Running]
) -> None:
    queue = hub.queue("tasks", PATIENT)
    queue.enqueue({"path": str(tmp_path / "begun")})
    worker = worker_process(url, "worker_handlers:hang", executor="process", concurrency=2)
    running.append(worker)
    until((tmp_path / "begun").exists)
    processes = until(lambda: found if len(found := handler_processes(worker.pid)) == 2 else [])
    assert int((tmp_path / "begun").read_text()) in processes
    worker.send(signal.SIGKILL)
    worker.end()
    until(lambda: not any(map(alive, processes)))


@pytest.mark.parametrize(
    "executor",
    [
        "thread",
        "process",
    ],
)
def test_a_program_that_forgets_to_stop_its_worker_ends_nevertheless(
    executor: str, url: str, hub: Hub, tmp_path: Path, running: list[Running]
) -> None:
    hub.queue("tasks", PATIENT).enqueue({"path": str(tmp_path / "begun")})
    how = f"leave {tmp_path / 'begun'}"
    program = worker_process(url, "worker_handlers:hang", how=how, executor=executor, concurrency=1)
    running.append(program)
    until((tmp_path / "begun").exists)
    processes = handler_processes(program.pid)
    os.kill(program.pid, 0)
    program.wait_for("left")
    assert program.end() == 3, program.said
    until(lambda: not any(map(alive, processes)))
