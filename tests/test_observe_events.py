"""Listeners: sync or async, by name or for all; whatever they do, the queue goes on. And what events tell."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import brigade
from brigade import AsyncHub, ConfigError, Event, Failure, Hub, QueuePolicy
from brigade import events as module
from brigade.events import Events
from brigade.testing.conformance.harness import SHORT, eventually, passed

ABOUT = {"worker_id", "attempt", "max_attempts", "correlation_id"}


async def lived(hub: AsyncHub) -> dict[str, Event]:
    """The last event of each name, after every kind of end."""
    heard: dict[str, Event] = {}
    hub.on("*", lambda event: heard.__setitem__(event.name, event))
    policy = QueuePolicy(failure=Failure("hybrid", max_retries=1, dead_letter_queue="letters"))
    queue = await hub.queue("tasks", policy)
    await queue.enqueue("x", id="mine", correlation_id="c")
    await passed((await queue.claim(visibility=SHORT))[0])
    (second,) = await queue.claim(owner="b", wait=5)
    await queue.release(second)
    await queue.ack((await queue.claim(owner="b"))[0], result=1)
    await queue.enqueue("y", id="other")
    await queue.nack((await queue.claim(owner="b"))[0], error="once", delay=0)
    await queue.nack((await queue.claim(owner="b"))[0], error="twice")
    return heard


async def test_events_tell_what_they_should() -> None:
    async with brigade.connect_async("memory://") as hub:
        heard = await lived(hub)
    fields = {name: set(event.fields) for name, event in heard.items()}
    assert fields == {
        "message-enqueued": {"correlation_id"},
        "message-claimed": {*ABOUT, "waited"},
        "message-recovered": {*ABOUT, "original_id"},
        "message-completed": {*ABOUT, "duration", "result"},
        "message-retry": {*ABOUT, "duration", "error", "next_visible_at_ms"},
        "message-dead": {*ABOUT, "duration", "error", "original_id"},
        "message-outcome": {*ABOUT, "status"},
    }
    recovered = heard["message-recovered"]
    assert (recovered.id, recovered.fields["original_id"], recovered.fields["worker_id"]) == ("mine", "mine", "b")
    dead = heard["message-dead"].fields
    assert (dead["error"], dead["attempt"], dead["max_attempts"], dead["original_id"]) == ("twice", 2, 2, "other")


async def test_a_dead_letter_that_dies_again_tells_the_original_id() -> None:
    async with brigade.connect_async("memory://") as hub:
        await lived(hub)
        heard: list[Event] = []
        letters = await hub.queue("letters", QueuePolicy(failure=Failure("retry", max_retries=0)), replace=True)
        hub.on("message-dead", heard.append)
        (letter,) = await letters.claim(wait=5)
        await letters.nack(letter, error="again")
        assert letter.id != "other"
        assert [(event.id, event.fields["original_id"]) for event in heard] == [(letter.id, "other")]


async def test_a_message_that_dies_unheld_tells_as_much() -> None:
    async with brigade.connect_async("memory://") as hub:
        queue = await hub.queue("tasks", QueuePolicy(failure=Failure("retry", max_retries=0)))
        await queue.enqueue("x", id="mine", correlation_id="c")
        await passed((await queue.claim(visibility=SHORT))[0])
        heard: list[Event] = []
        hub.on("message-dead", heard.append)
        assert await queue.claim() == []
    (event,) = heard
    assert (event.id, event.fields) == (
        "mine",
        {"attempt": 1, "max_attempts": 1, "correlation_id": "c", "error": "lease expired", "original_id": "mine"},
    )


def failing(how: type[BaseException]) -> Any:
    def listener(event: Event) -> None:
        raise how(event.name)

    return listener


def failing_later(how: type[BaseException]) -> Any:
    async def listener(event: Event) -> None:
        await asyncio.sleep(0)
        raise how(event.name)

    return listener


@pytest.mark.parametrize("how", [RuntimeError, SystemExit, asyncio.CancelledError, RecursionError])
@pytest.mark.parametrize("make", [failing, failing_later])
def test_a_listener_that_raises_harms_no_sync_hub(how: type[BaseException], make: Any) -> None:
    heard: list[str] = []
    with brigade.connect("memory://") as hub:
        hub.on("*", make(how))
        hub.on("*", lambda event: heard.append(event.name))
        queue = hub.queue("tasks")
        queue.enqueue("x")
        queue.ack(queue.claim()[0])
        assert queue.stats().succeeded == 1
    assert heard == ["message-enqueued", "message-claimed", "message-completed", "message-outcome"]


def test_a_failing_listener_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with brigade.connect("memory://") as hub:
        hub.on("message-enqueued", failing(RuntimeError))
        hub.on("message-enqueued", failing_later(RuntimeError))
        hub.queue("tasks").enqueue("x")
    told = [record.getMessage() for record in caplog.records if record.name == "brigade"]
    assert [text for text in told if "failing.<locals>.listener of message-enqueued failed" in text]
    assert [text for text in told if "failing_later.<locals>.listener of message-enqueued failed" in text]


def test_an_async_listener_of_a_sync_hub_is_heard_before_it_closes() -> None:
    heard: list[str] = []

    async def listener(event: Event) -> None:
        await asyncio.sleep(0.01)
        heard.append(event.name)

    with brigade.connect("memory://") as hub:
        hub.on("message-enqueued", listener)
        hub.queue("tasks").enqueue_many(["a", "b"])
    assert heard == ["message-enqueued"] * 2


async def test_an_async_listener_that_never_ends_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE", 0.01)
    ended: list[str] = []

    async def listener(event: Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(event.name)

    async with brigade.connect_async("memory://") as hub:
        hub.on("message-enqueued", listener)
        queue = await hub.queue("tasks")
        await queue.enqueue("x")
        await queue.ack((await queue.claim())[0])
        assert ended == []
    assert ended == ["message-enqueued"]


async def test_async_listeners_that_fall_behind_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MOST_PENDING", 3)
    gate, heard = asyncio.Event(), list[int]()

    async def listener(event: Event) -> None:
        await gate.wait()
        heard.append(event.fields["n"])

    events = Events()
    events.on("*", listener)
    for n in range(10):
        events.emit("message-enqueued", "tasks", "m", n=n)
    gate.set()
    await events.close()
    assert heard == [0, 1, 2]
    assert [record.getMessage() for record in caplog.records] == [
        "async listeners are 3 events behind; events are dropped for them"
    ]


def test_a_slow_sync_listener_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    events = Events()
    times = iter(range(100))
    monkeypatch.setattr(events, "_monotonic", lambda: float(next(times)))

    def dawdler(_: Event) -> None:
        """Takes a second, by this clock."""

    events.on("*", dawdler)
    events.emit("message-enqueued", "tasks", "m")
    events.emit("message-enqueued", "tasks", "m")
    (record,) = caplog.records
    assert "dawdler took 1.0 s of the hub's time" in record.getMessage()


async def test_an_event_from_another_thread_reaches_async_listeners() -> None:
    async with brigade.connect_async("memory://") as hub:
        heard: list[asyncio.AbstractEventLoop] = []

        async def listener(_: Event) -> None:
            heard.append(asyncio.get_running_loop())

        hub.on("lease-lost", listener)
        await asyncio.to_thread(hub.events.emit, "lease-lost", "tasks", "m")
        await eventually(lambda: heard == [asyncio.get_running_loop()])


def test_an_async_listener_without_a_loop_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def listener(_: Event) -> None:
        """Never runs."""

    events = Events()
    events.on("*", listener)
    events.emit("message-enqueued", "tasks", "m")
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "needs an open hub" in record.getMessage()


async def test_a_listener_may_return_a_future() -> None:
    async with brigade.connect_async("memory://") as hub:
        loop, ran = asyncio.get_running_loop(), threading.Event()
        hub.on("message-enqueued", lambda _: loop.run_in_executor(None, ran.set))
        await (await hub.queue("tasks")).enqueue("x")
        await eventually(ran.is_set)


async def test_stopping_one_of_two_registrations_leaves_the_other() -> None:
    heard: list[Event] = []
    events = Events()
    stop = events.on("message-enqueued", heard.append)
    events.on("message-enqueued", heard.append)
    stop()
    stop()
    events.emit("message-enqueued", "tasks", "m")
    assert len(heard) == 1


async def test_events_of_a_batch_come_together_and_in_order() -> None:
    """Who takes several is called once a batch; all others once an event; both hear the same."""
    async with brigade.connect_async("memory://") as hub:
        batches: list[list[Event]] = []
        each: list[Event] = []
        named: list[Event] = []
        hub.events.follow(lambda events: batches.append(list(events)))
        hub.on("*", each.append)
        hub.on("message-outcome", named.append)
        queue = await hub.queue("tasks")
        await queue.enqueue_many(range(3))
        messages = await queue.claim(3)
        await queue.ack_many(messages)
        ids = [message.id for message in messages]
    assert [[(event.name, event.id) for event in batch] for batch in batches] == [
        [("message-enqueued", id) for id in ids],
        [("message-claimed", id) for id in ids],
        [(name, id) for id in ids for name in ("message-completed", "message-outcome")],
    ]
    assert each == [event for batch in batches for event in batch]
    assert named == [event for event in each if event.name == "message-outcome"]


async def test_one_that_takes_several_and_fails_is_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with brigade.connect_async("memory://") as hub:
        heard: list[Event] = []

        def broken(events: Sequence[Event]) -> None:
            raise ValueError(f"{len(events)} at once")

        hub.events.follow(broken)
        hub.on("message-enqueued", heard.append)
        queue = await hub.queue("tasks")
        await queue.enqueue_many(range(2))
        assert len(heard) == 2
    assert "2 at once" in caplog.text
    assert "the queue goes on" in caplog.text


def test_a_listener_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(ConfigError, match="not str"):
        Events().on("*", "print")


def test_observing_something_else_is_refused() -> None:
    from brigade import observe

    for watch in (observe.metrics, observe.trace):
        with pytest.raises(ConfigError, match="Hub or an AsyncHub, not str"):
            watch("memory://")


@pytest.mark.parametrize("library, extra", [("prometheus_client", "metrics"), ("opentelemetry", "tracing")])
def test_a_missing_library_names_its_extra(monkeypatch: pytest.MonkeyPatch, library: str, extra: str) -> None:
    from brigade import observe

    for name in list(sys.modules):
        if name.startswith((library, "brigade.observe.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    watch = observe.metrics if extra == "metrics" else observe.trace
    with pytest.raises(ConfigError, match=rf"pip install 'bucket-brigade\[{extra}\]'"):
        watch(Hub("memory://"))


def test_importing_brigade_imports_no_optional_library() -> None:
    optional = ("prometheus_client", "opentelemetry")
    code = f"import sys, brigade, brigade.observe; print([name for name in {optional} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"
