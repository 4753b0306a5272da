"""The source of a streaming query, called as Spark calls it: the order of its calls is the contract.

Running: latestOffset(N) after commits/N is on disk, then partitions(N, N+1) and reads. Restart after a death in batch
N: partitions(N-1, N), reads, then latestOffset(N).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

import brigade
from brigade import QueuePolicy
from brigade.errors import ConfigError
from brigade.spark.source.options import Settings
from brigade.spark.source.scanned import MESSAGES
from brigade.spark.source.streaming import LeasingReader
from brigade.testing.conformance.harness import eventually

Offset = dict[str, Any]
START: Offset = {"owner": "", "batch": 0}
ON_EVERY_STORE = pytest.mark.parametrize("url", ["file", "s3", "postgres", "http"], indirect=True)


@pytest.fixture
def make(url: str, queue: str) -> Iterator[Callable[..., LeasingReader]]:
    """Makes sources of one queue, each as a driver of its own; they die with the test."""
    made: list[LeasingReader] = []

    def one(**options: str) -> LeasingReader:
        made.append(LeasingReader(Settings({"url": url, "queue": queue, **options}), MESSAGES))
        return made[-1]

    yield one
    for reader in made:
        reader.stop()


@pytest.fixture
def line(url: str, queue: str) -> Iterator[brigade.Queue]:
    with brigade.connect(url) as hub:
        yield hub.queue(queue, QueuePolicy(segment_messages=10, visibility_timeout=600))


def offered(reader: LeasingReader, start: Offset, limit: ReadLimit | None = None) -> Offset:
    """What Spark would be told after a while."""

    async def look() -> Offset:
        return await asyncio.to_thread(reader.latestOffset, start, limit or reader.getDefaultReadLimit())

    async def until_news() -> Offset:
        found = START

        async def news() -> bool:
            nonlocal found
            found = await look()
            return found != start

        await eventually(news)
        return found

    return asyncio.run(until_news())


def rows(reader: LeasingReader, start: Offset, end: Offset) -> list[dict[str, Any]]:
    """What the executors read."""
    return [
        row
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def payloads(found: list[dict[str, Any]]) -> list[str]:
    return sorted(row["payload"].decode() for row in found)


@ON_EVERY_STORE
def test_a_batch_is_leased_read_and_acked_when_the_next_is_asked_for(
    line: brigade.Queue, make: Callable[..., LeasingReader]
) -> None:
    line.enqueue_many([f"{place:02}" for place in range(25)])
    reader = make()
    assert reader.initialOffset() == START == reader.initialOffset()
    end = offered(reader, START)
    assert end["batch"] == 1
    assert reader.latestOffset(START, reader.getDefaultReadLimit()) != START
    found = rows(reader, START, end)
    assert payloads(found) == [f"{place:02}" for place in range(25)]
    assert {row["state"] for row in found} == {"in_flight"}
    assert {row["owner"] for row in found} == {end["owner"]}
    assert line.stats().in_flight == 25
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) == end
    assert (line.stats().succeeded, line.stats().in_flight) == (25, 0)
    reader.commit(end)
    line.enqueue("more")
    later = offered(reader, end)
    assert (later["owner"], later["batch"]) == (end["owner"], 2)
    assert payloads(rows(reader, end, later)) == ["more"]
    assert reader.partitions(later, later) == []


@ON_EVERY_STORE
def test_a_restart_in_mid_batch_replays_it_with_the_same_owner(
    line: brigade.Queue, make: Callable[..., LeasingReader]
) -> None:
    line.enqueue_many(["a", "b"])
    first = make()
    end = offered(first, START)
    second = make()
    assert payloads(rows(second, START, end)) == ["a", "b"]
    assert second.latestOffset(end, second.getDefaultReadLimit()) == end
    assert line.stats().succeeded == 2
    assert first.latestOffset(end, first.getDefaultReadLimit()) == end


def test_a_restart_after_the_commit_acks_what_was_not(line: brigade.Queue, make: Callable[..., LeasingReader]) -> None:
    line.enqueue_many(["a", "b"])
    end = offered(make(), START)
    assert line.stats().in_flight == 2
    second = make()
    assert second.latestOffset(end, second.getDefaultReadLimit()) == end
    assert (line.stats().succeeded, line.stats().in_flight) == (2, 0)


def test_what_was_leased_but_never_logged_is_taken_up_again(
    line: brigade.Queue, make: Callable[..., LeasingReader]
) -> None:
    """The driver died between leasing a batch and writing its offset."""
    line.enqueue("a")
    first = make()
    one = offered(first, START)
    line.enqueue("b")
    two = offered(first, one)
    second = make()
    assert second.latestOffset(one, second.getDefaultReadLimit()) == two
    assert payloads(rows(second, one, two)) == ["b"]


def test_a_late_restart_leaves_to_others_what_they_took_over(
    line: brigade.Queue, make: Callable[..., LeasingReader], caplog: pytest.LogCaptureFixture
) -> None:
    line.enqueue_many([f"{place:02}" for place in range(20)])
    first = make(visibility="0.2")
    end = offered(first, START)
    first.stop()

    def taken() -> list[brigade.Message]:
        return line.claim(10, wait=1)

    others: list[brigade.Message] = []
    while not others:
        others = taken()
    second = make()
    with caplog.at_level(logging.WARNING, "brigade.spark"):
        found = rows(second, START, end)
    assert set(payloads(found)).isdisjoint(message.data for message in others)
    assert len(found) == 20 - len(others)
    assert "were taken over by others" in caplog.text
    assert second.latestOffset(end, second.getDefaultReadLimit()) == end
    assert line.ack_many(others) == [brigade.State.SUCCEEDED] * len(others)
    assert line.stats().succeeded == 20


def test_a_driver_that_was_believed_dead_cannot_ack(line: brigade.Queue, make: Callable[..., LeasingReader]) -> None:
    line.enqueue("a")
    zombie = make(visibility="0.2")
    end = offered(zombie, START)
    assert zombie._desk is not None
    zombie._desk._beat.cancel()
    held: list[brigade.Message] = []
    while not held:
        held = line.claim(1, wait=1)
    zombie.latestOffset(end, zombie.getDefaultReadLimit())
    assert line.stats().in_flight == 1
    line.ack(held[0])


def test_leases_are_kept_while_the_batch_runs(line: brigade.Queue, make: Callable[..., LeasingReader]) -> None:
    line.enqueue("a")
    reader = make(visibility="0.3")
    end = offered(reader, START)
    first = rows(reader, START, end)[0]["lease_expires_at"].timestamp() * 1000

    async def extended() -> bool:
        info = await asyncio.to_thread(line.get, rows_ref)
        return (info.lease_expires_at_ms or 0) > first + 600

    rows_ref = rows(reader, START, end)[0]["id"]
    asyncio.run(eventually(extended))
    assert line.claim() == []


def test_two_queries_share_a_queue(line: brigade.Queue, make: Callable[..., LeasingReader]) -> None:
    line.enqueue_many([f"{place:02}" for place in range(40)])
    one, two = make(maxMessagesPerTrigger="20"), make()
    first, second = offered(one, START), offered(two, START)
    mine, yours = payloads(rows(one, START, first)), payloads(rows(two, START, second))
    assert len(mine) == 20
    assert sorted(mine + yours) == [f"{place:02}" for place in range(40)]


@pytest.mark.parametrize("options, most", [({"maxMessagesPerTrigger": "7"}, 7), ({"maxBytesPerTrigger": "12"}, 6)])
def test_a_batch_keeps_to_its_limits(
    line: brigade.Queue, make: Callable[..., LeasingReader], options: dict[str, str], most: int
) -> None:
    line.enqueue_many([f"{place:02}" for place in range(40)])
    reader = make(**options)
    end = offered(reader, START)
    assert len(rows(reader, START, end)) == most
    everything = make()
    end = offered(everything, START, ReadAllAvailable())
    assert len(rows(everything, START, end)) == 40 - most


def test_a_batch_keeps_to_its_segments(tmp_path: Path, queue: str) -> None:
    url = f"file://{tmp_path}/store?fsync=off"
    with brigade.connect(url) as hub:
        line = hub.queue(queue, QueuePolicy(segment_messages=10))
        line.enqueue_many(range(40))
        reader = LeasingReader(Settings({"url": url, "queue": queue, "maxSegmentsPerTrigger": "3"}), MESSAGES)
        end = offered(reader, START)
        assert len(rows(reader, START, end)) == 30
        assert line.stats().in_flight == 30
        reader.stop()


def test_available_now_drains_what_is_there_to_the_last_message(
    line: brigade.Queue, make: Callable[..., LeasingReader]
) -> None:
    line.enqueue_many([f"{place:02}" for place in range(25)])
    reader = make(maxMessagesPerTrigger="10")
    reader.prepareForTriggerAvailableNow()
    at, seen = START, 0
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        seen += len(rows(reader, at, end))
        at = end
        line.enqueue("later")
    stats = line.stats()
    assert (seen, at["batch"]) == (25, 3)
    assert (stats.in_flight, stats.succeeded, stats.ready) == (0, 25, 3)


def test_an_idle_source_costs_little(tmp_path: Path, queue: str) -> None:
    """However often Spark asks, the store is asked as an idle worker would."""
    url = f"file://{tmp_path}/store?fsync=off&watch=off"
    with brigade.connect(url) as hub:
        hub.queue(queue)
    reader = LeasingReader(Settings({"url": url, "queue": queue}), MESSAGES)
    for _ in range(3):
        assert reader.latestOffset(START, reader.getDefaultReadLimit()) == START
    assert reader._desk is not None
    before = sum(reader._desk._hub.requests().values())
    for _ in range(12):
        assert reader.latestOffset(START, reader.getDefaultReadLimit()) == START
    assert sum(reader._desk._hub.requests().values()) - before <= 12
    reader.stop()


def test_a_stream_needs_a_queue_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'queue' is missing"):
        LeasingReader(Settings({"url": f"file://{tmp_path}"}), MESSAGES)
    with pytest.raises(ConfigError, match="no option 'maxmessages' here"):
        LeasingReader(Settings({"url": f"file://{tmp_path}", "queue": "q", "maxMessages": "1"}), MESSAGES)
