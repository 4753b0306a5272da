"""Histories made by hand, for tests that need to know what is in them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import brigade
from brigade.ids import Ids
from brigade.stores.bucket.history import write_history
from brigade.stores.bucket.keys import QueueKeys, SegmentName
from brigade.stores.bucket.store import BucketStore
from brigade.stores.history import Attempt, Record

__all__ = ["START", "lease", "record", "segment", "write"]

START = 1_790_000_000_000
"""A day in September 2026."""


def segment(size: int, lane: str = "") -> str:
    """The name of a segment that nobody else has."""
    name = SegmentName.make(Ids(), now=START, due=START, priority=5, lane=lane, size=size, lifo=False, special=False)
    return str(name)


def lease(version: int, begin: int, end: int, how: str = "acked", owner: str = "w") -> Attempt:
    """A lease from one second to another."""
    return Attempt(version, owner, START + 1000 * begin, START + 1000 * end, how, "no" if how == "nacked" else None)


def record(ref: str, leases: Sequence[Attempt], queue: str = "tasks", **changes: Any) -> Record:
    """A message, enqueued at the start unless changed, that ended with its last lease."""
    fields: dict[str, Any] = {
        "id": ref,
        "ref": ref,
        "queue": queue,
        "outcome": "processed",
        "priority": 5,
        "enqueued_at": START,
        "due_at": START,
        "finished_at": leases[-1].ended_at if leases else START,
        "attempts": list(leases),
        "counted": sum(one.how != "released" for one in leases),
        "max_attempts": 4,
        "content_type": "application/json",
        "size": 10,
        "correlation_id": ref,
    }
    return Record(**{**fields, **changes})


def write(url: str, *batches: Sequence[Record]) -> None:
    """Each batch is a file of history."""

    async def work() -> None:
        async with brigade.connect_async(url) as hub:
            store = hub.store
            assert isinstance(store, BucketStore)
            for records in batches:
                for queue in sorted({one.queue for one in records}):
                    await hub.queue(queue)
                    mine = [one for one in records if one.queue == queue]
                    await store.run(write_history(store.env, QueueKeys(queue), mine))

    asyncio.run(work())
