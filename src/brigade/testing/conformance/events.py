"""Events: what happens to messages, told to whoever listens, with fields they can act on."""

from __future__ import annotations

import asyncio

import pytest

from brigade import ConfigError, Event, QueuePolicy
from brigade.testing.conformance.harness import (
    SHORT,
    Harness,
    at_once,
    claim_one,
    eventually,
    listen,
    now_ms,
    passed,
    values,
)


def named(heard: list[Event], name: str) -> list[Event]:
    return [event for event in heard if event.name == name]


async def test_every_outcome_is_told_with_id_status_and_attempt(harness: Harness) -> None:
    """[seed 000: Emit processing outcome event] processed, retrying, dead-lettered, with the attempt."""
    letters = harness.name("dead")
    hub = await harness.hub()
    queue = await hub.queue(harness.name(), at_once("hybrid", 1, letters))
    heard = listen(hub, "message-outcome")
    good, bad = await queue.enqueue("good"), await queue.enqueue("bad", priority=9)
    await queue.ack(await claim_one(queue))
    await queue.nack(await claim_one(queue))
    await queue.nack(await claim_one(queue))
    assert [(event.queue, event.id, event.fields["status"], event.fields["attempt"]) for event in heard] == [
        (queue.name, good.id, "processed", 1),
        (queue.name, bad.id, "retrying", 1),
        (queue.name, bad.id, "dead-lettered", 2),
    ]


async def test_a_failure_without_dead_letter_queue_is_told_as_failed(harness: Harness) -> None:
    """[seed 000: Emit processing outcome event]"""
    hub = await harness.hub()
    queue = await hub.queue(harness.name(), at_once("retry", 0))
    heard = listen(hub, "message-outcome")
    await queue.enqueue("x")
    await queue.nack(await claim_one(queue))
    assert [event.fields["status"] for event in heard] == ["failed"]


async def test_a_message_that_kills_its_workers_is_told_of_when_it_dies(harness: Harness) -> None:
    """[seed 000: Emit processing outcome event] [G4] Whoever decides that a message is spent tells so."""
    letters = harness.name("dead")
    hub = await harness.hub()
    queue = await hub.queue(harness.name(), at_once("dead-letter", letters=letters))
    receipt = await queue.enqueue("x")
    await passed(await claim_one(queue, visibility=SHORT))
    heard = listen(hub)
    assert await queue.claim() == []
    (outcome,) = named(heard, "message-outcome")
    assert (outcome.id, outcome.fields["status"], outcome.fields["attempt"]) == (
        receipt.id,
        "dead-lettered",
        1,
    )
    assert [event.id for event in named(heard, "message-dead")] == [receipt.id]


async def test_an_expired_ttl_is_told_of(harness: Harness) -> None:
    """[seed 000: Emit processing outcome event]"""
    hub = await harness.hub()
    queue = await hub.queue(harness.name(), QueuePolicy(ttl=SHORT))
    receipt = await queue.enqueue("x")
    await passed(now_ms() + 100)
    heard = listen(hub, "message-outcome")
    assert await queue.claim() == []
    assert [(event.id, event.fields["status"], event.fields["attempt"]) for event in heard] == [
        (receipt.id, "failed", 0)
    ]


async def test_enqueue_is_told(harness: Harness) -> None:
    """[seed 001: message-enqueued]"""
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    heard = listen(hub, "message-enqueued")
    receipts = await queue.enqueue_many(range(3))
    assert [(event.queue, event.id) for event in heard] == [(queue.name, receipt.id) for receipt in receipts]


async def test_a_duplicate_is_not_told_as_enqueued(harness: Harness) -> None:
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    heard = listen(hub, "message-enqueued")
    await queue.enqueue("x", id="mine")
    await queue.enqueue("x", id="mine")
    assert len(heard) == 1


async def test_claim_is_told_with_worker_and_attempt(harness: Harness) -> None:
    """[seed 001: message-claimed]"""
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    heard = listen(hub, "message-claimed")
    receipt = await queue.enqueue("x", correlation_id="c")
    await claim_one(queue, owner="worker-a")
    (event,) = heard
    assert event.id == receipt.id
    assert event.fields["worker_id"] == "worker-a"
    assert event.fields["attempt"] == 1
    assert event.fields["correlation_id"] == "c"


