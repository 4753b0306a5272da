"""Claim: exclusive leases, in batches, with waiting."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from brigade import ConfigError, Message, QueuePolicy, StaleLease, State
from brigade.model import Grant
from brigade.testing.conformance.harness import (
    PATIENCE,
    SHORT,
    Harness,
    claim_all,
    claim_one,
    eventually,
    now_ms,
    values,
)


async def test_two_workers_that_want_one_message_have_one_winner(harness: Harness) -> None:
    """[G2] [seed 000: Acquire message exclusively] One gets a token; the other one no payload at all."""
    queue = await harness.queue()
    other = await harness.elsewhere(queue)
    await queue.enqueue("only")
    answers = await asyncio.gather(queue.claim(), other.claim())
    won = [message for answer in answers for message in answer]
    assert len(won) == 1
    assert won[0].lease.token
    assert [len(answer) for answer in answers].count(0) == 1


async def test_a_leased_message_is_hidden_from_everybody(harness: Harness) -> None:
    """[G2] [seed 002: Jobs are invisible to other workers while leased (in-flight)]"""
    queue = await harness.queue()
    await queue.enqueue("x")
    await claim_one(queue)
    assert await queue.claim() == []
    assert await (await harness.elsewhere(queue)).claim() == []


async def test_the_lease_is_recorded_with_the_message(harness: Harness) -> None:
    """Token, owner and expiry belong to the message: anybody can see who holds it and until when."""
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    before = now_ms()
    message = await claim_one(queue, owner="worker-a", visibility=60)
    lease = message.lease
    assert lease.owner == "worker-a"
    assert before + 58_000 <= lease.expires_at_ms <= now_ms() + 62_000
    seen = await (await harness.elsewhere(queue)).get(receipt.id)
    assert seen.state is State.IN_FLIGHT
    assert (seen.owner, seen.lease_version) == ("worker-a", lease.version)
    assert seen.lease_expires_at_ms == lease.expires_at_ms


async def test_a_claim_without_owner_is_held_by_the_hub(harness: Harness) -> None:
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    await queue.enqueue("x")
    assert (await claim_one(queue)).lease.owner == hub.owner


async def test_the_policy_gives_the_lease_its_length(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(visibility_timeout=120))
    await queue.enqueue("x")
    before = now_ms()
    message = await claim_one(queue)
    assert before + 118_000 <= message.lease.expires_at_ms <= now_ms() + 122_000


async def test_a_claim_on_an_empty_queue_is_an_empty_list(harness: Harness) -> None:
    queue = await harness.queue()
    assert await queue.claim(10) == []


async def test_a_claim_takes_no_more_than_its_limit(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(10))
    assert values(await queue.claim(3)) == [0, 1, 2]
    assert values(await queue.claim(100)) == [3, 4, 5, 6, 7, 8, 9]


async def test_one_claim_may_win_messages_of_many_enqueues(harness: Harness) -> None:
    queue = await harness.queue()
    for n in range(12):
        await queue.enqueue(n)
    assert sorted(values(await claim_all(queue, 12))) == list(range(12))


async def test_a_message_behind_a_thousand_leased_ones_is_found(harness: Harness) -> None:
    """However much is in flight, what is ready is handed out."""
    queue = await harness.queue(QueuePolicy(segment_messages=1))
    await queue.enqueue_many(range(1100))
    await claim_all(queue, 1100, visibility=600)
    other = await harness.elsewhere(queue)
    await queue.enqueue("last")
    assert values(await other.claim(5)) == ["last"]
    assert await other.claim() == []


async def test_several_workers_share_one_batch(harness: Harness) -> None:
    """[G2] Messages that were enqueued together can be leased by different workers."""
    queue = await harness.queue()
    await queue.enqueue_many(range(9))
    workers = [await harness.elsewhere(queue) for _ in range(3)]
    taken = [await claim_all(worker, 3) for worker in workers]
    assert sorted(n for share in taken for n in values(share)) == list(range(9))
    for worker, share in zip(workers, taken, strict=True):
        await worker.ack_many(share)
    assert await queue.claim(9) == []


async def test_a_claim_may_ack_the_message_before(harness: Harness) -> None:
    """[G3] One call for each message: what it acks is over, and what it claims is another one."""
    for strict in (False, True):
        queue = await harness.queue(QueuePolicy(ordering_guarantee=strict))
        await queue.enqueue("a")
        await queue.enqueue_many(["b", "c"])
        held: Message | None = None
        for wanted in ("a", "b", "c"):
            before = held
            (held,) = await queue.claim(wait=PATIENCE, ack=before)
            assert held.data == wanted
            assert before is None or (await queue.get(before.id)).state is State.SUCCEEDED
        assert await queue.claim(ack=held) == []
        assert (await queue.stats()).succeeded == 3


async def test_who_may_not_ack_claims_nothing(harness: Harness) -> None:
    """[G2] A lease that was lost is told, and nothing else is held or counted."""
    queue = await harness.queue()
    await queue.enqueue("a")
    late = await claim_one(queue, visibility=SHORT)
    current = await claim_one(await harness.elsewhere(queue), visibility=60)
    await queue.enqueue("b")
    with pytest.raises(StaleLease):
        await queue.claim(ack=late)
    (other,) = await queue.claim(wait=PATIENCE, ack=current)
    assert (other.data, other.attempt) == ("b", 1)


async def test_a_claim_that_is_refused_acks_nothing(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("a")
    message = await claim_one(queue, visibility=60)
    for options in ({"limit": 0}, {"wait": -1}, {"visibility": 0}, {"owner": ""}):
        with pytest.raises(ConfigError):
            await queue.claim(**options, ack=message)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="claimed Message"):
        await queue.claim(ack="a")  # pyright: ignore[reportArgumentType]
    assert (await queue.get(message.id)).state is State.IN_FLIGHT
    assert await queue.claim(ack=message) == []


async def test_a_waiting_claim_returns_when_a_message_arrives(harness: Harness) -> None:
    queue = await harness.queue()
    waiting = asyncio.ensure_future(queue.claim(wait=PATIENCE))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await queue.enqueue("news")
    assert values(await waiting) == ["news"]


async def test_a_waiting_claim_returns_when_another_process_enqueues(harness: Harness) -> None:
    queue = await harness.queue()
    other = await harness.elsewhere(queue)
    waiting = asyncio.ensure_future(queue.claim(wait=PATIENCE))
    await asyncio.sleep(0.05)
    await other.enqueue("news")
    assert values(await waiting) == ["news"]


async def test_many_waiting_claims_share_what_arrives(harness: Harness) -> None:
    queue = await harness.queue()
    waiting = [asyncio.ensure_future(queue.claim(wait=PATIENCE)) for _ in range(8)]
    await asyncio.sleep(0.05)
    await queue.enqueue_many(range(8))
    answers = await asyncio.gather(*waiting)
    assert sorted(n for answer in answers for n in values(answer)) == list(range(8))


async def test_a_claim_that_waits_in_vain_is_an_empty_list(harness: Harness) -> None:
    queue = await harness.queue()
    assert await queue.claim(wait=0.05) == []


async def test_a_waiting_claim_gets_what_is_given_back(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue)
    waiting = asyncio.ensure_future((await harness.elsewhere(queue)).claim(wait=PATIENCE))
    await asyncio.sleep(0.05)
    await queue.release(message)
    assert values(await waiting) == ["x"]


async def test_a_cancelled_wait_leases_nothing(harness: Harness) -> None:
    queue = await harness.queue()
    waiting = asyncio.ensure_future(queue.claim(wait=PATIENCE))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await queue.enqueue("x")
    # A look that was under way may have found the message: it goes back, and no attempt is counted.
    messages = await queue.claim(wait=PATIENCE)
    assert values(messages) == ["x"]
    assert messages[0].attempt == 1


async def test_a_claim_cancelled_half_way_gives_back_what_it_won(harness: Harness) -> None:
    """[G1] Whatever the moment of the cancellation, the messages can be claimed again, with no attempt counted."""
    queue = await harness.queue()
    await queue.enqueue_many(range(5))
    for turns in range(12):
        claiming = asyncio.ensure_future(queue.claim(5, visibility=600))
        for _ in range(turns):
            await asyncio.sleep(0)
        claiming.cancel()
        done = await asyncio.gather(claiming, return_exceptions=True)
        if isinstance(done[0], list):
            for message in done[0]:
                await queue.release(message)

        async def all_back() -> bool:
            return (await queue.stats()).ready == 5

        await eventually(all_back)
    messages = await claim_all(queue, 5)
    assert [message.attempt for message in messages] == [1] * 5


async def test_grants_are_plain_data_that_another_process_loads(harness: Harness) -> None:
    """Claim and load are two steps: leases won here can be loaded, and settled, elsewhere."""
    harness.needs("grants")
    hub, far = await harness.hub(), await harness.hub()
    queue = await harness.queue(hub=hub)
    receipts = await queue.enqueue_many(range(6))
    grants = await hub.store.claim(queue.name, limit=6, owner="driver", visibility=60)
    sent = msgspec.msgpack.encode(grants)
    messages: list[Message] = await far.store.load(msgspec.msgpack.decode(sent, type=list[Grant]))
    assert [message.id for message in messages] == [receipt.id for receipt in receipts]
    assert {message.lease.owner for message in messages} == {"driver"}
    there = await far.queue(queue.name)
    assert await there.ack_many(messages) == [State.SUCCEEDED] * 6
    assert await queue.claim(6) == []
