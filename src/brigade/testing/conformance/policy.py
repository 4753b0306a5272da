"""Policies: stored with the queue, the same for everybody."""

from __future__ import annotations

import pytest

from brigade import Backoff, ConfigError, Failure, QueueNotFound, QueuePolicy
from brigade.testing.conformance.harness import Harness, claim_one

FULL = QueuePolicy(
    ordering="lifo",
    ordering_guarantee=True,
    visibility_timeout=12.5,
    execution_timeout=300,
    failure=Failure("hybrid", 7, "letters"),
    backoff=Backoff(1, 60, None),
    ttl=3600,
    retention=86400,
    max_payload=1024,
    segment_messages=100,
    segment_bytes=1024 * 1024,
)


async def test_a_policy_is_stored_with_the_queue(harness: Harness) -> None:
    queue = await harness.queue(FULL)
    assert queue.policy == FULL
    assert (await harness.elsewhere(queue)).policy == FULL
    assert (await (await harness.hub()).queue(queue.name)).policy == FULL
    assert (await (await harness.hub()).queue(queue.name, FULL)).policy == FULL


async def test_a_queue_without_a_policy_has_the_defaults(harness: Harness) -> None:
    policy = (await harness.queue()).policy
    assert policy == QueuePolicy()
    assert (policy.ordering, policy.ordering_guarantee) == ("fifo", False)
    assert (policy.visibility_timeout, policy.execution_timeout) == (30, None)
    assert policy.failure == Failure(mode="retry", max_retries=3)
    assert policy.backoff == Backoff(base=0.5, maximum=30, jitter="full")
    assert (policy.ttl, policy.retention, policy.max_payload) == (None, 7 * 86400, 1024**3)


async def test_a_policy_that_differs_is_refused_and_nothing_changes(harness: Harness) -> None:
    queue = await harness.queue()
    hub = await harness.hub()
    with pytest.raises(ConfigError, match=r"visibility_timeout.*replace=True"):
        await hub.queue(queue.name, QueuePolicy(visibility_timeout=5))
    assert (await harness.elsewhere(queue)).policy == QueuePolicy()


async def test_the_refusal_names_every_field_that_differs(harness: Harness) -> None:
    queue = await harness.queue()
    with pytest.raises(ConfigError) as caught:
        await (await harness.hub()).queue(queue.name, QueuePolicy(ttl=5, ordering="lifo"))
    text = str(caught.value)
    assert "ttl" in text
    assert "ordering" in text
    assert "max_payload" not in text


async def test_a_policy_can_be_replaced_for_everybody(harness: Harness) -> None:
    queue = await harness.queue()
    await queue.enqueue("x")
    changed = QueuePolicy(visibility_timeout=77, failure=Failure("retry", 9))
    again = await (await harness.hub()).queue(queue.name, changed, replace=True)
    assert again.policy == changed
    elsewhere = await harness.elsewhere(queue)
    assert elsewhere.policy == changed
    assert (await claim_one(elsewhere)).max_attempts == 10


async def test_a_queue_that_must_exist_and_does_not_is_not_found(harness: Harness) -> None:
    hub = await harness.hub()
    name = harness.name()
    with pytest.raises(QueueNotFound, match=name):
        await hub.queue(name, create=False)
    assert name not in await hub.queues()


async def test_two_processes_that_create_one_queue_agree(harness: Harness) -> None:
    first, second = await harness.hub(), await harness.hub()
    name = harness.name()
    one = await first.queue(name, QueuePolicy(ttl=60))
    two = await second.queue(name, QueuePolicy(ttl=60))
    assert one.policy == two.policy