async def test_a_takeover_is_told_as_recovered(harness: Harness) -> None:
    """[seed 001: message-recovered]"""
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    heard = listen(hub)
    receipt = await queue.enqueue("x")
    await claim_one(queue, visibility=SHORT)
    await claim_one(queue)
    assert [event.id for event in named(heard, "message-recovered")] == [receipt.id]
    assert [event.fields["attempt"] for event in named(heard, "message-claimed")] == [1, 2]


async def test_completed_tells_result_and_duration(harness: Harness) -> None:
    """[seed 001: message-completed]"""
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    heard = listen(hub, "message-completed")
    receipt = await queue.enqueue("x")
    await queue.ack(await claim_one(queue), result={"ok": True})
    (event,) = heard
    assert (event.id, event.fields["attempt"], event.fields["result"]) == (receipt.id, 1, {"ok": True})
    assert 0 <= event.fields["duration"] <= 60_000


async def test_a_retry_tells_error_attempts_and_when(harness: Harness) -> None:
    """[seed 001: message-retry]"""
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    heard = listen(hub, "message-retry")
    receipt = await queue.enqueue("x")
    before = now_ms()
    await queue.nack(await claim_one(queue), error="boom", delay=60)
    (event,) = heard
    assert (event.id, event.fields["error"]) == (receipt.id, "boom")
    assert (event.fields["attempt"], event.fields["max_attempts"]) == (1, 4)
    assert before + 59_000 <= event.fields["next_visible_at_ms"] <= now_ms() + 61_000


async def test_a_dead_message_tells_its_error(harness: Harness) -> None:
    """[seed 001: message-dead]"""
    letters = harness.name("dead")
    hub = await harness.hub()
    queue = await hub.queue(harness.name(), at_once("dead-letter", letters=letters))
    heard = listen(hub, "message-dead")
    receipt = await queue.enqueue("x")
    await queue.nack(await claim_one(queue), error="boom")
    (event,) = heard
    assert (event.id, event.fields["error"], event.fields["attempt"]) == (receipt.id, "boom", 1)


async def test_extend_and_release_are_no_outcomes(harness: Harness) -> None:
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    await queue.enqueue("x")
    message = await claim_one(queue)
    heard = listen(hub)
    await queue.extend(message)
    await queue.release(message)
    assert heard == []


async def test_a_stale_settlement_is_not_told_as_an_outcome(harness: Harness) -> None:
    """[G2] It changed nothing."""
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    await queue.enqueue("x")
    message = await claim_one(queue)
    await queue.ack(message)
    heard = listen(hub)
    await queue.ack_many([message])
    assert heard == []


async def test_a_listener_can_stop(harness: Harness) -> None:
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    heard: list[Event] = []
    stop = hub.on("*", heard.append)
    await queue.enqueue("x")
    stop()
    stop()
    await queue.enqueue("y")
    assert len(heard) == 1


async def test_a_listener_that_fails_harms_nobody(harness: Harness) -> None:
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)

    def broken(event: Event) -> None:
        raise RuntimeError(event.name)

    async def broken_later(event: Event) -> None:
        raise RuntimeError(event.name)

    hub.on("*", broken)
    hub.on("*", broken_later)
    heard = listen(hub)
    await queue.enqueue("x")
    assert values([await claim_one(queue)]) == ["x"]
    assert [event.name for event in heard] == ["message-enqueued", "message-claimed"]


async def test_a_listener_may_be_async(harness: Harness) -> None:
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    heard: list[str] = []

    async def later(event: Event) -> None:
        await asyncio.sleep(0)
        heard.append(event.name)

    hub.on("message-enqueued", later)
    await queue.enqueue("x")
    await eventually(lambda: heard == ["message-enqueued"])


async def test_an_unknown_event_is_refused(harness: Harness) -> None:
    hub = await harness.hub()
    with pytest.raises(ConfigError, match="message-enqueued"):
        hub.on("message-lost", print)


@pytest.mark.parametrize(
    "name",
    [
        "message-enqueued",
        "message-claimed",
        "message-processing",
        "message-recovered",
        "message-completed",
        "message-retry",
        "message-dead",
        "message-outcome",
        "workers-started",
        "workers-stopped",
        "ordering-best-effort",
        "lease-lost",
    ],
)
async def test_every_event_of_the_design_can_be_listened_for(harness: Harness, name: str) -> None:
    assert listen(await harness.hub(), name) == []
