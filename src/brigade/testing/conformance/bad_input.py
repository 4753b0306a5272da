"""Bad input: a typed error that names the thing and says what to do, and nothing is written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from brigade import (
    Ack,
    Backoff,
    ConfigError,
    Extend,
    Failure,
    Nack,
    NewMessage,
    PayloadTooLarge,
    QueuePolicy,
    Release,
    StaleLease,
)
from brigade.testing.conformance.harness import Harness, claim_one

NAN, INF = float("nan"), float("inf")
BAD_NAMES: list[Any] = [
    "",
    "a/b",
    "/a",
    "a/",
    "..",
    ".",
    ".hidden",
    "-dash",
    "a\x00b",
    "a b",
    "a\n",
    "x" * 101,
    "x" * 300,
    "ünï",
    "a\\b",
    "a%2fb",
    "q:1",
    None,
    17,
    b"bytes",
    ["list"],
    True,
]
NOTHING: list[Any] = []
BAD_SECONDS: list[Any] = [-1, -0.001, NAN, INF, -INF, True, "5", None, [], 1e12]


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


BAD_OPTIONS: list[tuple[str, Any]] = [
    *(("delay", value) for value in (*BAD_SECONDS, False, "") if value is not None),
    *(("ttl", value) for value in (0, -1, NAN, INF, True, "5", NOTHING)),
    *(("priority", value) for value in (-1, 10, 5.0, True, "5", None)),
    *(("max_attempts", value) for value in (0, -1, 1.0, True, "3", 60_001)),
    *(("id", value) for value in ("", "x" * 513, 17, b"x", "\ud800")),
    *(("group", value) for value in ("", "x" * 257, 17, b"x", "\ud800")),
    *(("attributes", value) for value in ([1], "text", {"k": object()}, {"k": "x" * 70_000}, {1: object()})),
    *(("attributes", {"k": value}) for value in (2**64, -(2**63) - 1)),
    *(("correlation_id", value) for value in ("", "x" * 257, 17, "a\nb", "\ud800")),
    *(("content_type", value) for value in ("", "x" * 256, 17, "a\nb")),
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name)[:30])
async def test_a_bad_queue_name_is_refused(harness: Harness, name: Any) -> None:
    hub = await harness.hub()
    before = await hub.queues()
    with pytest.raises(ConfigError, match="queue name"):
        await hub.queue(name)
    assert await hub.queues() == before


@pytest.mark.parametrize("option,value", BAD_OPTIONS, ids=lambda value: repr(value)[:24])
async def test_a_bad_option_of_a_message_is_refused(harness: Harness, option: str, value: Any) -> None:
    queue = await harness.queue()
    given: dict[str, Any] = {option: value}
    with pytest.raises(ConfigError, match=option):
        await queue.enqueue("x", **given)
    with pytest.raises(ConfigError, match=option):
        await queue.enqueue_many(["fine", NewMessage(payload="x", **given)])
    if option != "id":
        with pytest.raises(ConfigError, match=option):
            await queue.enqueue_many(["x"], **given)
    assert (await queue.stats()).total == 0


async def test_bad_attributes_do_not_harm_those_who_enqueue_at_the_same_time(harness: Harness) -> None:
    """[G1] Calls that share a write share no mistakes."""
    queue = await harness.queue()
    answers = await asyncio.gather(
        *(queue.enqueue(n, attributes={"k": 2**64} if n == 5 else None) for n in range(10)), return_exceptions=True
    )
    assert [isinstance(answer, Exception) for answer in answers] == [n == 5 for n in range(10)]
    assert isinstance(answers[5], ConfigError)


async def test_large_numbers_are_kept_as_they_are(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue({"n": 2**80}, attributes={"k": 2**63, "l": -(2**63)})
    message = await claim_one(queue)
    assert message.data == {"n": 2**80}
    assert dict(message.attributes) == {"k": 2**63, "l": -(2**63)}


async def test_attributes_that_are_nested_too_deeply_are_refused(harness: Harness) -> None:
    """A reader with a deeper stack than the writer's must be able to read them."""
    queue = await harness.queue()
    for levels in (900, 100_000):
        with pytest.raises(ConfigError, match="attributes"):
            await queue.enqueue("x", attributes={"k": nested(levels)})
    await queue.enqueue("x", attributes={"k": nested(20)})
    assert dict((await claim_one(queue)).attributes) == {"k": nested(20)}


