"""Workflow state: one JSON value beside a message, changed by compare-and-swap."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brigade import ConfigError, StaleLease
from brigade.testing.conformance.harness import Harness, at_once, claim_all, claim_one

VALUES: list[Any] = [None, 0, "text", [1, {"a": None}], {"step": 2, "done": ["a", "b"]}]


@pytest.mark.parametrize("value", VALUES, ids=repr)
async def test_state_is_any_json_value(harness: Harness, value: Any) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue)
    state = queue.state(message)
    assert await state.load("nothing yet") == "nothing yet"
    await state.save(value)
    assert await (await harness.elsewhere(queue)).state(message).load("lost") == value


async def test_state_survives_a_retry(harness: Harness) -> None:
    """A worker that takes over goes on where the last one stopped."""
    queue = await harness.queue(at_once())
    await queue.enqueue("x")
    message = await claim_one(queue)
    await queue.state(message).save({"step": 1})
    await queue.nack(message)
    other = await harness.elsewhere(queue)
    state = other.state(await claim_one(other))
    assert await state.load() == {"step": 1}
    await state.save({"step": 2})
    await state.save({"step": 3})
    assert await other.state(message).load() == {"step": 3}


async def test_a_save_over_somebody_elses_change_is_refused(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue)
    mine, theirs = queue.state(message), (await harness.elsewhere(queue)).state(message)
    await mine.load()
    await theirs.load()
    await theirs.save("theirs")
    with pytest.raises(StaleLease, match="load"):
        await mine.save("mine")
    assert await mine.load() == "theirs"
    await mine.save("mine")
    assert await theirs.load() == "mine"


async def test_of_many_first_saves_one_succeeds(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue)
    others = [await harness.elsewhere(queue) for _ in range(5)]
    answers = await asyncio.gather(
        *(other.state(message).save(n) for n, other in enumerate(others)), return_exceptions=True
    )
    assert [isinstance(answer, StaleLease) for answer in answers].count(False) == 1


async def test_each_message_has_its_own_state(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue_many(["a", "b"])
    messages = await claim_all(queue, 2)
    for message in messages:
        await queue.state(message).save(message.data)
    assert [await queue.state(message).load() for message in messages] == ["a", "b"]


async def test_state_can_be_read_without_a_lease(harness: Harness) -> None:
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    await queue.state(await claim_one(queue)).save([1])
    assert await queue.state(await queue.get(receipt.id)).load() == [1]


async def test_state_that_cannot_be_stored_is_refused(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    state = queue.state(await claim_one(queue))
    with pytest.raises(ConfigError, match="JSON"):
        await state.save(object())
    with pytest.raises(ConfigError, match="1 MiB"):
        await state.save("x" * 1024 * 1024)
    assert await state.load("nothing") == "nothing"


async def test_state_is_brought_back_by_a_redrive(harness: Harness) -> None:
    for mode in ("retry", "dead-letter"):
        letters = harness.name("dead") if mode == "dead-letter" else None
        queue = await harness.queue(at_once(mode, 0, letters))
        await queue.enqueue("x")
        message = await claim_one(queue)
        await queue.state(message).save({"step": 1})
        await queue.nack(message)
        assert await queue.redrive() == 1
        assert await queue.state(await claim_one(queue)).load() == {"step": 1}


async def test_a_handle_goes_on_from_the_etag_of_another(harness: Harness) -> None:
    """Whoever was told the etag may save; once it has been used, it is stale."""
    queue = await harness.queue()
    await queue.enqueue("x")
    message = await claim_one(queue)
    first = queue.state(message)
    assert first.etag is None
    await first.save(1)
    other = await harness.elsewhere(queue)
    told = other.state(message, etag=first.etag)
    await told.save(2)
    assert told.etag != first.etag
    with pytest.raises(StaleLease):
        await other.state(message, etag=first.etag).save(3)
    assert await first.load() == 2
    assert first.etag == told.etag
