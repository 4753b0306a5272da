"""What users do, on every kind of store: the doctor's verdict, and workers that lose nothing."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade import Failure, QueuePolicy, Worker
from brigade.doctor import connections_to, examine
from brigade.doctor.report import Verdict
from brigade.testing.servers.azurite import az_url
from brigade.testing.servers.fixtures import azurite_server, moto_server, seaweedfs_server
from brigade.testing.servers.s3 import s3_url
from postgres_server import postgres, postgres_url

__all__ = ["azurite_server", "moto_server", "postgres", "postgres_url", "seaweedfs_server"]


@pytest.fixture(params=["file", "sqlite", "seaweedfs", "moto", "azurite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    prefix = f"everywhere/{uuid.uuid4().hex}"
    match request.param:
        case "file":
            return f"file://{tmp_path}/store"
        case "sqlite":
            return f"sqlite://{tmp_path}/store.db"
        case "seaweedfs":
            return s3_url(request.getfixturevalue("seaweedfs_server"), prefix)
        case "moto":
            return s3_url(request.getfixturevalue("moto_server"), prefix)
        case "azurite":
            return az_url(request.getfixturevalue("azurite_server"), prefix)
        case _:
            return request.getfixturevalue("postgres_url")


async def test_the_doctor_finds_nothing_wrong(url: str) -> None:
    report = await examine(connections_to(url), quick=True)
    wrong = [finding for finding in report.findings if finding.verdict is Verdict.FAIL]
    assert not wrong, wrong


def test_workers_end_every_message_as_the_policy_says(url: str) -> None:
    with brigade.connect(url) as hub:
        policy = QueuePolicy(failure=Failure("hybrid", 1, "everywhere_dlq"), backoff=brigade.Backoff(base=0))
        queue = hub.queue("everywhere", policy)
        receipts = queue.enqueue_many(range(120))

        def handle(message: brigade.Message) -> Any:
            if message.data % 10 == 3:
                raise ValueError("never")
            if message.data % 10 == 4 and message.attempt == 1:
                raise TimeoutError("not yet")
            return message.data

        worker = Worker(queue, handle, concurrency=4)
        worker.run(until_empty=True)
        stats = queue.stats()
        assert (stats.succeeded, stats.dead_lettered, worker.status().lost) == (108, 12, 0)
        assert queue.get(receipts[4].id).result == 4
        assert queue.redrive() == 12
        again = Worker(queue, lambda message: "this time", concurrency=4)
        again.run(until_empty=True)
        assert again.status().processed == 12


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_large_payload_reaches_its_handler(url: str, executor: Any) -> None:
    with brigade.connect(url) as hub:
        queue = hub.queue("large")
        receipt = queue.enqueue(b"x" * 700_000)
        Worker(queue, length, executor=executor, concurrency=1).run(until_empty=True)
        assert queue.get(receipt.id).result == 700_000


def length(message: brigade.Message) -> int:
    with message.open() as file:
        return len(file.read())
