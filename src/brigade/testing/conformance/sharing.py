"""Several claim in one go, and settle again what may have been settled: what a server asks of its store."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from brigade import Ack, AsyncQueue, Extend, Message, Nack, Release, StaleLease, State
from brigade.stores import RepeatingStore, Settled, SharingStore, Taker
from brigade.testing.conformance.harness import SHORT, Harness, at_once, claim_one, passed


async def shared(queue: AsyncQueue, *limits: int, visibility: float = 30) -> list[list[Message]]:
    """The messages of each taker; they are called taker-0, taker-1, …"""
    store = queue.hub.store
    if not isinstance(store, SharingStore):
        pytest.skip("this store does not claim for several at once")
    takers = [Taker(f"taker-{number}", limit) for number, limit in enumerate(limits)]
    shares = await store.claim_for(queue.name, takers, visibility=visibility)
    return [await store.load(grants) if grants else [] for grants in shares]


def repeating(queue: AsyncQueue) -> RepeatingStore:
    store = queue.hub.store
    if not isinstance(store, RepeatingStore):
        pytest.skip("this store cannot tell what was settled before")
    return store


async def test_takers_get_one_each_in_order_then_more(harness: Harness) -> None:
    queue = await harness.queue()
    for n in range(6):
        await queue.enqueue(n)
    assert [[m.data for m in part] for part in await shared(queue, 2, 1, 3)] == [[0, 3], [1], [2, 4, 5]]


async def test_where_there_is_too_little_the_last_in_line_go_without(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(range(3))
    assert [len(part) for part in await shared(queue, 5, 1, 5, 1, 1)] == [1, 1, 1, 0, 0]
    assert await shared(queue, 1, 1) == [[], []]


async def test_each_lease_is_its_taker_s_own(harness: Harness) -> None:
    """[G2] The store knows who holds what; the versions of several takers are all new."""
    queue = await harness.queue()
    await queue.enqueue_many(range(6))
    parts = await shared(queue, 2, 2, 2)
    assert [{m.lease.owner for m in part} for part in parts] == [{"taker-0"}, {"taker-1"}, {"taker-2"}]
    assert [(await queue.get(m.id)).owner for part in parts for m in part] == [
        m.lease.owner for part in parts for m in part
    ]
    assert await queue.ack_many([m for part in parts for m in part]) == [State.SUCCEEDED] * 6


async def test_no_taker_can_settle_what_is_another_s(harness: Harness) -> None:
    """[G2] What one of them holds tells nothing of the tokens of the others."""
    queue = await harness.queue()
    await queue.enqueue_many(range(8))
    parts = await shared(queue, 2, 2, 2, 2)
    stems = [{m.lease.token.rpartition(".")[0] for m in part} for part in parts]
    assert len({stem for part in stems for stem in part}) == sum(map(len, stems)) >= 4
    (mine, _), (theirs, _), *_ = parts
    stem, place = mine.lease.token.rpartition(".")[0], theirs.lease.token.rpartition(".")[2]
    forged = replace(theirs, lease=replace(theirs.lease, token=f"{stem}.{place}"))
    assert isinstance((await queue.settle([Ack(forged)]))[0], StaleLease)
    await queue.ack(theirs)


async def test_leases_that_ran_out_are_shared_like_others(harness: Harness) -> None:
    """[G4] A takeover by several counts an attempt for each message."""
    queue = await harness.queue(at_once("retry", 3))
    await queue.enqueue_many(range(4))
    first = await shared(queue, 2, 2, visibility=SHORT)
    await passed(first[1][-1])
    again = await shared(queue, 1, 1, 1, 1)
    assert [m.attempt for part in again for m in part] == [2] * 4
    assert all(isinstance(one, StaleLease) for one in await queue.ack_many([m for part in first for m in part]))


async def test_heads_of_groups_are_shared_too(harness: Harness) -> None:
    queue = await harness.queue()
    for n in range(4):
        await queue.enqueue(n, group=f"group-{n % 2}")
    await queue.enqueue(4)
    parts = await shared(queue, 2, 2, 2)
    assert sorted(m.data for part in parts for m in part) == [0, 1, 4]
    assert {m.lease.owner for part in parts for m in part} <= {"taker-0", "taker-1", "taker-2"}
    assert await queue.ack_many([m for part in parts for m in part]) == [State.SUCCEEDED] * 3


async def test_an_ack_made_twice_was_made(harness: Harness) -> None:
    """[G3] Whoever settles again what a dead process may have settled is told how it stands, from anywhere."""
    queue = await harness.queue()
    await queue.enqueue_many(range(3))
    messages = await queue.claim(3)
    await queue.ack_many(messages[:2])
    other = await harness.elsewhere(queue)
    answers = await repeating(other).settle_again(queue.name, [Ack(message) for message in messages])
    assert [isinstance(one, Settled) and one.state for one in answers] == [State.SUCCEEDED] * 3
    await queue.clear_queue_cache()
    answers = await repeating(other).settle_again(queue.name, [Ack(message) for message in messages])
    assert [isinstance(one, Settled) and one.state for one in answers] == [State.SUCCEEDED] * 3
    assert (await queue.stats()).succeeded == 3


async def test_a_nack_or_a_release_made_twice_counts_once(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 5))
    await queue.enqueue("x")
    for kind in (Nack, Release):
        settlement = kind(await claim_one(queue))
        await queue.settle([settlement])
        (answer,) = await repeating(queue).settle_again(queue.name, [settlement])
        assert isinstance(answer, Settled)
        assert answer.state is State.READY
    assert (await claim_one(queue)).attempt == 2


async def test_what_went_to_another_is_stale_however_often_it_is_settled(harness: Harness) -> None:
    """[G2] An ack that was never made is not made up for once the lease is somebody else's."""
    queue = await harness.queue()
    await queue.enqueue("x")
    old = await claim_one(queue, visibility=SHORT)
    new = await claim_one(await harness.elsewhere(queue))
    for settlement in (Ack(old), Nack(old, "no"), Release(old), Extend(old, 5)):
        (answer,) = await repeating(queue).settle_again(queue.name, [settlement])
        assert isinstance(answer, StaleLease)
    await queue.ack(new)
    (answer,) = await repeating(queue).settle_again(queue.name, [Ack(old)])
    assert isinstance(answer, StaleLease)
