"""Damaged objects: named in an error or in the log, set aside under `corrupt/`, and the rest of the queue goes on."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from brigade import (
    AsyncQueue,
    BrigadeError,
    ConfigError,
    CorruptObject,
    MessageNotFound,
    Nack,
    QueuePolicy,
    State,
)
from brigade.blobs.memory import Bucket
from brigade.testing.conformance.harness import Harness, at_once, claim_all, claim_one, drain, eventually, values

Damage = Callable[[bytes], bytes]


def flip(body: bytes) -> bytes:
    place = len(body) // 2
    return body[:place] + bytes([body[place] ^ 0x10]) + body[place + 1 :]


def cut(body: bytes) -> bytes:
    return body[: len(body) // 2]


def empty(_: bytes) -> bytes:
    return b""


def zeros(body: bytes) -> bytes:
    return bytes(len(body))


class Bytes(Harness):
    """A harness that can reach behind the store."""

    def stored(self, part: str = "") -> dict[str, bytes]:
        """Objects by key, those with `part` in it."""
        raise NotImplementedError

    def write(self, key: str, body: bytes) -> None:
        raise NotImplementedError

    def damage(self, part: str, how: Damage) -> str:
        """Damage the one object with `part` in its key; returns the key."""
        (key,) = (key for key in self.stored(part) if not key.startswith("corrupt/"))
        self.write(key, how(self.stored(part)[key]))
        return key

    async def anew(self, queue: AsyncQueue) -> AsyncQueue:
        """The queue as a process sees it that knows nothing yet; everything before is finished first."""
        for hub in self._hubs:
            await hub.close()
        return await (await self.hub()).queue(queue.name, create=False)


class MemoryBytes(Bytes):
    @property
    def bucket(self) -> Bucket:
        return Bucket.named(self.url.removeprefix("memory://"))

    def stored(self, part: str = "") -> dict[str, bytes]:
        return {key: body for key, body in self.bucket.snapshot().items() if part in key}

    def write(self, key: str, body: bytes) -> None:
        self.bucket.damage(key, body)


class FileBytes(Bytes):
    @property
    def root(self) -> Path:
        return Path(self.url.removeprefix("file://"))

    def stored(self, part: str = "") -> dict[str, bytes]:
        keys = {str(path.relative_to(self.root)): path for path in self.root.rglob("*") if path.is_file()}
        return {key: path.read_bytes() for key, path in keys.items() if part in key and not key.startswith(".")}

    def write(self, key: str, body: bytes) -> None:
        """As a failing disk would: the file's time does not tell."""
        path = self.root / key
        times = path.stat()
        path.write_bytes(body)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.fixture(params=["memory", "file"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bytes]:
    made: Bytes = (
        MemoryBytes(f"memory://{uuid.uuid4().hex}")
        if request.param == "memory"
        else FileBytes(f"file://{tmp_path}/store", fsync=False)
    )
    async with made:
        yield made


each_damage = pytest.mark.parametrize("how", [flip, cut, empty, zeros])


def set_aside(store: Bytes, key: str, caplog: pytest.LogCaptureFixture) -> bool:
    """Whether the damaged bytes are kept and an error in the log names the object."""
    assert f"corrupt/{key}" in store.stored("corrupt/")
    told = [record for record in caplog.records if record.levelno >= logging.ERROR and key in record.getMessage()]
    assert told, caplog.text
    return True


@each_damage
async def test_a_damaged_segment_is_set_aside_and_the_rest_goes_on(
    store: Bytes, how: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await store.queue()
    await queue.enqueue("damaged")
    key = store.damage("/seg/", how)
    await queue.enqueue_many(["fine", "too"])
    queue = await store.anew(queue)
    assert values(await drain(queue, 2)) == ["fine", "too"]
    assert await queue.claim() == []
    assert set_aside(store, key, caplog)
    assert key not in store.stored()


@each_damage
async def test_a_segment_damaged_in_flight_does_not_stop_the_queue(
    store: Bytes, how: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await store.queue(at_once())
    await queue.enqueue_many(["a", "b"])
    first = await claim_one(queue)
    key = store.damage("/seg/", how)
    await queue.ack(first)
    await queue.enqueue("next")
    queue = await store.anew(queue)
    assert "next" in values(await drain(queue, 1))
    assert await queue.claim() == []
    assert set_aside(store, key, caplog)


@each_damage
async def test_a_damaged_special_segment_is_set_aside(
    store: Bytes, how: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await store.queue()
    await queue.enqueue("damaged", max_attempts=2)
    key = store.damage("/seg/", how)
    await queue.enqueue("fine", max_attempts=2)
    queue = await store.anew(queue)
    assert (await queue.stats()).ready >= 1
    assert values(await drain(queue, 1)) == ["fine"]
    assert await queue.claim() == []
    assert set_aside(store, key, caplog)


@each_damage
async def test_a_damaged_ledger_is_made_anew_and_loses_no_message(
    store: Bytes, how: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """[G1] Its messages may be delivered again; versions go on growing, and old tokens are stale."""
    queue = await store.queue()
    await queue.enqueue_many(["a", "b", "c"])
    held = await claim_all(queue, 2)
    key = store.damage("/led/", how)
    queue = await store.anew(queue)
    again = await claim_all(queue, 3)
    assert sorted(values(again)) == ["a", "b", "c"]
    assert min(message.lease.version for message in again) > max(message.lease.version for message in held)
    assert [isinstance(answer, BrigadeError) for answer in await queue.ack_many(held)] == [True, True]
    assert await queue.ack_many(again) == [State.SUCCEEDED] * 3
    assert set_aside(store, key, caplog)


@each_damage
async def test_a_damaged_lane_is_made_anew_in_order(
    store: Bytes, how: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    """[G1] [G6] From the segments, by their names."""
    queue = await store.queue(QueuePolicy(ordering_guarantee=True))
    for n in range(4):
        await queue.enqueue(n)
    key = store.damage("/lane/", how)
    queue = await store.anew(queue)
    assert values(await drain(queue, 4)) == [0, 1, 2, 3]
    assert set_aside(store, key, caplog)


@each_damage
async def test_a_producer_finds_a_damaged_lane(store: Bytes, how: Damage, caplog: pytest.LogCaptureFixture) -> None:
    """[G1] [G6]"""
    queue = await store.queue()
    await queue.enqueue("a", group="g")
    key = store.damage("/lane/", how)
    queue = await store.anew(queue)
    await queue.enqueue("b", group="g")
    assert values(await drain(queue, 2)) == ["a", "b"]
    assert set_aside(store, key, caplog)


@each_damage
async def test_a_damaged_lane_segment_does_not_block_its_lane(
    store: Bytes, how: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await store.queue(QueuePolicy(ordering_guarantee=True))
    await queue.enqueue("damaged")
    key = store.damage("/lseg/", how)
    await queue.enqueue("fine")
    queue = await store.anew(queue)
    assert values(await drain(queue, 1)) == ["fine"]
    assert set_aside(store, key, caplog)


@each_damage
async def test_a_damaged_marker_does_not_stop_its_id(
    store: Bytes, how: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await store.queue()
    await queue.enqueue("first", id="mine")
    key = store.damage("/ids/", how)
    queue = await store.anew(queue)
    receipt = await queue.enqueue("second", id="mine")
    assert receipt.id == "mine"
    assert "first" in values(await drain(queue, 1 if receipt.duplicate else 2))
    assert set_aside(store, key, caplog)
    assert (await queue.enqueue("third", id="mine")).duplicate


@each_damage
async def test_a_message_can_be_settled_over_its_damaged_marker(store: Bytes, how: Damage) -> None:
    queue = await store.queue()
    await queue.enqueue("x", id="mine")
    message = await claim_one(queue)
    store.damage("/ids/", how)
    queue = await store.anew(queue)
    await queue.ack(message)
    assert await queue.claim() == []


@each_damage
async def test_damaged_parked_failures_leave_the_others(
    store: Bytes, how: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await store.queue(at_once("retry", 0))
    await queue.enqueue("damaged")
    await queue.nack(await claim_one(queue))
    key = store.damage("/failed/", how)
    await queue.enqueue("fine")
    await queue.nack(await claim_one(queue))
    queue = await store.anew(queue)
    assert values(await queue.failed()) == ["fine"]
    assert (await queue.stats()).failed >= 1
    assert set_aside(store, key, caplog)
    assert await queue.redrive() == 1
    assert values(await drain(queue, 1)) == ["fine"]
    await queue.sweep()
    assert await queue.purge() >= 0


@each_damage
async def test_a_damaged_history_file_is_told_of_and_the_rest_is_found(
    store: Bytes, how: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await store.queue()
    first = await queue.enqueue("first")
    await drain(queue, 1)
    queue = await store.anew(queue)
    key = store.damage("/hist/", how)
    second = await queue.enqueue("second")
    await drain(queue, 1)
    queue = await store.anew(queue)
    assert (await queue.get(second.id)).state is State.SUCCEEDED
    with pytest.raises(MessageNotFound):
        await queue.get(first.id)
    assert [record for record in caplog.records if key in record.getMessage()], caplog.text
    assert f"corrupt/{key}" in store.stored("corrupt/")
    assert (await queue.stats()).succeeded >= 1


@each_damage
async def test_a_damaged_policy_is_a_clear_error_that_names_it(store: Bytes, how: Damage) -> None:
    queue = await store.queue()
    await queue.enqueue("x")
    key = store.damage("policy.json", how)
    original = store.stored("policy.json")
    hub = await store.hub()
    with pytest.raises(ConfigError, match=r"policy.json.*(restore|delete)"):
        await hub.queue(queue.name)
    with pytest.raises(ConfigError, match=key):
        await hub.queue(queue.name, QueuePolicy(), replace=True)
    assert store.stored("policy.json") == original
    other = await hub.queue(store.name())
    await other.enqueue("other queues go on")
    assert len(await drain(other, 1)) == 1


@each_damage
async def test_a_damaged_workflow_state_is_a_clear_error_and_the_message_goes_on(
    store: Bytes, how: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    queue = await store.queue()
    await queue.enqueue("x")
    message = await claim_one(queue)
    await queue.state(message).save({"step": 1})
    key = store.damage("/state/", how)
    with pytest.raises(CorruptObject, match=key):
        await queue.state(message).load()
    assert set_aside(store, key, caplog)
    await queue.ack(message)


@each_damage
async def test_a_damaged_workflow_state_does_not_stop_a_dead_letter(store: Bytes, how: Damage) -> None:
    letters = store.name("dead")
    queue = await store.queue(at_once("dead-letter", letters=letters))
    await queue.enqueue("x")
    message = await claim_one(queue)
    await queue.state(message).save({"step": 1})
    store.damage("/state/", how)
    assert await queue.nack(message) is State.FAILED
    dead_queue = await (await store.hub()).queue(letters)
    assert values(await drain(dead_queue, 1)) == ["x"]
    assert await queue.redrive() >= 0


@pytest.mark.parametrize("how", [cut, empty])
async def test_a_large_payload_that_is_cut_short_is_not_taken_for_the_whole(store: Bytes, how: Damage) -> None:
    queue = await store.queue()
    await queue.enqueue(os.urandom(600_000))
    key = store.damage("/blob/", how)
    message = await claim_one(queue)
    with pytest.raises(CorruptObject, match=key):
        await message.open().read()


@pytest.mark.parametrize("how", [flip, zeros])
async def test_a_large_payload_that_was_altered_is_not_taken_for_the_right_one(store: Bytes, how: Damage) -> None:
    queue = await store.queue()
    await queue.enqueue(os.urandom(600_000))
    key = store.damage("/blob/", how)
    message = await claim_one(queue)
    with pytest.raises(CorruptObject, match=key):
        await message.open().read()


async def test_a_sweep_goes_past_every_kind_of_damage(store: Bytes, caplog: pytest.LogCaptureFixture) -> None:
    queue = await store.queue(at_once("retry", 0))
    await queue.enqueue_many(["failed"])
    await queue.settle([Nack(await claim_one(queue))])
    await queue.enqueue("grouped", group="g")
    await queue.enqueue("own", id="mine")
    await queue.enqueue("held")
    messages = await claim_all(queue, 3)
    for message in messages:
        await queue.state(message).save(1)
    await queue.enqueue("fine", priority=9)
    fine = set(store.stored("/seg/9/"))
    for key, body in store.stored(f"q/{queue.name}/").items():
        if not key.endswith(("policy.json", "!lanes")) and key not in fine:
            store.write(key, flip(body))
    queue = await store.anew(queue)
    await queue.sweep()

    async def still_works() -> bool:
        return "fine" in values(await queue.claim(10, wait=1))

    await eventually(still_works)
    await queue.stats()
    assert caplog.records


async def test_a_foreign_file_in_the_bucket_is_left_alone(store: Bytes) -> None:
    """Names that are not the queue's own are neither read nor deleted."""
    queue = await store.queue()
    await queue.enqueue("x")
    if isinstance(store, FileBytes):
        folder = store.root / "q" / queue.name
        for name in ("README", "seg/note.txt", "seg/5/note", "led/5/note", "hist/note"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("not mine")
    assert values(await drain(queue, 1)) == ["x"]
    assert (await queue.stats()).ready == 0
    await queue.sweep()
    if isinstance(store, FileBytes):
        assert (folder / "seg/note.txt").exists()
        assert (folder / "README").exists()


async def test_a_store_of_a_newer_version_is_not_called_damaged(store: Bytes) -> None:
    """An upgrade is asked for; nothing is set aside or deleted."""
    from brigade.codec import Format
    from brigade.stores.bucket.wire import SEGMENT, Segment

    queue = await store.queue()
    await queue.enqueue("x")
    (key,) = store.stored("/seg/")
    newer: Format[Segment] = Format("S", Segment, version=3)
    body = newer.encode(SEGMENT.decode(store.stored(key)[key], key=key))
    store.write(key, body)
    queue = await store.anew(queue)
    with pytest.raises(BrigadeError, match="upgrade bucket-brigade"):
        await queue.claim()
    assert store.stored(key)[key] == body
    assert store.stored("corrupt/") == {}
