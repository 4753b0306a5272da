"""What many consumers cost that work at the same time: requests, counted in virtual time on a bucket far away."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from brigade import AsyncQueue, Message
from brigade.blobs import List, Op
from brigade.errors import StoreUnavailable
from brigade.testing.conformance.harness import values
from brigade.testing.far import FarBucket, play


def requests(consumers: int, *, segments: int, size: int, limit: int, read: float, seed: int) -> Counter[str]:
    """Everything that is asked of the bucket until so many consumers have worked off what was enqueued before."""

    async def whole() -> Counter[str]:
        far = FarBucket(read, read * 1.5, seed)
        sender = await far.hub()
        sending = await sender.queue("tasks")
        for _ in range(segments):
            await sending.enqueue_many(["x"] * size)
        await sender.close()
        done = 0

        async def consume() -> None:
            nonlocal done
            hub = await far.hub()
            queue = await hub.queue("tasks")
            while messages := await queue.claim(limit, wait=3):
                await queue.ack_many(messages)
                done += len(messages)
            await hub.close()

        await asyncio.gather(*(consume() for _ in range(consumers)))
        assert done == segments * size
        return far.requests

    return play(whole)


@pytest.mark.parametrize("read", [0.002, 0.03], ids=lambda read: f"{1000 * read:g} ms")
@pytest.mark.parametrize(
    "segments, size, limit",
    [(240, 100, 100), (240, 1, 1), (24, 1000, 100), (240, 10, 100)],
    ids=["whole segments", "single messages", "parts of segments", "many segments at once"],
)
def test_eight_consumers_at_most_double_the_requests(segments: int, size: int, limit: int, read: float) -> None:
    """[DESIGN 8] However near the bucket is. Who meets whom is chance, so it is the mean of a few rounds."""
    alone = requests(1, segments=segments, size=size, limit=limit, read=read, seed=1).total()
    rounds = [
        requests(8, segments=segments, size=size, limit=limit, read=read, seed=seed).total() for seed in range(2, 5)
    ]
    assert sum(rounds) / len(rounds) <= 2 * alone, (alone, rounds)


async def crowded(far: FarBucket) -> tuple[AsyncQueue, AsyncQueue, Message]:
    """Two consumers: the second takes what the first has just claimed for untouched. There is one message more."""
    sending = await (await far.hub()).queue("tasks")
    for n in range(3):
        await sending.enqueue(n)
    first, second = [await (await far.hub()).queue("tasks") for _ in range(2)]
    assert values(await second.claim()) == [0]
    (taken,) = await first.claim(visibility=600)
    assert taken.data == 1
    return first, second, taken


def test_what_was_won_is_the_answer_where_storage_fails_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def whole() -> None:
        far = FarBucket()
        _, second, _ = await crowded(far)
        apply = far.bucket.apply

        def no_listing(op: Op) -> object:
            if isinstance(op, List):
                raise StoreUnavailable("it is down")
            return apply(op)

        monkeypatch.setattr(far.bucket, "apply", no_listing)
        assert values(await second.claim(2, wait=1)) == [2]
        with pytest.raises(StoreUnavailable):
            await second.claim(2, wait=1)

    play(whole)


def test_in_a_crowd_what_others_give_back_is_found_at_once_by_who_does_not_wait() -> None:
    async def whole() -> None:
        first, second, taken = await crowded(FarBucket())
        assert values(await second.claim(2)) == [2]
        assert await second.claim() == []
        await first.release(taken)
        assert values(await second.claim()) == [1]

    play(whole)


def test_in_a_crowd_what_others_give_back_is_found_soon_by_who_waits() -> None:
    """Though somebody keeps writing the ledger: a look is put off for as long as `patience`, and no longer."""

    async def whole() -> None:
        far = FarBucket()
        first, second, taken = await crowded(far)
        assert values(await second.claim(2)) == [2]
        waiting = asyncio.ensure_future(second.claim(wait=60))
        for _ in range(3):
            await asyncio.sleep(1)
            assert not waiting.done()
            await first.extend(taken)
        await first.release(taken)
        released = far.clock.monotonic()
        assert values(await waiting) == [1]
        assert far.clock.monotonic() - released <= 9

    play(whole)
