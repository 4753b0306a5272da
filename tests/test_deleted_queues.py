"""A queue that was deleted is gone: what had ended in it is not written down afterwards."""

from __future__ import annotations

import asyncio

import pytest

from brigade.blobs.memory import Bucket, MemoryBlobs
from brigade.model import Ack
from brigade.stores import Outgoing
from brigade.stores.bucket import process
from brigade.stores.bucket.store import BucketStore


@pytest.mark.parametrize("group", [None, "g"], ids=["plain", "group"])
async def test_history_is_not_written_after_its_queue_is_gone(
    group: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "FINISH_LINGER", 0.01)
    bucket = Bucket()
    store = BucketStore(MemoryBlobs(bucket=bucket))
    await store.open()
    await store.open_queue("jobs", None, replace=False, create=True)
    await store.enqueue("jobs", [Outgoing(b"x", "text/plain", group=group)])
    messages = await store.load(await store.claim("jobs", limit=1, owner="me", visibility=600))
    await store.settle("jobs", [Ack(message) for message in messages])
    finishing = asyncio.all_tasks() - {asyncio.current_task()}
    assert len(finishing) == 1
    await store.delete("jobs")
    await asyncio.gather(*finishing)
    assert bucket.snapshot() == {}
    await store.open_queue("jobs", None, replace=False, create=True)
    assert (await store.stats("jobs")).total == 0
    await store.close()
