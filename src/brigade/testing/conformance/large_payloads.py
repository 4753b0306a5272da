"""Large payloads: over 256 KiB they are stored apart and streamed, in and out."""

from __future__ import annotations

import hashlib
import io
from collections.abc import AsyncIterator, Iterator

import pytest

from brigade import BrigadeError, ConfigError, Message, Nack, PayloadTooLarge, QueuePolicy, State
from brigade.testing.conformance.harness import Harness, at_once, claim_all, claim_one, drain, eventually

LARGE = bytes(range(256)) * 4096
"""One mebibyte."""

INLINE = 256 * 1024


async def read(message: Message) -> bytes:
    async with message.open() as reader:
        return await reader.read()


async def test_a_large_payload_comes_back_whole(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue(LARGE)
    message = await claim_one(await harness.elsewhere(queue))
    assert message.size == len(LARGE)
    assert await read(message) == LARGE


async def test_a_large_payload_is_not_held_in_memory(harness: Harness) -> None:
    """`payload` and `data` of a large message say how to read it instead."""
    queue = await harness.queue()
    await queue.enqueue(LARGE)
    message = await claim_one(queue)
    assert message.body is None
    with pytest.raises(BrigadeError, match="open"):
        _ = message.payload


@pytest.mark.parametrize("payload", [b"", b"small"])
async def test_a_small_payload_is_read_like_a_large_one(harness: Harness, payload: bytes) -> None:
    queue = await harness.queue()
    await queue.enqueue(payload)
    message = await claim_one(queue)
    assert await read(message) == payload
    assert b"".join([chunk async for chunk in message.open()]) == payload


async def test_a_reader_gives_chunks_and_any_number_of_bytes(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue(LARGE)
    message = await claim_one(queue)
    chunks = [chunk async for chunk in message.open()]
    assert b"".join(chunks) == LARGE
    reader = message.open()
    pieces = [await reader.read(10), await reader.read(300_000), await reader.read()]
    assert [len(piece) for piece in pieces] == [10, 300_000, len(LARGE) - 300_010]
    assert b"".join(pieces) == LARGE
    assert await reader.read() == b""
    await reader.close()


async def test_a_file_is_streamed_in(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue(io.BytesIO(LARGE))
    assert await read(await claim_one(queue)) == LARGE


async def test_an_iterator_is_streamed_in(harness: Harness) -> None:
    queue = await harness.queue()

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(LARGE), 100_000):
            yield LARGE[start : start + 100_000]

    await queue.enqueue(chunks())
    assert await read(await claim_one(queue)) == LARGE


async def test_an_async_iterator_is_streamed_in(harness: Harness) -> None:
    queue = await harness.queue()

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(LARGE), 70_001):
            yield LARGE[start : start + 70_001]

    await queue.enqueue(chunks())
    assert await read(await claim_one(queue)) == LARGE


async def test_a_small_stream_is_an_ordinary_message(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many([io.BytesIO(b"file"), iter([b"it", b"er"]), io.BytesIO(b"")])
    assert [message.payload for message in await claim_all(queue, 3)] == [b"file", b"iter", b""]


@pytest.mark.parametrize("size", [INLINE - 1, INLINE, INLINE + 1])
async def test_sizes_around_the_limit_come_back_whole(harness: Harness, size: int) -> None:
    queue = await harness.queue()
    payload = LARGE[:size]
    await queue.enqueue(payload)
    message = await claim_one(queue)
    assert (message.body is not None) == (size <= INLINE)
    assert await read(message) == payload if message.body is None else message.payload == payload


async def test_large_text_and_json_are_stored_apart_too(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("ü" * 200_000)
    message = await claim_one(queue)
    assert message.content_type == "text/plain"
    assert (await read(message)).decode() == "ü" * 200_000


async def test_a_payload_over_the_limit_is_refused_and_leaves_nothing(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(max_payload=1000))
    for payload in (b"x" * 1001, io.BytesIO(b"x" * 1001), b"x" * 600_000, iter([b"x" * 300_000] * 3)):
        with pytest.raises(PayloadTooLarge, match="max_payload"):
            await queue.enqueue(payload)
    assert (await queue.stats()).total == 0
    assert await queue.claim() == []
    await queue.enqueue(b"x" * 1000)
    assert len((await claim_one(queue)).payload) == 1000


async def test_a_stream_that_turns_out_too_large_leaves_nothing(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(max_payload=500_000))
    with pytest.raises(PayloadTooLarge):
        await queue.enqueue(iter([b"x" * 100_000] * 6))
    assert (await queue.stats()).total == 0


async def test_a_stream_that_breaks_leaves_nothing(harness: Harness) -> None:
    queue = await harness.queue()

    def broken() -> Iterator[bytes]:
        yield LARGE
        raise OSError("the source went away")

    with pytest.raises(OSError, match="the source went away"):
        await queue.enqueue(broken())
    with pytest.raises(ConfigError, match="bytes"):
        await queue.enqueue(iter([LARGE, 17]))
    assert (await queue.stats()).total == 0
    assert await queue.claim() == []


async def test_large_and_small_messages_share_a_queue(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many([b"small", LARGE, b"small too", LARGE[::-1]])
    digests: list[str] = []
    for message in await claim_all(queue, 4):
        body = message.body if message.body is not None else await read(message)
        digests.append(hashlib.sha256(body).hexdigest())
    wanted = [b"small", LARGE, b"small too", LARGE[::-1]]
    assert sorted(digests) == sorted(hashlib.sha256(body).hexdigest() for body in wanted)


async def test_a_large_payload_is_there_for_every_retry(harness: Harness) -> None:
    queue = await harness.queue(at_once())
    await queue.enqueue(LARGE)
    for _ in range(3):
        message = await claim_one(queue)
        assert await read(message) == LARGE
        await queue.nack(message)


async def test_a_large_payload_goes_along_to_the_dead_letter_queue_and_back(harness: Harness) -> None:
    letters = harness.name("dead")
    queue = await harness.queue(at_once("dead-letter", letters=letters))
    await queue.enqueue(LARGE)
    await queue.nack(await claim_one(queue))
    dead_queue = await (await harness.hub()).queue(letters)
    dead = await claim_one(dead_queue)
    assert await read(dead) == LARGE
    await dead_queue.release(dead)
    assert await queue.redrive() == 1
    assert await read(await claim_one(queue)) == LARGE


async def test_a_large_payload_is_parked_and_redriven(harness: Harness) -> None:
    queue = await harness.queue(at_once("retry", 0))
    await queue.enqueue(LARGE)
    await queue.settle([Nack(await claim_one(queue))])
    (failed,) = await queue.failed()
    assert (failed.size, failed.data) == (len(LARGE), None)
    assert await queue.redrive() == 1
    message = await claim_one(queue)
    assert await read(message) == LARGE
    await queue.ack(message)


async def test_large_payloads_work_in_strict_queues_groups_and_with_own_ids(harness: Harness) -> None:
    strict = await harness.queue(QueuePolicy(ordering_guarantee=True))
    await strict.enqueue(LARGE, id="mine")
    await strict.enqueue(LARGE[:300_000], group="g")
    assert (await strict.enqueue(LARGE, id="mine")).duplicate
    sizes: list[int] = []
    for _ in range(2):
        message = await claim_one(strict)
        sizes.append(len(await read(message)))
        await strict.ack(message)
    assert sorted(sizes) == [300_000, len(LARGE)]
    assert await strict.claim() == []


async def test_a_large_message_ends_like_any_other(harness: Harness) -> None:
    queue = await harness.queue()
    receipt = await queue.enqueue(LARGE)
    await drain(queue, 1)

    async def ended() -> bool:
        info = await queue.get(receipt.id)
        return (info.state, info.size) == (State.SUCCEEDED, len(LARGE))

    await eventually(ended)
