"""Handlers in processes: what can go wrong with a process, and that none is left behind."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest
import worker_handlers
from worker_support import AT_ONCE, PATIENT, children, ended, handler_processes, until

from brigade import Failure, Hub, QueuePolicy, State, Worker

ONCE = QueuePolicy(failure=Failure("retry", 0), backoff=AT_ONCE)


def test_nothing_is_left_after_stop(hub: Hub) -> None:
    """Neither processes nor zombies nor threads, whether handlers ran or hung."""
    queue = hub.queue("tasks", PATIENT)
    before = set(threading.enumerate())
    queue.enqueue_many(range(10))
    with Worker(queue, worker_handlers.echo, executor="process", concurrency=2):
        until(lambda: ended(queue))
        assert len(handler_processes(os.getpid())) == 2
    assert handler_processes(os.getpid()) == []
    assert not [pid for pid, command in children(os.getpid()).items() if not command], "a zombie is left"
    new = set(threading.enumerate()) - before
    assert not [one for one in new if one.name.startswith(("brigade-slot", "brigade-hub"))]


def test_a_handler_that_hangs_doesnt_outlive_its_worker(hub: Hub, tmp_path: Path) -> None:
    queue = hub.queue("tasks", PATIENT)
    receipt = queue.enqueue({"path": str(tmp_path / "begun")})
    with Worker(queue, worker_handlers.hang, executor="process", concurrency=1, grace=0.1):
        until((tmp_path / "begun").exists)
    assert handler_processes(os.getpid()) == []
    assert queue.get(receipt.id).state is State.READY
    assert queue.get(receipt.id).attempts == 0


def test_processes_that_are_still_starting_dont_outlive_their_worker(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor does a stop wait for them, and it is no trouble worth a word."""
    module = tmp_path / "slow_there.py"
    module.write_text("def handler(message):\n    return 'fine'\n")
    monkeypatch.syspath_prepend(tmp_path)
    import slow_there  # pyright: ignore[reportMissingImports]

    module.write_text(f"open({str(tmp_path / 'begun')!r}, 'w').close()\nimport time\ntime.sleep(3600)\n")
    with (
        caplog.at_level(logging.WARNING),
        Worker(hub.queue("tasks", PATIENT), slow_there.handler, executor="process", concurrency=3),
    ):
        until((tmp_path / "begun").exists)
    assert handler_processes(os.getpid()) == []
    assert "died before it was ready" not in caplog.text


@pytest.mark.parametrize(
    "handler,said", [(worker_handlers.die, "SIGKILL"), (worker_handlers.leave, "exit code 9")], ids=["killed", "left"]
)
def test_a_process_that_dies_is_a_failed_attempt_and_is_replaced(hub: Hub, handler: object, said: str) -> None:
    queue = hub.queue("tasks", ONCE)
    queue.enqueue({"times": 1})
    with Worker(queue, handler, executor="process", concurrency=1) as worker:  # pyright: ignore[reportArgumentType]
        (parked,) = until(queue.failed)
        assert said in str(parked.error)
        assert parked.attempts == 1
        until(lambda: len(handler_processes(os.getpid())) == 1)
        queue.enqueue({"times": 0})
        until(lambda: worker.status().running == 0 and ended(queue))


def test_a_module_that_cant_be_imported_is_said_and_costs_no_attempt(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its messages stay for others."""
    module = tmp_path / "broken_there.py"
    module.write_text("def handler(message):\n    return 'fine'\n")
    monkeypatch.syspath_prepend(tmp_path)
    import broken_there  # pyright: ignore[reportMissingImports]

    queue = hub.queue("tasks", ONCE)
    receipts = queue.enqueue_many(range(3))
    module.write_text("raise RuntimeError('this machine lacks something')\n")
    with (
        caplog.at_level(logging.WARNING),
        Worker(queue, broken_there.handler, executor="process", concurrency=2, worker_id="broken") as worker,
    ):
        until(lambda: "died before it was ready" in caplog.text)
        with Worker(queue, worker_handlers.echo, worker_id="sound"):
            until(lambda: ended(queue))
        assert worker.status().failed == 0
    assert [queue.get(one.id).result for one in receipts] == [0, 1, 2]
    assert {queue.get(one.id).attempts for one in receipts} == {1}
    said = [one for one in caplog.records if "died before it was ready" in one.getMessage()]
    assert len(said) == 1, "it was said more than once"
    assert handler_processes(os.getpid()) == []


def test_a_module_that_can_be_imported_again_is_used(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "mended_there.py"
    module.write_text("def handler(message):\n    return 'fine'\n")
    monkeypatch.syspath_prepend(tmp_path)
    import mended_there  # pyright: ignore[reportMissingImports]

    from brigade import Restart

    queue = hub.queue("tasks", ONCE)
    receipt = queue.enqueue("x")
    module.write_text("raise RuntimeError('not yet')\n")
    restart = Restart(base=0.1, maximum=0.2)
    with Worker(queue, mended_there.handler, executor="process", concurrency=1, restart=restart):
        threading.Event().wait(0.5)
        module.write_text("def handler(message):\n    return 'mended'\n")
        until(lambda: ended(queue))
    assert queue.get(receipt.id).result == "mended"


def test_what_handlers_start_can_be_ended_by_them(hub: Hub) -> None:
    """The worker's protection from signals to the group is not handed down."""
    queue = hub.queue("tasks", ONCE)
    receipt = queue.enqueue("x")
    with Worker(queue, worker_handlers.end_what_it_started, executor="process", concurrency=1):
        until(lambda: ended(queue))
    assert queue.get(receipt.id).result == -15


def test_signals_are_not_for_handlers(hub: Hub) -> None:
    queue = hub.queue("tasks", ONCE)
    receipt = queue.enqueue("x")
    with Worker(queue, worker_handlers.ignore_term, executor="process", concurrency=1):
        until(lambda: ended(queue))
    assert queue.get(receipt.id).result == "still here"


def test_a_memory_store_works_with_processes_too(memory: Hub) -> None:
    """They reach the store through the worker."""
    queue = memory.queue("tasks", ONCE)
    receipts = [queue.enqueue(b"x" * 500_000), queue.enqueue(b"y" * 300_000)]
    with Worker(queue, worker_handlers.measure, executor="process", concurrency=1):
        until(lambda: ended(queue))
    assert [queue.get(one.id).result for one in receipts] == [500_000, 300_000]


def test_both_kinds_of_handlers_share_processes(hub: Hub, tmp_path: Path) -> None:
    first, second = hub.queue("first", ONCE), hub.queue("second", ONCE)
    receipts = [first.enqueue("x"), second.enqueue({"path": str(tmp_path / "seen"), "n": 5})]
    handlers = {"first": worker_handlers.echo, "second": worker_handlers.tell_async}
    with Worker([first, second], handlers, executor="process", concurrency=1):
        until(lambda: ended(first) and ended(second))
    assert first.get(receipts[0].id).result == "x"
    assert second.get(receipts[1].id).result == 5
