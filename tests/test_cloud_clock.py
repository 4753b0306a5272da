"""The store's clock: the offset is measured to within a known error, and a machine whose clock is off behaves."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brigade
from brigade import AsyncHub
from brigade.blobs import cloud
from brigade.blobs.cloud import CloudBlobs
from brigade.blobs.cloud_clock import Offset
from brigade.blobs.cloud_connect import connect_bucket
from brigade.clock import SystemClock
from brigade.stores.bucket.store import BucketStore
from brigade.stores.opening import parse_url
from brigade.testing.conformance.harness import eventually
from brigade.testing.servers.fixtures import seaweedfs_server
from brigade.testing.servers.s3 import s3_url

__all__ = ["seaweedfs_server"]

MINUTES = 60_000
asked = st.lists(st.tuples(st.floats(0, 5_000), st.floats(0.1, 400), st.floats(0, 1)), min_size=1, max_size=12)


def sample(offset: Offset, true_offset: float, sent: float, took: float, share: float) -> None:
    """An answer of a store that is `true_offset` ahead, made after a share of the time that it took."""
    made = sent + took * share + true_offset
    offset.add(int(made // 1000) * 1000, sent, sent + took)


@given(true_offset=st.floats(-10_000_000, 10_000_000), answers=asked)
def test_the_true_offset_is_never_excluded(true_offset: float, answers: list[tuple[float, float, float]]) -> None:
    offset, at = Offset(), 1_700_000_000_000.0
    for pause, took, share in answers:
        at += pause + took
        sample(offset, true_offset, at, took, share)
        assert offset.low - 1 <= true_offset <= offset.high + 1
        assert abs(offset.best - true_offset) <= offset.error + 1


@given(true_offset=st.floats(-10_000_000, 10_000_000))
def test_a_few_answers_at_the_right_moment_narrow_it_down(true_offset: float) -> None:
    offset, at = Offset(), 1_700_000_000_000.0
    sample(offset, true_offset, at, 10, 0.5)
    for _ in range(4):
        at += offset.wait(at)
        sample(offset, true_offset, at, 10, 0.5)
    assert offset.high - offset.low < 110


def test_clocks_that_may_agree_are_left_alone() -> None:
    offset = Offset()
    sample(offset, 0.0, 1_700_000_000_400, 5, 0.5)
    assert offset.best == 0
    assert offset.error <= 1010


def test_a_clock_that_is_set_starts_it_anew() -> None:
    offset = Offset()
    sample(offset, 0.0, 1_700_000_000_000, 5, 0.5)
    sample(offset, 60_000.0, 1_700_000_001_000, 5, 0.5)
    assert 58_900 < offset.best < 61_100


class OffClock(SystemClock):
    """The clock of a machine that is wrong."""

    def __init__(self, wrong_by: int) -> None:
        super().__init__()
        self._wrong_by = wrong_by

    def now(self) -> int:
        return super().now() + self._wrong_by


async def hub_with(clock: SystemClock, url: str) -> AsyncHub:
    """A hub on a machine with that clock."""
    hub = AsyncHub(url)
    store = BucketStore(CloudBlobs(connect_bucket(*parse_url(url, {}))), clock=clock)
    await store.open()
    hub._store = store
    return hub


@pytest.fixture
def url(seaweedfs_server: str) -> str:
    return s3_url(seaweedfs_server, f"clock/{uuid.uuid4().hex}")


@pytest.mark.parametrize("wrong_by", [-5 * MINUTES, 5 * MINUTES, 24 * 60 * MINUTES], ids=["behind", "ahead", "a day"])
async def test_a_wrong_clock_is_put_right(url: str, wrong_by: int) -> None:
    clock = OffClock(wrong_by)
    hub = await hub_with(clock, url)
    blobs = hub.store._blobs  # pyright: ignore[reportAttributeAccessIssue]
    assert abs(clock.now() - time.time() * 1000) <= blobs.offset.error + 50
    assert blobs.offset.error < 1100
    await hub.close()


@pytest.mark.parametrize("wrong_by", [-5 * MINUTES, 5 * MINUTES], ids=["behind", "ahead"])
async def test_a_worker_whose_clock_is_five_minutes_off_behaves(url: str, wrong_by: int) -> None:
    """[G2] It neither takes over what others hold nor hides what it enqueues or holds from them."""
    async with brigade.connect_async(url) as right:
        wrong = await hub_with(OffClock(wrong_by), url)
        ours, theirs = await right.queue("tasks"), await wrong.queue("tasks")
        await ours.enqueue("held by us")
        (held,) = await ours.claim(visibility=30)
        assert await theirs.claim() == []
        await theirs.enqueue("from the wrong clock")

        async def arrived() -> bool:
            return bool([await ours.ack(message) for message in await ours.claim()] or False)

        await eventually(arrived)
        await ours.enqueue("for the wrong clock")
        (message,) = await theirs.claim(wait=10, visibility=3)
        assert message.data == "for the wrong clock"
        assert await ours.claim() == []
        (again,) = await ours.claim(wait=15)
        assert (again.data, again.attempt) == ("for the wrong clock", 2)
        with pytest.raises(brigade.StaleLease):
            await theirs.ack(message)
        await ours.ack(again)
        await ours.ack(held)
        await wrong.close()


async def test_the_offset_is_measured_again_now_and_then(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud, "CLOCK_EVERY", 0.05)
    clock = OffClock(0)
    hub = await hub_with(clock, url)
    queue = await hub.queue("tasks")
    clock._wrong_by = 10 * MINUTES

    async def noticed() -> bool:
        await queue.stats()
        await asyncio.sleep(0.05)
        return abs(clock.offset_ms + 10 * MINUTES) < 2000

    await eventually(noticed)
    await hub.close()
