"""The sync classes: every name, the same behaviour, from any thread."""

from __future__ import annotations

import asyncio
import inspect
import io
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import brigade
from brigade import (
    Ack,
    AsyncHub,
    AsyncQueue,
    ConfigError,
    Hub,
    Message,
    MessageNotFound,
    Nack,
    NewMessage,
    Queue,
    QueueNotFound,
    QueuePaused,
    Release,
    StaleLease,
    State,
    StoreUnavailable,
)
from brigade.queue import AsyncState
from brigade.sync import MessageState
from brigade.testing.conformance.harness import PATIENCE, SHORT, Harness, at_once, listen, values


def public(cls: type[Any]) -> dict[str, Any]:
    return {name: member for name, member in vars(cls).items() if not name.startswith("_")}


def sync_queue(harness: Harness, policy: brigade.QueuePolicy | None = None) -> Queue:
    return harness.sync_hub().queue(harness.name(), policy)


def claim_sync(queue: Queue, **options: Any) -> Message:
    (message,) = queue.claim(wait=15, **options)
    return message


@pytest.mark.parametrize("sync,other", [(Hub, AsyncHub), (Queue, AsyncQueue), (MessageState, AsyncState)])
def test_the_sync_classes_have_every_name_of_the_async_ones(sync: type[Any], other: type[Any]) -> None:
    """The same names, with the same arguments."""
    internal = {
        "store",
        "events",
        "clock",
        "owner",
        "background",
        "twin",
        "wake_twins",
        "loop",
        "address",
        "hire",
        "dismiss",
        "enqueue_all",
        "enqueue_checked",
        "settle_fully",
        "tell_claimed",
    }
    missing = set(public(other)) - set(public(sync)) - internal
    assert not missing
    for name, member in public(other).items():
        if name not in internal and inspect.isfunction(member):
            mine = inspect.signature(public(sync)[name]).parameters
            theirs = inspect.signature(member).parameters
            assert list(mine) == list(theirs), name
            assert [p.default for p in mine.values()] == [p.default for p in theirs.values()], name


def test_sync_enqueue_claim_ack(harness: Harness) -> None:
    """[G1] [G3] The first example of the documentation."""
    with brigade.connect(harness.url, **harness.options) as hub:
        tasks = hub.queue(harness.name())
        receipt = tasks.enqueue({"type": "email"}, priority=1, attributes={"a": 1}, correlation_id="c")
        for message in tasks.claim(limit=10, wait=5, owner="worker-a", visibility=30):
            assert (message.id, message.data) == (receipt.id, {"type": "email"})
            assert (message.lease.owner, message.attempt, message.correlation_id) == ("worker-a", 1, "c")
            tasks.ack(message, result={"ok": True})
        info = tasks.get(receipt.id)
        assert (info.state, info.result) == (State.SUCCEEDED, {"ok": True})
        assert tasks.claim() == []


def test_sync_enqueue_many_and_ack_many(harness: Harness) -> None:
    queue = sync_queue(harness)
    receipts = queue.enqueue_many([1, 2, NewMessage(payload=3, id="mine")])
    assert receipts[2].id == "mine"
    assert queue.enqueue(3, id="mine").duplicate
    messages = queue.claim(10)
    assert sorted(values(messages)) == [1, 2, 3]
    assert queue.ack_many(messages) == [State.SUCCEEDED] * 3


def test_sync_claims_that_ack_the_message_before(harness: Harness) -> None:
    queue = sync_queue(harness)
    for number in range(20):
        queue.enqueue(number)
    queue.enqueue_many(range(20, 30))
    held: Message | None = None
    seen: list[int] = []
    for _ in range(30):
        (held,) = queue.claim(wait=PATIENCE, ack=held)
        seen.append(held.data)
        assert held.attempt == 1
    assert sorted(seen) == list(range(30))
    assert queue.claim(5, ack=held) == []
    assert queue.stats().succeeded == 30
    with pytest.raises(StaleLease):
        queue.claim(ack=held)
    with pytest.raises(ConfigError, match="claimed Message"):
        queue.claim(ack=7)  # pyright: ignore[reportArgumentType]


def test_sync_nack_extend_release_and_settle(harness: Harness) -> None:
    queue = sync_queue(harness, at_once())
    queue.enqueue("x")
    assert queue.nack(claim_sync(queue), error="no", delay=0) is State.READY
    message = claim_sync(queue)
    assert message.attempt == 2
    lease = queue.extend(message, 60)
    assert lease.expires_at >= message.lease.expires_at
    queue.release(message)
    message = claim_sync(queue)
    answers = queue.settle([Release(message), Ack(message)])
    assert answers[0] is State.READY
    assert isinstance(answers[1], StaleLease)
    assert queue.settle([Nack(claim_sync(queue), penalize=False)]) == [State.READY]


def test_sync_errors_are_raised_in_the_caller(harness: Harness) -> None:
    queue = sync_queue(harness)
    queue.enqueue("x")
    message = claim_sync(queue)
    queue.ack(message)
    with pytest.raises(StaleLease):
        queue.ack(message)
    with pytest.raises(MessageNotFound):
        queue.get("nobody")
    with pytest.raises(ConfigError, match="priority"):
        queue.enqueue("x", priority=17)


