"""Settle: acks, nacks, extensions and releases in one batch, one answer each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brigade import Ack, Extend, Lease, Message, Nack, Release, StaleLease, State
from brigade.model import Settlement
from brigade.testing.conformance.harness import Harness, at_once, claim_all, claim_one, passed, values


async def test_one_batch_may_settle_in_every_way(harness: Harness) -> None:
    queue = await harness.queue(at_once())
    await queue.enqueue_many(["ack", "nack", "extend", "release"])
    acked, nacked, extended, released = await claim_all(queue, 4)
    answers = await queue.settle(
        [Ack(acked, {"ok": True}), Nack(nacked, error="no"), Extend(extended, 600), Release(released)]
    )
    assert answers[:2] == [State.SUCCEEDED, State.READY]
    assert isinstance(answers[2], Lease)
    assert answers[3] is State.READY
    again = await claim_all(queue, 2)
    assert sorted(values(again)) == ["nack", "release"]
    assert {m.data: m.attempt for m in again} == {"nack": 2, "release": 1}


async def test_a_stale_lease_in_a_batch_is_a_result_and_harms_no_other(harness: Harness) -> None:
    """[G2] A stale one gets StaleLease and changes nothing; the others are settled."""
    queue = await harness.queue()
    await queue.enqueue_many(range(3))
    messages = await claim_all(queue, 3)
    await queue.ack(messages[1])
    answers = await queue.settle([Ack(message) for message in messages])
    assert [isinstance(answer, StaleLease) for answer in answers] == [False, True, False]


async def test_the_second_settlement_of_one_message_in_a_batch_is_stale(harness: Harness) -> None:
    """[G2] The first one ended the lease."""
    queue = await harness.queue(at_once())
    await queue.enqueue("x")
    message = await claim_one(queue)
    first, second = await queue.settle([Ack(message), Nack(message)])
    assert first is State.SUCCEEDED
    assert isinstance(second, StaleLease)
    assert (await queue.get(message.id)).state is State.SUCCEEDED


async def test_a_message_may_be_extended_and_then_acked_in_one_batch(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue)
    first, second = await queue.settle([Extend(message, 60), Ack(message)])
    assert isinstance(first, Lease)
    assert second is State.SUCCEEDED


async def test_extending_one_message_twice_in_a_batch_leaves_the_others(harness: Harness) -> None:
    """[G2] Messages that were claimed together have leases of their own."""
    queue = await harness.queue()
    await queue.enqueue_many(["kept", "dropped"])
    kept, dropped = await claim_all(queue, 2, visibility=0.5)
    await queue.settle([Extend(kept, 60), Extend(kept, 60)])
    await passed(dropped)
    assert values(await (await harness.elsewhere(queue)).claim(2)) == ["dropped"]


async def test_a_batch_may_reach_over_many_enqueues(harness: Harness) -> None:
    queue = await harness.queue()
    for n in range(10):
        await queue.enqueue(n)
    messages = await claim_all(queue, 10)
    wanted: list[Settlement] = [Ack(message) if n % 2 else Release(message) for n, message in enumerate(messages)]
    assert await queue.settle(wanted) == [State.READY, State.SUCCEEDED] * 5
    assert sorted(values(await claim_all(queue, 5))) == [0, 2, 4, 6, 8]


async def test_settlements_at_the_same_time_all_count(harness: Harness) -> None:
    """[G3] Calls that arrive together may share a write; each one is answered for itself."""
    queue = await harness.queue()
    await queue.enqueue_many(range(50))
    messages = await claim_all(queue, 50)
    await asyncio.gather(*(queue.ack(message) for message in messages))
    assert await queue.claim(50) == []
    assert [(await queue.get(message.id)).state for message in messages[:5]] == [State.SUCCEEDED] * 5


async def test_settlements_from_two_processes_on_one_batch_all_count(harness: Harness) -> None:
    """[G3] Whoever loses a race for the record of a batch tries again."""
    queue = await harness.queue()
    other = await harness.elsewhere(queue)
    await queue.enqueue_many(range(40))
    mine, theirs = await claim_all(queue, 20), await claim_all(other, 20)
    answers = await asyncio.gather(
        *(queue.ack(message) for message in mine), *(other.ack(message) for message in theirs)
    )
    assert answers == [None] * 40
    assert await queue.claim(40) == []


async def test_settling_nothing_is_nothing(harness: Harness) -> None:
    assert await (await harness.queue()).settle([]) == []


async def test_a_message_of_another_queue_is_stale(harness: Harness) -> None:
    """[G2] A token is good for its own message in its own queue."""
    hub = await harness.hub()
    queue, other = await harness.queue(hub=hub), await harness.queue(hub=hub)
    await queue.enqueue("x")
    message = await claim_one(queue)
    (answer,) = await other.settle([Ack(message)])
    assert isinstance(answer, StaleLease)
    assert (await queue.get(message.id)).state is State.IN_FLIGHT


async def test_whoever_was_told_of_a_lease_may_settle_it(harness: Harness) -> None:
    """Queue, ref and token are enough, in another process: tools work on exported data."""
    queue = await harness.queue(at_once())
    await queue.enqueue("x", id="own")
    claimed = await claim_one(queue)

    def told(**changes: Any) -> Message:
        lease = claimed.lease
        known: dict[str, Any] = {"id": "own", "ref": claimed.ref, "token": lease.token, "version": lease.version}
        return Message.held(queue=queue.name, **{**known, **changes})

    other = await harness.elsewhere(queue)
    lease = await other.extend(told(owner="me"), 60)
    assert lease.expires_at_ms > claimed.lease.expires_at_ms
    wrong: list[dict[str, Any]] = [
        {"token": "nobody's"},
        {"token": ""},
        {"token": f"{claimed.lease.token[:-2]}x.0"},
        {"ref": "nowhere"},
        {"ref": "own-x", "token": "t-x.x"},
        {"ref": "", "id": "no such id"},
    ]
    for changes in wrong:
        with pytest.raises(StaleLease):
            await other.ack(told(**changes))
    await other.ack(told())
    assert (await queue.get("own")).state is State.SUCCEEDED
