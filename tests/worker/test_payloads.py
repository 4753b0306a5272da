"""Large payloads, stored apart: handlers read them as they go, wherever they run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import worker_handlers
from worker_support import PATIENT, ended, until

import brigade
from brigade import Hub, QueuePolicy, State, Worker

SIZE = 3_000_000
WAYS = [
    pytest.param(worker_handlers.measure, "thread", id="thread"),
    pytest.param(worker_handlers.measure_async, "thread", id="async"),
    pytest.param(worker_handlers.measure, "process", id="process"),
    pytest.param(worker_handlers.measure_async, "process", id="async in a process"),
]


@pytest.mark.parametrize("handler,executor", WAYS)
def test_a_large_payload_is_read_in_a_handler(hub: Hub, handler: Callable[..., Any], executor: Any) -> None:
    queue = hub.queue("tasks", PATIENT)
    sizes = [SIZE, 256 * 1024 + 1, 5, 1_000_000]
    receipts = [queue.enqueue(b"x" * size) for size in sizes]
    with Worker(queue, handler, executor=executor, concurrency=1):
        until(lambda: ended(queue))
    assert [queue.get(one.id).result for one in receipts] == sizes


async def test_a_large_payload_is_read_on_the_callers_loop(url: str) -> None:
    async with brigade.connect_async(url, fsync=False) as hub:
        queue = await hub.queue("tasks", PATIENT)
        receipt = await queue.enqueue(b"x" * SIZE)
        await Worker(queue, worker_handlers.measure_async).serve(until_empty=True)
        assert (await queue.get(receipt.id)).result == SIZE


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_two_readers_of_one_payload_dont_disturb_each_other(hub: Hub, executor: Any) -> None:
    queue = hub.queue("tasks", PATIENT)
    receipt = queue.enqueue(bytes(range(250)) * 8000)
    with Worker(queue, worker_handlers.read_twice, executor=executor, concurrency=1):
        until(lambda: ended(queue))
    assert queue.get(receipt.id).result == [True, True]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_reader_that_is_not_read_to_its_end_harms_nothing(hub: Hub, executor: Any) -> None:
    queue = hub.queue("tasks", PATIENT)
    receipts = [queue.enqueue(bytes([n]) * SIZE) for n in range(3)]
    with Worker(queue, worker_handlers.first_byte, executor=executor, concurrency=1):
        until(lambda: ended(queue))
    assert [queue.get(one.id).result for one in receipts] == [0, 1, 2]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_damaged_payload_is_a_failed_attempt(hub: Hub, tmp_path: Path, executor: Any) -> None:
    """The handler gets the error; slot and worker go on."""
    queue = hub.queue("tasks", QueuePolicy(failure=brigade.Failure("retry", 0)))
    queue.enqueue(b"x" * SIZE)
    (blob,) = [path for path in (tmp_path / "jobs").rglob("*") if path.is_file() and path.stat().st_size >= SIZE]
    data = blob.read_bytes()
    blob.write_bytes(data[:-100])
    with Worker(queue, worker_handlers.measure, executor=executor, concurrency=1):
        (parked,) = until(queue.failed)
        assert "damaged" in str(parked.error)
        fine = queue.enqueue(b"y" * SIZE)
        until(lambda: queue.get(fine.id).state is State.SUCCEEDED)
