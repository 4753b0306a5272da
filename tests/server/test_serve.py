"""`brigade serve` as a process: its flags, its end, and what clients see of a server that dies."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade import Hub, StoreUnavailable, Worker
from served import server_process

Done = subprocess.CompletedProcess[bytes]


def test_the_command_line_works_through_a_server(run: Callable[..., Done], tmp_path: Path) -> None:
    with server_process(f"file://{tmp_path}/jobs") as (process, address):
        run("enqueue", "tasks", '{"n": 1}', "--url", address)
        assert b"tasks" in run("queues", BRIGADE_URL=address).stdout
        with brigade.connect(address) as hub:
            seen: list[Any] = []
            Worker(hub.queue("tasks"), lambda message: seen.append(message.data)).run(until_empty=True)
            assert seen == [{"n": 1}]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with brigade.connect(f"file://{tmp_path}/jobs") as hub:
        assert hub.queue("tasks").stats().succeeded == 1


@pytest.mark.parametrize(
    "arguments, why",
    [
        (("--host", "0.0.0.0"), b"no authentication"),
        (("--host", "example.org"), b"no authentication"),
        (("--port", "70000"), b"port is 70000"),
        (("--max-wait", "0"), b"most_wait"),
        (("--url", "http://localhost:1"), b"another server"),
    ],
)
def test_a_server_that_would_be_open_or_wrong_is_refused(
    run: Callable[..., Done], arguments: tuple[str, ...], why: bytes
) -> None:
    assert why in run("serve", *arguments, code=2).stderr


def test_settings_come_from_the_environment_too(run: Callable[..., Done]) -> None:
    assert b"no authentication" in run("serve", code=2, BRIGADE_HOST="0.0.0.0").stderr


def test_no_server_is_said_so() -> None:
    with pytest.raises(StoreUnavailable, match="brigade serve"):
        brigade.connect("http://127.0.0.1:9")


def test_one_of_two_servers_is_killed_under_load(tmp_path: Path) -> None:
    """[G1] [G3] Nothing is lost; what the dead server had handed out comes again when its lease runs out."""
    url, total = f"file://{tmp_path}/jobs", 300
    policy = brigade.QueuePolicy(visibility_timeout=2, failure=brigade.Failure("retry", max_retries=20))
    with server_process(url) as (doomed, first), server_process(url) as (_, second):
        done: Counter[int] = Counter()
        with brigade.connect(second) as hub:
            queue = hub.queue("tasks", policy)
            queue.enqueue_many(range(total))
            killed = threading.Event()

            def consume(address: str) -> None:
                try:
                    with brigade.connect(address) as own:
                        line = own.queue("tasks", create=False)
                        while sum(done.values()) < total // 3 or address == second:
                            messages = line.claim(5, wait=5)
                            if not messages and killed.is_set():
                                return
                            for message, answer in zip(messages, line.ack_many(messages), strict=True):
                                if not isinstance(answer, Exception):
                                    done[message.data] += 1
                        doomed.kill()
                        killed.set()
                        line.claim(5, wait=5)
                except StoreUnavailable:
                    killed.set()

            consumers = [threading.Thread(target=consume, args=(one,)) for one in (first, first, second, second)]
            for one in consumers:
                one.start()
            for one in consumers:
                one.join()
            rest = drained(hub, "tasks")
            stats = queue.stats()
        assert killed.is_set()
        assert (stats.succeeded, stats.ready, stats.in_flight, stats.failed) == (total, 0, 0, 0)
        assert set(done) | rest <= set(range(total))
        assert all(count == 1 for count in done.values())


def drained(hub: Hub, name: str) -> set[int]:
    """Whatever the dead server's leases still held, after they ran out."""
    queue, found = hub.queue(name, create=False), set[int]()
    while (stats := queue.stats()).ready + stats.in_flight:
        messages = queue.claim(100, wait=5)
        queue.ack_many(messages)
        found |= {message.data for message in messages}
    return found
