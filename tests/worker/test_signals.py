"""Workers as programs: what SIGTERM and SIGINT make them do."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from worker_support import AT_ONCE, Running, children, handler_processes, named, until, worker_process

import brigade
from brigade import Hub, Queue, QueuePolicy, State, Worker

LONG = QueuePolicy(visibility_timeout=600, backoff=AT_ONCE)
"""A lease that no test can wait for: what comes back was given back."""

SIGNALS = [signal.SIGTERM, signal.SIGINT]


@pytest.fixture
def queue(hub: Hub) -> Queue:
    return hub.queue("tasks", LONG)


def lines_of(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("how", ["run", "serve"])
@pytest.mark.parametrize("sent", SIGNALS, ids=lambda one: one.name)
def test_a_signal_lets_handlers_finish_and_gives_the_rest_back_at_once(
    sent: signal.Signals, how: str, url: str, queue: Queue, tmp_path: Path, running: list[Running]
) -> None:
    """[G1] Two messages run and are finished; those that were claimed ahead are there for others, uncounted."""
    seen = tmp_path / "seen"
    quick = [{"path": str(seen), "n": n} for n in range(20)]
    slow = [{"path": str(seen), "n": n, "seconds": 1.5} for n in (100, 101, *range(200, 210))]
    receipts = queue.enqueue_many([*quick, *slow])
    handler = "worker_handlers:tell" if how == "run" else "worker_handlers:tell_async"
    worker = worker_process(url, handler, how=how, concurrency=2, linger=0)
    running.append(worker)
    until(lambda: {"100", "101"} <= {line[0] for line in lines_of(seen)})
    worker.send(sent)
    assert worker.end() == 0, worker.said
    assert worker.said == ""
    assert worker.lines[-1] == "end"
    assert worker.wait_for("workers-stopped")

    done = {int(line[0]) for line in lines_of(seen)}
    assert done == {*range(20), 100, 101}
    assert queue.stats().succeeded == 22
    rest = queue.claim(100)
    assert sorted(message.data["n"] for message in rest) == list(range(200, 210))
    assert {message.attempt for message in rest} == {1}
    assert [queue.get(one.id).result for one in receipts[20:22]] == [100, 101]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_what_doesnt_finish_within_the_grace_period_is_given_back(
    executor: str, url: str, queue: Queue, tmp_path: Path, running: list[Running]
) -> None:
    receipt = queue.enqueue({"path": str(tmp_path / "begun")})
    worker = worker_process(url, "worker_handlers:hang", concurrency=1, grace=0.2, executor=executor)
    running.append(worker)
    until((tmp_path / "begun").exists)
    worker.send(signal.SIGTERM)
    assert worker.end() == 0, worker.said
    assert queue.get(receipt.id).state is State.READY
    (message,) = queue.claim()
    assert message.attempt == 1
    assert until(lambda: not children(worker.pid))


@pytest.mark.parametrize("second", SIGNALS, ids=lambda one: one.name)
def test_a_second_signal_doesnt_wait_for_handlers(
    second: signal.Signals, url: str, queue: Queue, tmp_path: Path, running: list[Running]
) -> None:
    queue.enqueue({"path": str(tmp_path / "begun")})
    worker = worker_process(url, "worker_handlers:hang", concurrency=1, grace=500)
    running.append(worker)
    until((tmp_path / "begun").exists)
    worker.send(signal.SIGTERM)
    until(lambda: queue.stats().in_flight == 1)
    time.sleep(0.3)
    assert worker.process.poll() is None, "it ended without a second signal"
    worker.send(second)
    assert worker.end() == 0, worker.said
    (message,) = queue.claim()
    assert message.attempt == 1


def test_a_second_signal_doesnt_wait_for_async_handlers(
    url: str, queue: Queue, tmp_path: Path, running: list[Running]
) -> None:
    """`serve()` drains as `run()` does: the second signal is no death by default action."""
    queue.enqueue({"path": str(tmp_path / "begun")})
    worker = worker_process(url, "worker_handlers:until_cancelled_async", how="serve", concurrency=1, grace=500)
    running.append(worker)
    until((tmp_path / "begun").exists)
    worker.send(signal.SIGTERM)
    time.sleep(0.5)
    assert worker.process.poll() is None, "it ended without a second signal"
    worker.send(signal.SIGTERM)
    assert worker.end() == 0, worker.said
    (message,) = queue.claim()
    assert message.attempt == 1


def test_a_storm_of_signals_ends_a_worker_as_one_does(url: str, queue: Queue, running: list[Running]) -> None:
    """Signals arrive inside the handling of signals, too."""
    workers = [worker_process(url, "worker_handlers:echo", concurrency=1) for _ in range(2)]
    running += workers
    for worker in workers:
        worker.wait_for("workers-started")
    for worker in workers:
        until(lambda worker=worker: _shower(worker))
        assert worker.end() in (0, -signal.SIGTERM, -signal.SIGINT), worker.said


def _shower(worker: Running) -> bool:
    """Many signals; once it has let go of them, one may end it by default action."""
    for _ in range(200):
        if worker.process.poll() is not None:
            return True
        for one in SIGNALS:
            worker.send(one)
    return worker.process.poll() is not None


def test_a_signal_to_the_whole_group_is_for_the_worker_alone(
    url: str, queue: Queue, tmp_path: Path, running: list[Running]
) -> None:
    """Ctrl-C in a terminal reaches the processes of handlers as well: they finish nevertheless."""
    receipt = queue.enqueue({"path": str(tmp_path / "seen"), "n": 1, "seconds": 1})
    worker = worker_process(url, "worker_handlers:tell", executor="process", concurrency=1)
    running.append(worker)
    until((tmp_path / "seen").exists)
    for pid in (*handler_processes(worker.pid), worker.pid):
        os.kill(pid, signal.SIGINT)
    assert worker.end() == 0, worker.said
    assert queue.get(receipt.id).result == 1


def test_what_a_stopping_worker_gives_back_goes_to_a_waiting_one(
    url: str, queue: Queue, tmp_path: Path, running: list[Running]
) -> None:
    queue.enqueue({"path": str(tmp_path / "seen"), "seconds": 1, "n": 0})
    worker = worker_process(url, "worker_handlers:hang", concurrency=1, grace=0)
    running.append(worker)
    until((tmp_path / "seen").exists)
    heard: list[brigade.Event] = []
    queue.hub.on("*", heard.append)
    with Worker(queue, lambda message: "here"):
        worker.send(signal.SIGTERM)
        assert worker.end() == 0
        (done,) = until(lambda: named(heard, "message-completed"))
    assert done.fields["attempt"] == 1


def test_run_until_empty_ends_by_itself(url: str, queue: Queue, running: list[Running]) -> None:
    receipts = queue.enqueue_many([f"m{n}" for n in range(30)])
    queue.enqueue("later", delay=1)
    worker = worker_process(url, "worker_handlers:echo", how="until_empty")
    running.append(worker)
    assert worker.end() == 0, worker.said
    assert queue.stats().succeeded == 31
    assert [queue.get(one.id).result for one in receipts] == [f"m{n}" for n in range(30)]
    assert worker.lines[-1] == "end"
    (status,) = worker.wait_for("status")
    assert '"processed": 31' in status