async def test_state_that_is_nested_too_deeply_is_refused(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    state = queue.state(await claim_one(queue))
    with pytest.raises(ConfigError, match="JSON"):
        await state.save(nested(100_000))
    assert await state.load("nothing") == "nothing"


async def test_a_payload_that_is_no_json_is_refused(harness: Harness) -> None:
    queue = await harness.queue()
    loop: list[Any] = []
    loop.append(loop)
    for payload in (object(), {"k": object()}, {1, object()}, print, loop, "\ud800", {"k": "\ud800"}, nested(100_000)):
        with pytest.raises(ConfigError, match="payload"):
            await queue.enqueue(payload)
    assert (await queue.stats()).total == 0


async def test_a_payload_over_the_limit_is_refused(harness: Harness) -> None:
    queue = await harness.queue(QueuePolicy(max_payload=10))
    with pytest.raises(PayloadTooLarge, match=r"max_payload"):
        await queue.enqueue(b"x" * 11)
    with pytest.raises(PayloadTooLarge):
        await queue.enqueue_many([b"x", b"x" * 11])
    assert (await queue.stats()).total == 0


@pytest.mark.parametrize("limit", [0, -1, 10_001, 1.0, True, "1", None])
async def test_a_bad_claim_limit_is_refused(harness: Harness, limit: Any) -> None:
    queue = await harness.queue()
    with pytest.raises(ConfigError, match="limit"):
        await queue.claim(limit)


@pytest.mark.parametrize("value", BAD_SECONDS, ids=repr)
async def test_bad_waits_and_leases_are_refused(harness: Harness, value: Any) -> None:
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    with pytest.raises(ConfigError, match="wait"):
        await queue.claim(wait=value)
    if value is not None:
        with pytest.raises(ConfigError, match="visibility"):
            await queue.claim(visibility=value)
    with pytest.raises(ConfigError, match="visibility"):
        await queue.claim(visibility=0)
    assert (await queue.get(receipt.id)).attempts == 0


@pytest.mark.parametrize("owner", ["", "x" * 257, 17, "\ud800"])
async def test_a_bad_owner_is_refused(harness: Harness, owner: Any) -> None:
    queue = await harness.queue()
    with pytest.raises(ConfigError, match="owner"):
        await queue.claim(owner=owner)


async def test_settling_anything_but_a_claimed_message_is_refused(harness: Harness) -> None:
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    info = await queue.get(receipt.id)
    garbage: list[Any] = [None, receipt.id, receipt, info, 17, {"id": receipt.id}]
    for thing in garbage:
        with pytest.raises(ConfigError, match="Message"):
            await queue.ack(thing)
        with pytest.raises(ConfigError, match="settlement"):
            await queue.settle([thing])
    assert await queue.get(receipt.id) == info


async def test_a_batch_with_one_bad_settlement_changes_nothing(harness: Harness) -> None:
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    message = await claim_one(queue)
    before = await queue.get(receipt.id)
    bad: list[Any] = [
        "garbage",
        Nack(message, delay=-1),
        Nack(message, delay=NAN),
        Extend(message, 0),
        Extend(message, INF),
        Release(message, -1),
        Ack(message, result=object()),
    ]
    for settlement in bad:
        with pytest.raises(ConfigError):
            await queue.settle([Ack(message), settlement])
    assert await queue.get(receipt.id) == before
    await queue.ack(message)


@pytest.mark.parametrize("error", [17, b"bytes", ["list"]])
async def test_an_error_that_is_no_text_is_refused(harness: Harness, error: Any) -> None:
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    message = await claim_one(queue)
    with pytest.raises(ConfigError, match="error"):
        await queue.nack(message, error=error)
    assert (await queue.get(receipt.id)).owner == message.lease.owner


async def test_an_error_with_lone_surrogates_is_taken_or_refused_whole(harness: Harness) -> None:
    """An exception's text can be anything: a nack must not fail because of it."""
    queue = await harness.queue(QueuePolicy(failure=Failure("retry", 0)))
    await queue.enqueue("x")
    await queue.nack(await claim_one(queue), error=OSError("bad name \udcff"))
    (failed,) = await queue.failed()
    assert failed.error is not None
    assert failed.error.startswith("OSError: bad name")


async def test_a_message_with_a_made_up_place_is_stale(harness: Harness) -> None:
    """[G2] No reference that a user can forge leads anywhere else."""
    queue = await harness.queue()
    receipt = await queue.enqueue("x")
    message = await claim_one(queue)
    made_up = {"", "../../x", "5-1-1-1", message.ref[:-1] + "77", message.ref[:-1], f"9{message.ref}", "\x00"}
    made_up |= {message.ref.replace("-1-0", "-9-8")} - {message.ref}
    for ref in made_up:
        with pytest.raises(StaleLease):
            await queue.ack(replace(message, ref=ref, id="forged"))
    assert (await queue.get(receipt.id)).owner == message.lease.owner


@pytest.mark.parametrize(
    "fields",
    [
        {"ordering": "random"},
        {"ordering_guarantee": 1},
        {"ordering_guarantee": "yes"},
        *({"visibility_timeout": value} for value in (0, -1, NAN, INF, True, "30", None, 1e12)),
        *({"execution_timeout": value} for value in (0, -1, NAN, "5", True)),
        *({"ttl": value} for value in (0, -1, NAN, INF, "5", True)),
        *({"retention": value} for value in (-1, NAN, "5", None)),
        *({"max_payload": value} for value in (0, -1, 1.5, True, "1", 1024**5)),
        *({"segment_messages": value} for value in (0, 10_001, 1.5, True)),
        *({"segment_bytes": value} for value in (0, 1, 1024**3)),
        {"failure": "retry"},
        {"failure": {"mode": "retry"}},
        {"failure": None},
        {"backoff": 5},
        {"unknown_field": 1},
    ],
    ids=repr,
)
async def test_a_bad_policy_field_is_refused_by_name(fields: dict[str, Any]) -> None:
    """A bad value is a ConfigError that names the field and the fix."""
    with pytest.raises(ConfigError, match=next(iter(fields))):
        QueuePolicy(**fields)


@pytest.mark.parametrize(
    "args,named",
    [
        ({"mode": "never"}, "mode"),
        ({"mode": None}, "mode"),
        ({"mode": []}, "mode"),
        ({"mode": "dead-letter"}, "dead_letter_queue"),
        ({"mode": "hybrid"}, "dead_letter_queue"),
        ({"mode": "retry", "dead_letter_queue": "d"}, "hybrid"),
        ({"mode": "hybrid", "dead_letter_queue": "a/b"}, "dead_letter_queue"),
        ({"mode": "hybrid", "dead_letter_queue": 17}, "dead_letter_queue"),
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": 1.5}, "max_retries"),
        ({"max_retries": True}, "max_retries"),
        ({"retries": 3}, "max_retries"),
    ],
)
async def test_a_bad_failure_strategy_is_refused_by_name(args: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Failure(**args)


@pytest.mark.parametrize(
    "args,named",
    [
        ({"base": -1}, "base"),
        ({"base": NAN}, "base"),
        ({"maximum": "30"}, "maximum"),
        ({"maximum": INF}, "maximum"),
        ({"jitter": "some"}, "jitter"),
        ({"jitter": False}, "jitter"),
        ({"factor": 2}, "maximum"),
    ],
)
async def test_a_bad_backoff_is_refused_by_name(args: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Backoff(**args)


@pytest.mark.parametrize("policy", [{"ttl": 5}, "fifo", 17, Failure()], ids=repr)
async def test_a_policy_of_the_wrong_type_is_refused(harness: Harness, policy: Any) -> None:
    hub = await harness.hub()
    name = harness.name()
    with pytest.raises(ConfigError, match="QueuePolicy"):
        await hub.queue(name, policy)
    assert name not in await hub.queues()


@pytest.mark.parametrize("limit", [-1, 1.5, "1", None, True])
async def test_bad_limits_of_peek_failed_and_redrive_are_refused(harness: Harness, limit: Any) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    with pytest.raises(ConfigError, match="limit"):
        await queue.peek(limit)
    with pytest.raises(ConfigError, match="limit"):
        await queue.failed(limit)
    with pytest.raises(ConfigError, match="limit"):
        await queue.redrive(limit=limit)


@pytest.mark.parametrize("ids", ["one-id", 17, [17], [None]], ids=repr)
async def test_bad_ids_of_redrive_are_refused(harness: Harness, ids: Any) -> None:
    """A string is no list of ids: its letters would be taken for them."""
    with pytest.raises(ConfigError, match="ids"):
        await (await harness.queue()).redrive(ids)


@pytest.mark.parametrize("id", [None, 17, b"x", ["x"]], ids=repr)
async def test_an_id_of_the_wrong_type_is_refused(harness: Harness, id: Any) -> None:
    with pytest.raises(ConfigError, match="id"):
        await (await harness.queue()).get(id)


async def test_a_queue_cannot_be_its_own_dead_letter_queue(harness: Harness) -> None:
    """Its failures would come back for ever."""
    hub = await harness.hub()
    name = harness.name()
    with pytest.raises(ConfigError, match="dead_letter_queue"):
        await hub.queue(name, QueuePolicy(failure=Failure("dead-letter", 0, name)))
    assert name not in await hub.queues()
    await hub.queue(name)
    with pytest.raises(ConfigError, match="dead_letter_queue"):
        await hub.queue(name, QueuePolicy(failure=Failure("hybrid", 1, name)), replace=True)


async def test_what_cannot_be_iterated_is_no_batch(harness: Harness) -> None:
    queue = await harness.queue()
    things: list[Any] = [None, 17]
    for thing in things:
        with pytest.raises(ConfigError, match="payloads"):
            await queue.enqueue_many(thing)
    for text in ("text", b"bytes"):
        with pytest.raises(ConfigError, match="enqueue"):
            await queue.enqueue_many(text)
    assert (await queue.stats()).total == 0


async def test_a_closed_hub_says_so(harness: Harness) -> None:
    hub = await harness.hub()
    queue = await harness.queue(hub=hub)
    await hub.close()
    await hub.close()
    with pytest.raises(ConfigError, match="open"):
        await hub.queue("x")
    with pytest.raises(ConfigError, match="open"):
        await queue.enqueue("x")
    with pytest.raises(ConfigError, match="open"):
        await queue.claim()
