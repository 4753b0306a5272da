"""Scan: a queue looked through in pieces, by columns, without a lease."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brigade import AsyncQueue, NewMessage
from brigade.stores import Column, Joined, Same, ScannedTable, ScanningStore
from brigade.testing.conformance.harness import Harness, at_once, claim_all, eventually


async def rows(queue: AsyncQueue, table: ScannedTable, *, most: int = 3, since: int = 0) -> list[dict[str, Any]]:
    """Everything that a scan shows, as one dict a row."""
    store = queue.hub.store
    if not isinstance(store, ScanningStore):
        pytest.skip("this store cannot be looked through in pieces")
    found: list[dict[str, Any]] = []
    for piece in await store.pieces(queue.name, table, most, since=since):
        async for block in store.scan(queue.name, table, piece):
            columns = {name: _values(column, block.count) for name, column in block.columns.items()}
            found += [{name: column[place] for name, column in columns.items()} for place in range(block.count)]
    return found


def _values(column: Column, count: int) -> list[Any]:
    if isinstance(column, Same):
        return [column.value] * count
    return column.values() if isinstance(column, Joined) else column


async def test_a_scan_shows_what_waits_and_what_is_leased(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many([NewMessage(payload=str(place), attributes={"n": place}) for place in range(5)])
    await queue.enqueue("grouped", group="g", priority=9)
    await queue.enqueue("later", delay=3600, id="mine", max_attempts=9)
    held = (await claim_all(queue, 2))[0]
    other = await harness.elsewhere(queue)
    seen = {row["payload"]: row for row in await rows(other, "messages")}
    assert set(seen) == {b"0", b"1", b"2", b"3", b"4", b"grouped", b"later"}
    leased = seen[held.payload]
    assert (leased["state"], leased["owner"]) == ("in_flight", held.lease.owner)
    assert (leased["attempts"], leased["lease_version"]) == (1, held.lease.version)
    assert leased["lease_expires_at"] == held.lease.expires_at_ms
    assert leased["claimed_at"] <= held.lease.expires_at_ms
    assert leased["id"] == held.id
    assert (seen[b"grouped"]["group"], seen[b"grouped"]["priority"]) == ("g", 9)
    assert (seen[b"later"]["id"], seen[b"later"]["max_attempts"]) == ("mine", 9)
    assert seen[b"later"]["due_at"] > seen[b"later"]["enqueued_at"]
    assert seen[b"4"]["attributes"] == {"n": 4}
    assert (seen[b"4"]["state"], seen[b"4"]["owner"]) == ("ready", None)
    assert {row["payload"] for row in await rows(other, "messages", most=1)} == set(seen)
    assert len(await rows(other, "leases")) == 2
    assert (await queue.stats()).in_flight == 2


async def test_history_has_every_attempt(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 1))
    good, bad = await queue.enqueue_many(["good", "bad"])
    while messages := await queue.claim(10):
        for message in messages:
            if message.data == "good":
                await queue.ack(message, result={"ok": True})
            else:
                await queue.nack(message, error="no", delay=0)
    failed = await rows(queue, "failed")
    assert [(row["id"], row["payload"], row["failure"].error) for row in failed] == [(bad.id, b"bad", "no")]

    async def told() -> list[dict[str, Any]]:
        return await rows(queue, "history")

    await eventually(lambda: _both(told))
    ended = {row["id"]: row for row in await told()}
    assert ended[good.id]["outcome"] == "processed"
    assert json.loads(ended[good.id]["result"]) == {"ok": True}
    assert [attempt.how for attempt in ended[good.id]["attempts"]] == ["acked"]
    assert (ended[bad.id]["outcome"], ended[bad.id]["counted"]) == ("failed", 2)
    assert [attempt.how for attempt in ended[bad.id]["attempts"]] == ["nacked", "nacked"]
    assert [attempt.error for attempt in ended[bad.id]["attempts"]] == ["no", "no"]
    first, second = ended[bad.id]["attempts"]
    assert first.version < second.version
    assert first.claimed_at <= first.ended_at <= second.claimed_at <= second.ended_at
    later = max(row["written_at"] for row in ended.values()) + 1
    assert await rows(queue, "history", since=later) == []


async def _both(told: Any) -> bool:
    return len({row["id"] for row in await told()}) == 2


async def test_an_empty_queue_has_nothing_to_scan(harness: Harness) -> None:
    queue = await harness.queue()
    for table in ("messages", "leases", "failed", "history"):
        assert await rows(queue, table) == []
