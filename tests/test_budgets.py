"""The budgets of the design: storage requests are counted, not timed; imports are listed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade import AsyncHub
from brigade.blobs.disk import DiskBlobs
from brigade.blobs.memory import MemoryBlobs
from brigade.stores.bucket import process, store
from brigade.stores.bucket.keys import parse_message_ref
from brigade.testing.conformance.harness import eventually


def total(hub: AsyncHub) -> int:
    return sum(hub.requests().values())


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"memory://{uuid.uuid4().hex}" if request.param == "memory" else f"file://{tmp_path}/jobs?fsync=off"


async def finished(hub: AsyncHub) -> int:
    """The requests of a hub once everything that it has begun is done: history written, segments deleted."""
    store = hub.store
    await hub.close()
    return sum(store.requests().values())


async def cost_of(url: str, count: int, *, batch: int, limit: int) -> float:
    """Requests a message, enqueue to history, of a producer and a consumer with hubs of their own."""
    producer, consumer = await brigade.connect_async(url).open(), await brigade.connect_async(url).open()
    sending = await producer.queue("tasks")
    for start in range(0, count, batch):
        await sending.enqueue_many([f"{start + n:0200}" for n in range(min(batch, count - start))])
    receiving = await consumer.queue("tasks")
    done = 0
    while done < count:
        messages = await receiving.claim(limit, wait=10)
        assert not [answer for answer in await receiving.ack_many(messages) if isinstance(answer, Exception)]
        done += len(messages)
    made = await finished(producer) + await finished(consumer)
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        assert (await queue.stats()).succeeded == count
        assert await queue.claim() == []
    return made / count


async def test_batches_of_a_hundred_cost_at_most_six_hundredths_of_a_request_each(url: str) -> None:
    assert await cost_of(url, 5000, batch=100, limit=100) <= 0.06


async def test_larger_claims_of_such_batches_cost_no_more(url: str) -> None:
    assert await cost_of(url, 5000, batch=100, limit=1000) <= 0.06


async def test_one_message_a_segment_costs_at_most_six_requests(url: str) -> None:
    assert await cost_of(url, 200, batch=1, limit=10) <= 6


async def test_one_message_a_segment_claimed_one_by_one_costs_at_most_six_requests(url: str) -> None:
    assert await cost_of(url, 200, batch=1, limit=1) <= 6


async def test_enqueues_at_the_same_time_share_their_writes(url: str) -> None:
    """Group commit: what arrives while a write is under way goes out together."""
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        before = total(hub)
        await asyncio.gather(*(queue.enqueue(n) for n in range(200)))
        assert total(hub) - before <= 20


async def test_acks_at_the_same_time_share_their_writes(url: str) -> None:
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        await queue.enqueue_many(range(200))
        messages = await queue.claim(200)
        before = total(hub)
        await asyncio.gather(*(queue.ack(message) for message in messages))
        assert total(hub) - before <= 20


async def test_a_batch_is_settled_in_one_write(url: str) -> None:
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        await queue.enqueue_many(range(500))
        messages = await queue.claim(500)
        assert len(messages) == 500
        before = hub.requests()
        await queue.settle([brigade.Extend(message, 60) for message in messages])
        after = hub.requests()
        assert sum(after.values()) - sum(before.values()) == 1
        assert after["swap"] - before.get("swap", 0) == 1


async def test_an_enqueue_is_one_write(url: str) -> None:
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        await queue.enqueue("first")
        before = total(hub)
        await queue.enqueue_many(range(1000))
        assert total(hub) - before == 1


MINUTE = 60.0
FASTER = 30
"""How much faster than real time the idle tests run: every interval between polls is shortened as much."""


@pytest.fixture(params=["memory", "file with watcher", "file, polling"])
async def idle_hub(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[AsyncHub]:
    for owner in (DiskBlobs, MemoryBlobs):
        monkeypatch.setattr(owner, "poll_interval", owner.poll_interval / FASTER)
    for name in ("FIRST_POLL", "SAFETY_POLL"):
        monkeypatch.setattr(store, name, getattr(store, name) / FASTER)
    kind: str = request.param
    place = "memory://" if kind == "memory" else f"file://{tmp_path}/jobs?fsync=off&watch={'watcher' in kind}"
    async with brigade.connect_async(place) as hub:
        yield hub


async def test_an_idle_claimer_makes_at_most_twelve_requests_a_minute(idle_hub: AsyncHub) -> None:
    queue = await idle_hub.queue("tasks")
    assert await queue.claim(wait=MINUTE / FASTER) == []
    before = total(idle_hub)
    assert await queue.claim(wait=MINUTE / FASTER) == []
    assert total(idle_hub) - before <= 12


async def test_each_of_many_idle_claimers_makes_at_most_twelve_requests_a_minute(idle_hub: AsyncHub) -> None:
    queue = await idle_hub.queue("tasks")
    await asyncio.gather(*(queue.claim(wait=MINUTE / FASTER) for _ in range(20)))
    before = total(idle_hub)
    await asyncio.gather(*(queue.claim(wait=MINUTE / FASTER) for _ in range(20)))
    assert total(idle_hub) - before <= 20 * 12


async def test_stats_of_a_deep_queue_read_no_segment(url: str) -> None:
    """Names give the depth."""
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        for _ in range(20):
            await queue.enqueue_many(range(50))
        before = total(hub)
        assert (await queue.stats()).ready == 1000
        assert total(hub) - before <= 10


async def test_history_is_written_for_many_messages_at_once(url: str) -> None:
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        for n in range(50):
            await queue.enqueue(n)
        while messages := await queue.claim(50):
            await queue.ack_many(messages)

        async def written() -> bool:
            return (await queue.stats()).succeeded == 50

        await eventually(written)
        assert process.FINISH_BATCH >= 50
    if url.startswith("file://"):
        root = Path(url.removeprefix("file://").partition("?")[0])
        assert len(list(root.rglob("*.jsonl.gz"))) <= 3


FORBIDDEN = ("pyspark", "psycopg", "psycopg_pool", "starlette", "uvicorn", "httpx", "rich", "click", "jinja2", "pandas")


@pytest.mark.parametrize("statement", ["import brigade", "import brigade; brigade.connect('memory://').close()"])
def test_importing_brigade_imports_nothing_heavy(statement: str) -> None:
    script = f"import sys\n{statement}\nprint(*sorted(name for name in sys.modules if '.' not in name))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert "brigade" in loaded
    assert loaded & {*FORBIDDEN, "watchfiles", "pytest", "sqlite3", "pyarrow", "numpy", "cryptography"} == set()


def test_importing_brigade_imports_few_modules() -> None:
    """What is imported is what takes the time: the figure is stable where seconds are not."""
    script = "import sys\nbefore = set(sys.modules)\nimport brigade\nprint(len(set(sys.modules) - before))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 260


def test_modules_are_small() -> None:
    """Modules of 100 to 400 lines; none over 600."""
    package = Path(brigade.__file__).parent
    large = {
        str(path.relative_to(package)): lines
        for path in package.rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 600
    }
    assert large == {}


async def test_a_process_that_only_looks_remembers_no_more_than_there_is(tmp_path: Path) -> None:
    """One that asks for statistics for weeks, and never claims, must not grow with what has passed."""
    url = f"file://{tmp_path}/jobs?fsync=off"
    policy = brigade.QueuePolicy(failure=brigade.Failure("dead-letter", dead_letter_queue="letters"))
    async with brigade.connect_async(url) as working, brigade.connect_async(url) as looking:
        queue, seen = await working.queue("tasks", policy), await looking.queue("tasks")
        for turn in range(20):
            await queue.enqueue(turn, group=f"customer-{turn}" if turn % 2 else None)
            (message,) = await queue.claim()
            assert (await seen.stats()).in_flight == 1
            await (queue.nack(message, error="no") if turn % 3 == 0 else queue.ack(message))
        await working.close()
        await seen.stats()
        store: Any = looking.store
        view = store._queues["tasks"].view
        held = {
            name: len(getattr(view, name)) for name in ("ledgers", "lanes", "unmoved", "ended", "entries", "parked")
        }
        assert held == dict.fromkeys(held, 0)


async def test_a_failure_that_was_only_looked_at_is_forgotten_with_its_ledger(tmp_path: Path) -> None:
    """A decided failure is seen before it is moved; whoever moves it, the one who saw it must not keep its name."""
    url = f"file://{tmp_path}/jobs?fsync=off"
    policy = brigade.QueuePolicy(failure=brigade.Failure("dead-letter", dead_letter_queue="letters"))
    async with brigade.connect_async(url) as working, brigade.connect_async(url) as looking:
        queue, seen = await working.queue("tasks", policy), await looking.queue("tasks")
        store: Any = looking.store
        await seen.stats()
        view = store._queues["tasks"].view
        held: list[brigade.Message] = []
        for group in (None, "one"):
            receipt = await queue.enqueue(1, group=group)
            segment, _ = parse_message_ref(receipt.id) or pytest.fail("not an id")
            held += await queue.claim()
            await seen.stats()
            view.unmoved[segment] = None
            await seen.stats()
            assert segment in view.unmoved
        await queue.ack_many(held)
        await working.close()
        await seen.stats()
        assert not view.unmoved


async def test_a_sweep_looks_only_into_folders_that_hold_something(url: str) -> None:
    """An idle queue is swept every few minutes by all who wait: one request shows what there is, one lists history."""
    async with brigade.connect_async(url) as working:
        queue = await working.queue("tasks")
        await queue.enqueue_many(range(10))
        await queue.ack_many(await queue.claim(10))
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        before = total(hub)
        await queue.sweep()
        assert total(hub) - before == 2
        await queue.enqueue("x", group="a")
        before = hub.requests()["list"]
        await queue.sweep()
        assert hub.requests()["list"] - before == 5, "what there is, history, flags, lanes and their segments"


async def test_a_process_forgets_what_it_has_worked_off_of_a_long_line(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its listings never come to the end of the line."""
    monkeypatch.setattr(process, "FINISH_BATCH", 50)
    async with brigade.connect_async(url) as hub:
        queue = await hub.queue("tasks")
        for _ in range(1200):
            await queue.enqueue("x")
        bucket = hub.store
        assert isinstance(bucket, store.BucketStore)
        monkeypatch.setattr(type(bucket.blobs), "listing_ttl", 0.0)
        view = bucket._queues["tasks"].view
        for _ in range(800):
            await queue.ack((await queue.claim())[0])
        assert view.more_after is not None
        await eventually(lambda: len(view.finished) < 50)
        await queue.claim()
        assert len(view.ledgers) + len(view.ledgers_before) + len(view.entries) <= 400
