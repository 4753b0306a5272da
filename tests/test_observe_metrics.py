"""Metrics, with the real prometheus-client: what hubs do is what a scrape shows."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest, start_http_server

import brigade
from brigade import Backoff, ConfigError, Failure, QueuePolicy
from brigade.observe import metrics, prometheus
from brigade.testing.conformance.harness import SHORT, eventually, passed

AT_ONCE = Backoff(base=0)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"brigade_{name}", labels)


async def test_what_happens_to_messages_is_counted(registry: CollectorRegistry) -> None:
    async with brigade.connect_async("memory://") as hub:
        metrics(hub, registry)
        policy = QueuePolicy(failure=Failure("hybrid", max_retries=1, dead_letter_queue="letters"), backoff=AT_ONCE)
        queue = await hub.queue("tasks", policy)
        await queue.enqueue_many(["a", "b", "c"])
        await queue.ack((await queue.claim())[0])
        (bad,) = await queue.claim()
        await queue.nack(bad)
        (bad,) = await queue.claim()
        await queue.nack(bad)
        await passed((await queue.claim(visibility=SHORT))[0])
        await queue.ack((await queue.claim(wait=5))[0])
    found = {
        name: value(registry, f"{name}_total", queue="tasks")
        for name in ("enqueued", "claimed", "recovered", "completed", "retried", "dead")
        for name in [f"messages_{name}"]
    }
    assert found == {
        "messages_enqueued": 3,
        "messages_claimed": 5,
        "messages_recovered": 1,
        "messages_completed": 2,
        "messages_retried": 1,
        "messages_dead": 1,
    }
    outcomes = {
        status: value(registry, "outcomes_total", queue="tasks", status=status)
        for status in ("processed", "retrying", "dead-lettered", "failed")
    }
    assert outcomes == {"processed": 2, "retrying": 1, "dead-lettered": 1, "failed": None}
    assert value(registry, "wait_seconds_count", queue="tasks") == 3
    assert value(registry, "processing_seconds_count", queue="tasks") == 4


async def test_durations_are_seconds(registry: CollectorRegistry) -> None:
    async with brigade.connect_async("memory://") as hub:
        metrics(hub, registry)
        hub.events.emit("message-claimed", "q", "m", attempt=1, waited=1500)
        hub.events.emit("message-completed", "q", "m", attempt=1, duration=2500)
        hub.events.emit("message-dead", "q", "m", attempt=1, error="nobody held it")
    assert value(registry, "wait_seconds_sum", queue="q") == 1.5
    assert value(registry, "processing_seconds_sum", queue="q") == 2.5
    assert value(registry, "processing_seconds_count", queue="q") == 1


async def test_workers_and_lost_leases_are_counted(registry: CollectorRegistry) -> None:
    async with brigade.connect_async("memory://") as hub:
        metrics(hub, registry)
        emit = hub.events.emit
        emit("workers-started", "q", worker_id="a", concurrency=8, queues=["q"])
        emit("workers-started", "q", worker_id="b", concurrency=2, queues=["q", "r"])
        emit("message-processing", "q", "m", worker_id="a", attempt=1, correlation_id="c")
        emit("ordering-best-effort", "q", worker_id="a", ordering="fifo")
        assert (value(registry, "workers"), value(registry, "worker_concurrency")) == (2, 10)
        emit("lease-lost", "q", "m", worker_id="a", attempt=1, correlation_id="c", lease_version=1)
        emit("workers-stopped", "q", worker_id="a")
        emit("workers-stopped", "q", worker_id="a")
    assert (value(registry, "workers"), value(registry, "worker_concurrency")) == (1, 2)
    assert value(registry, "leases_lost_total", queue="q") == 1


def test_a_sync_hub_is_scraped_over_http(registry: CollectorRegistry) -> None:
    with brigade.connect("memory://") as hub:
        metrics(hub, registry, depth=True)
        queue = hub.queue("tasks")
        queue.enqueue_many(["a", "b"])
        queue.claim()
        server, thread = start_http_server(0, "127.0.0.1", registry)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
                text = answer.read().decode()
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    assert 'brigade_messages_enqueued_total{queue="tasks"} 2.0' in text
    assert 'brigade_queue_messages{queue="tasks",state="ready"} 1.0' in text
    assert 'brigade_queue_messages{queue="tasks",state="in_flight"} 1.0' in text
    assert 'brigade_storage_requests_total{kind="create"}' in text


def test_storage_requests_are_those_of_the_hub(registry: CollectorRegistry) -> None:
    with brigade.connect("memory://") as hub:
        metrics(hub, registry)
        hub.queue("tasks").enqueue("x")
        for kind, number in hub.requests().items():
            assert value(registry, "storage_requests_total", kind=kind) == number
    for kind, number in hub.requests().items():
        assert value(registry, "storage_requests_total", kind=kind) == number


def test_depth_is_left_alone_unless_asked_for(registry: CollectorRegistry) -> None:
    with brigade.connect("memory://") as hub:
        metrics(hub, registry)
        hub.queue("tasks").enqueue("x")
        before = hub.requests()
        text = generate_latest(registry).decode()
        assert hub.requests() == before
    assert "brigade_queue_messages" not in text


def test_depth_is_measured_at_most_so_often(registry: CollectorRegistry) -> None:
    with brigade.connect("memory://") as hub:
        metrics(hub, registry, depth=["tasks", "nowhere"], depth_every=1000)
        queue = hub.queue("tasks")
        assert value(registry, "queue_messages", queue="tasks", state="ready") == 0
        queue.enqueue("x")
        before = hub.requests()
        assert value(registry, "queue_messages", queue="tasks", state="ready") == 0
        assert hub.requests() == before
        assert value(registry, "queue_messages", queue="nowhere", state="ready") is None
        assert value(registry, "queue_paused", queue="tasks") == 0


def test_depth_is_measured_again_when_it_is_old(registry: CollectorRegistry) -> None:
    with brigade.connect("memory://") as hub:
        metrics(hub, registry, depth=True, depth_every=1e-9)
        queue = hub.queue("tasks")
        for count in range(3):
            assert value(registry, "queue_messages", queue="tasks", state="ready") == count
            queue.enqueue("x")
    assert value(registry, "queue_messages", queue="tasks", state="ready") is not None


async def test_a_scrape_on_the_hubs_own_loop_never_waits(registry: CollectorRegistry) -> None:
    async with brigade.connect_async("memory://") as hub:
        metrics(hub, registry, depth=True, depth_every=0.01)
        await (await hub.queue("tasks")).enqueue("x")
        assert value(registry, "queue_messages", queue="tasks", state="ready") is None
        await eventually(lambda: value(registry, "queue_messages", queue="tasks", state="ready") == 1)


async def test_a_scrape_in_another_thread_waits_for_the_store(registry: CollectorRegistry) -> None:
    async with brigade.connect_async("memory://") as hub:
        metrics(hub, registry, depth=True)
        await (await hub.queue("tasks")).enqueue("x")
        text = (await asyncio.to_thread(generate_latest, registry)).decode()
        assert 'brigade_queue_messages{queue="tasks",state="ready"} 1.0' in text


def test_hubs_that_share_a_registry_add_up(registry: CollectorRegistry) -> None:
    with brigade.connect("memory://") as one, brigade.connect("memory://") as other:
        first, second = metrics(one, registry), metrics(other, registry)
        one.queue("tasks").enqueue("x")
        other.queue("tasks").enqueue("y")
        both = one.requests()["create"] + other.requests()["create"]
        assert value(registry, "messages_enqueued_total", queue="tasks") == 2
        assert value(registry, "storage_requests_total", kind="create") == both
        first.close()
        first.close()
        one.queue("tasks").enqueue("unseen")
        assert value(registry, "messages_enqueued_total", queue="tasks") == 2
        assert value(registry, "storage_requests_total", kind="create") == both
        second.close()
        assert generate_latest(registry) == b""
        with metrics(one, registry):
            one.queue("tasks").enqueue("seen")
            assert value(registry, "messages_enqueued_total", queue="tasks") == 1


def test_a_name_that_is_taken_leaves_the_registry_as_it_was(registry: CollectorRegistry) -> None:
    Gauge("brigade_workers", "somebody else's", registry=registry)
    before = generate_latest(registry)
    with brigade.connect("memory://") as hub:
        with pytest.raises(ValueError, match="Duplicated"):
            metrics(hub, registry)
        hub.queue("tasks").enqueue("x")
    assert generate_latest(registry) == before


def test_queues_without_number_share_a_label(registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MOST_QUEUES", 2)
    with brigade.connect("memory://") as hub:
        metrics(hub, registry)
        for n in range(5):
            hub.queue(f"q{n}").enqueue("x")
    assert value(registry, "messages_enqueued_total", queue="q1") == 1
    assert value(registry, "messages_enqueued_total", queue="(others)") == 3


def test_no_id_is_ever_a_label(registry: CollectorRegistry) -> None:
    with brigade.connect("memory://") as hub:
        metrics(hub, registry, depth=True)
        queue = hub.queue("tasks")
        queue.enqueue("x", id="my-id", correlation_id="my-correlation", attributes={"a": "my-attribute"})
        queue.ack(queue.claim(owner="my-worker")[0])
        assert b"my-" not in generate_latest(registry)


@pytest.mark.parametrize("wrong", [{"depth": "tasks"}, {"depth": True, "depth_every": 0}])
def test_wrong_settings_are_refused(registry: CollectorRegistry, wrong: dict[str, object]) -> None:
    with brigade.connect("memory://") as hub, pytest.raises(ConfigError, match="depth"):
        metrics(hub, registry, **wrong)
    assert generate_latest(registry) == b""


def test_a_worker_is_counted(registry: CollectorRegistry) -> None:
    counted = threading.Event()

    def handle(message: brigade.Message) -> None:
        for _ in range(2000):
            if (value(registry, "workers"), value(registry, "worker_concurrency")) == (1, 3):
                counted.set()
                break
            time.sleep(0.01)
        if message.data == "snooze" and message.lease.version == 1:
            raise brigade.Snooze(0)

    with brigade.connect("memory://") as hub:
        metrics(hub, registry)
        queue = hub.queue("tasks")
        queue.enqueue_many(["a", "snooze"])
        brigade.Worker(queue, handle, concurrency=3).run(until_empty=True)
        hub.call(asyncio.sleep(0))
        assert counted.is_set()
        assert value(registry, "handler_seconds_count", queue="tasks") == 2
        assert value(registry, "processing_seconds_count", queue="tasks") == 2
        assert (value(registry, "workers"), value(registry, "worker_concurrency")) == (0, 0)
        assert value(registry, "messages_completed_total", queue="tasks") == 2


async def test_starts_of_handlers_are_forgotten_some_time(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "MOST_STARTED", 2)
    async with brigade.connect_async("memory://") as hub:
        metrics(hub, registry)
        for id in "abc":
            hub.events.emit("message-processing", "q", id, worker_id="w", attempt=1, correlation_id="c")
        hub.events.emit("lease-lost", "q", "c", worker_id="w", attempt=1, correlation_id="c", lease_version=1)
        for id in "abc":
            hub.events.emit("message-completed", "q", id, attempt=1, duration=1)
    assert value(registry, "handler_seconds_count", queue="q") == 1
