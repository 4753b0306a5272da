"""Statistics while messages go to history: between the file that is written and the objects that go, both are there."""

from __future__ import annotations

import pytest

from brigade import Failure, QueuePolicy
from brigade.blobs import Delete, DeleteIf, Op, Swap
from brigade.blobs.memory import Bucket, MemoryBlobs
from brigade.errors import StoreUnavailable
from brigade.model import Ack, Nack, Settlement
from brigade.stores import Outgoing
from brigade.stores.bucket import process
from brigade.stores.bucket.store import BucketStore


class Stuck(MemoryBlobs):
    """Storage that stops taking anything away once history is written."""

    stuck = False

    async def perform(self, op: Op) -> object:
        if self.stuck and isinstance(op, (Delete, DeleteIf, Swap)):
            raise StoreUnavailable("not now")
        return await super().perform(op)

    def try_now(self, op: Op) -> object:
        if self.stuck and isinstance(op, (Delete, DeleteIf, Swap)):
            raise StoreUnavailable("not now")
        return super().try_now(op)


@pytest.mark.parametrize("group", [None, "g"], ids=["plain", "group"])
async def test_what_is_in_history_already_is_counted_once(group: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "FINISH_LINGER", 3600.0)
    bucket = Bucket()
    blobs = Stuck(bucket=bucket)
    store, looking = BucketStore(blobs), BucketStore(MemoryBlobs(bucket=bucket))
    for one in (store, looking):
        await one.open()
    policy = QueuePolicy(failure=Failure("dead-letter", dead_letter_queue="letters"))
    await store.open_queue("tasks", policy, replace=False, create=True)
    await store.enqueue("tasks", [Outgoing(b"x", "text/plain", group=group) for _ in range(5)])
    ended = 0
    while ended < 5:
        messages = await store.load(await store.claim("tasks", limit=5, owner="me", visibility=600))
        settlements: list[Settlement] = [
            Nack(one) if ended == 0 and one is messages[0] else Ack(one) for one in messages
        ]
        await store.settle("tasks", settlements)
        ended += len(messages)
        before = await looking.stats("tasks")
        assert before.succeeded + before.dead_lettered == ended
    blobs.stuck = True
    await store.forget("tasks")
    assert any("/hist/" in key for key in bucket.snapshot())
    assert any(key.startswith(("q/tasks/led/", "q/tasks/lane/")) for key in bucket.snapshot())
    stats = await looking.stats("tasks")
    assert (stats.succeeded, stats.dead_lettered, stats.ready, stats.in_flight) == (4, 1, 0, 0)
    blobs.stuck = False
    await store.sweep("tasks")
    await store.close()
    await looking.close()
