"""What every bucket has in common: its history and its keys, read past the queue that wrote them."""

from __future__ import annotations

from typing import cast

from brigade.blobs import Blob, Blobs, Get, List, Page
from brigade.stores.bucket.history import Record, read_records
from brigade.testing.chaos.judge.ended import Ended, Held

__all__ = ["ended_in", "left_in"]

KEPT = ("/policy.json", "/seg/!lanes")


async def keys_in(blobs: Blobs) -> list[str]:
    keys: list[str] = []
    while True:
        page = cast(Page, await blobs.perform(List("", keys[-1] if keys else "")))
        keys += [item.key for item in page.items]
        if not page.more or not page.items:
            return keys


async def ended_in(blobs: Blobs) -> list[Ended]:
    """Every record of history, as often as it was written."""
    found: list[Ended] = []
    for key in await keys_in(blobs):
        if not key.endswith(".jsonl.gz"):
            continue
        blob = cast("Blob | None", await blobs.perform(Get(key)))
        if blob is not None:
            found += [_ended(record) for record in read_records(blob.body)]
    return found


def _ended(record: Record) -> Ended:
    return Ended(
        queue=record.queue,
        ref=record.ref,
        uid=record.correlation_id,
        outcome=record.outcome,
        counted=record.counted,
        max_attempts=record.max_attempts,
        group=record.group,
        held=[Held(one.version, one.claimed_at, one.ended_at, one.how) for one in record.attempts],
    )


async def left_in(blobs: Blobs) -> list[str]:
    """Keys that nobody needs any more. Policies stay, and so does the word that there are lanes."""
    return [key for key in await keys_in(blobs) if not key.endswith(KEPT) and not key.startswith("probe/")]