def test_sync_looking_around(harness: Harness) -> None:
    queue = sync_queue(harness)
    queue.enqueue_many(range(3))
    assert values(queue.peek(2)) == [0, 1]
    claim_sync(queue)
    stats = queue.stats()
    assert (stats.ready, stats.in_flight) == (2, 1)
    assert queue.policy == brigade.QueuePolicy()
    assert queue.name in repr(queue)


def test_sync_failed_redrive_and_purge(harness: Harness) -> None:
    queue = sync_queue(harness, at_once("retry", 0))
    queue.enqueue_many(range(2))
    for message in queue.claim(2):
        assert queue.nack(message) is State.FAILED
    failed = queue.failed(10)
    assert sorted(values(failed)) == [0, 1]
    assert queue.redrive([failed[0].id]) == 1
    assert queue.redrive(limit=5) == 1
    assert queue.purge() == 2
    assert queue.claim() == []


def test_sync_pause_and_resume(harness: Harness) -> None:
    queue = sync_queue(harness)
    queue.enqueue("x")
    queue.pause()
    with pytest.raises(QueuePaused):
        queue.claim()
    queue.resume()
    assert values(queue.claim()) == ["x"]


def test_sync_delete_queues_and_sweep(harness: Harness) -> None:
    hub = harness.sync_hub()
    queue = hub.queue(harness.name())
    assert set(queue.sweep().values()) == {0}
    assert queue.name in hub.queues()
    queue.delete()
    assert queue.name not in hub.queues()
    with pytest.raises(QueueNotFound):
        hub.queue(queue.name, create=False)


def test_sync_workflow_state(harness: Harness) -> None:
    queue = sync_queue(harness)
    queue.enqueue("x")
    message = claim_sync(queue)
    state = queue.state(message)
    assert state.load({"step": 0}) == {"step": 0}
    state.save({"step": 1})
    assert queue.state(message).load() == {"step": 1}
    with pytest.raises(StaleLease):
        queue.state(message).save("over it")


def test_sync_large_payloads_are_files(harness: Harness) -> None:
    queue = sync_queue(harness)
    large = bytes(range(256)) * 4096
    queue.enqueue(io.BytesIO(large))
    message = claim_sync(queue)
    with message.open() as file:
        assert file.read(5) == large[:5]
        assert file.read() == large[5:]
        assert file.read() == b""
    with io.TextIOWrapper(message.open(), encoding="latin-1", newline="") as text:
        assert text.read(4).encode("latin-1") == large[:4]
    queue.ack(message)
    queue.enqueue(b"small")
    with claim_sync(queue).open() as file:
        assert [file.read(2), file.read()] == [b"sm", b"all"]


def test_sync_events_and_requests(harness: Harness) -> None:
    harness.needs("requests")
    hub = harness.sync_hub()
    queue = hub.queue(harness.name())
    heard = listen(hub)
    before = sum(hub.requests().values())
    queue.enqueue("x")
    assert [event.name for event in heard] == ["message-enqueued"]
    assert sum(hub.requests().values()) > before


def test_a_sync_hub_serves_many_threads(harness: Harness) -> None:
    """[G1] [G2] Threads share one hub: nothing is lost, nothing comes twice."""
    queue = sync_queue(harness)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(queue.enqueue, range(64)))

        def work(_: int) -> list[Any]:
            done: list[Any] = []
            while messages := queue.claim(5):
                queue.ack_many(messages)
                done += values(messages)
            return done

        found = [n for share in threads.map(work, range(8)) for n in share]
    found += values(queue.claim(64))
    assert sorted(found) == list(range(64))


def test_a_sync_claim_waits_for_another_thread(harness: Harness) -> None:
    queue = sync_queue(harness)
    got: list[Any] = []
    waiting = threading.Thread(target=lambda: got.extend(values(queue.claim(wait=15))))
    waiting.start()
    queue.enqueue("news")
    waiting.join()
    assert got == ["news"]


def test_two_sync_hubs_are_two_processes(harness: Harness) -> None:
    """[G2] [G5] They share nothing but the store."""
    first = sync_queue(harness)
    second = harness.sync_hub().queue(first.name, create=False)
    first.enqueue("x")
    old = claim_sync(first, visibility=SHORT)
    new = claim_sync(second)
    assert new.lease.version > old.lease.version
    with pytest.raises(StaleLease):
        first.ack(old)
    second.ack(new)


def test_a_closed_sync_hub_says_so(harness: Harness) -> None:
    hub = harness.sync_hub()
    queue = hub.queue(harness.name())
    hub.close()
    hub.close()
    with pytest.raises(ConfigError, match="closed"):
        queue.enqueue("x")
    with pytest.raises(ConfigError, match="closed"):
        hub.queues()
    hub.open()
    assert hub.queue(queue.name, create=False).stats().total == 0
    hub.close()


def test_a_call_that_is_under_way_when_its_hub_is_closed_says_so(harness: Harness) -> None:
    hub = harness.sync_hub()
    queue = hub.queue(harness.name())
    heard: list[Exception] = []
    waiting = threading.Event()

    def claim() -> None:
        waiting.set()
        try:
            queue.claim(wait=PATIENCE)
        except Exception as error:
            heard.append(error)

    thread = threading.Thread(target=claim)
    thread.start()
    waiting.wait()
    hub.call(asyncio.sleep(0.1))
    hub.close()
    thread.join()
    assert isinstance(heard[0], StoreUnavailable | ConfigError)
