"""A failure counts as soon as it is decided, and is put in its place a moment later: who counted it can act on it."""

from __future__ import annotations

import pytest

from brigade import Failure, QueuePolicy
from brigade.blobs import Create, Op
from brigade.blobs.memory import Bucket, MemoryBlobs
from brigade.errors import StoreUnavailable
from brigade.model import Nack
from brigade.stores import Outgoing
from brigade.stores.bucket.store import BucketStore

PARKING = QueuePolicy(failure=Failure(max_retries=0))
BURYING = QueuePolicy(failure=Failure("dead-letter", max_retries=0, dead_letter_queue="letters"))
POLICIES = pytest.mark.parametrize("policy", [PARKING, BURYING], ids=["parked", "dead-lettered"])
GROUPS = pytest.mark.parametrize("group", [None, "g"], ids=["plain", "group"])
WHO = pytest.mark.parametrize("who", ["the same", "another"])


class Stuck(MemoryBlobs):
    """Storage that takes no failure in, until told otherwise."""

    stuck = True

    def try_now(self, op: Op) -> object:
        if self.stuck and isinstance(op, Create) and op.key.startswith(("q/jobs/failed/", "q/letters/seg/")):
            raise StoreUnavailable("not now")
        return super().try_now(op)


async def decided(policy: QueuePolicy, group: str | None, who: str) -> BucketStore:
    """A process that has counted a failure which lies nowhere yet: the one that decided it, or another."""
    bucket = Bucket()
    blobs = Stuck(bucket=bucket)
    store, other = BucketStore(blobs), BucketStore(MemoryBlobs(bucket=bucket))
    for one in (store, other):
        await one.open()
    await store.open_queue("jobs", policy, replace=False, create=True)
    await store.enqueue("jobs", [Outgoing(b"x", "text/plain", group=group)])
    [message] = await store.load(await store.claim("jobs", limit=1, owner="me", visibility=600))
    await store.settle("jobs", [Nack(message)])
    blobs.stuck = False
    assert not [key for key in bucket.snapshot() if key.startswith(("q/jobs/failed/", "q/letters/seg/"))]
    chosen = store if who == "the same" else other
    stats = await chosen.stats("jobs")
    assert stats.failed + stats.dead_lettered == 1
    return chosen


@WHO
@GROUPS
@POLICIES
async def test_it_is_redriven(policy: QueuePolicy, group: str | None, who: str) -> None:
    store = await decided(policy, group, who)
    assert await store.redrive("jobs", None, 10) == 1
    [message] = await store.load(await store.claim("jobs", limit=1, owner="me", visibility=600))
    assert (message.body, message.attempt, message.group) == (b"x", 1, group)
    assert await store.redrive("jobs", None, 10) == 0


@WHO
@GROUPS
async def test_it_is_purged(group: str | None, who: str) -> None:
    store = await decided(PARKING, group, who)
    assert await store.purge("jobs", failed_only=True) == 1
    stats = await store.stats("jobs")
    assert (stats.failed, stats.ready, stats.in_flight) == (0, 0, 0)
    assert await store.redrive("jobs", None, 10) == 0
