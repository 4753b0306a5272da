"""The verbs that write, on gs:// and a stand-in of our own: it shows that generations and pacing are dealt with."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import brigade
from brigade.blobs import UNSUPPORTED, Blob, Create, Delete, DeleteIf, Get, List, Swap
from brigade.blobs.cloud import CloudBlobs
from brigade.blobs.cloud_connect import connect_bucket
from brigade.blobs.pacing import Pace
from brigade.stores.opening import parse_url
from brigade.testing.conformance import Harness, suite
from brigade.testing.servers.gcs import GoogleStandIn, google_stand_in, gs_url


@pytest.fixture(scope="module")
def google() -> Iterator[GoogleStandIn]:
    with google_stand_in() as made:
        yield made


@pytest.fixture
async def harness(google: GoogleStandIn, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
    monkeypatch.setattr("brigade.blobs.cloud.GOOGLE_PACE", (0.0, 1))
    async with Harness(gs_url(google, f"conformance/{uuid.uuid4().hex}")) as made:
        yield made


VERBS = ("ack", "concurrency", "dead_letters", "enqueue", "groups", "lanes", "large_payloads", "nack", "own_ids")
globals().update(suite(*VERBS, "purge", "settle", "state"))


async def test_the_etag_is_the_generation_and_listings_tell_it_where_it_is_known(google: GoogleStandIn) -> None:
    url = gs_url(google, uuid.uuid4().hex)
    blobs, other = (CloudBlobs(connect_bucket(*parse_url(url, {}))) for _ in range(2))
    etag: Any = await blobs.perform(Create("q/a", b"1"))
    assert etag.isdigit()
    found: Any = await other.perform(Get("q/a"))
    assert isinstance(found, Blob)
    assert found.etag == etag
    page: Any = await blobs.perform(List("q/"))
    assert page.items[0].etag == etag
    again: Any = await other.perform(Swap("q/a", b"2", etag))
    assert int(again) > int(etag)
    page = await blobs.perform(List("q/"))
    assert page.items[0].etag != etag
    await other.perform(Delete(("q/a", "q/never")))
    assert await blobs.perform(Get("q/a")) is None
    assert await blobs.perform(DeleteIf("q/a", etag)) is UNSUPPORTED
    await blobs.close()
    await other.close()


def test_a_pace_allows_a_burst_and_then_one_write_an_interval() -> None:
    pace = Pace(1.0, 3)
    assert [pace.delay("a", 100.0) for _ in range(5)] == [0, 0, 0, 1, 2]
    assert pace.delay("b", 100.0) == 0
    assert pace.delay("a", 200.0) == 0
    assert Pace(0.0, 1).delay("a", 0.0) == 0


async def test_a_hot_object_is_written_in_time_and_slowed_down_rarely() -> None:
    """Twenty acks, one by one, of one segment: Google takes about one write of an object a second."""
    with google_stand_in(writes_a_second=4.0) as google:
        async with brigade.connect_async(gs_url(google, "hot")) as hub:
            queue = await hub.queue("tasks")
            await queue.enqueue_many(range(4))
            for message in await queue.claim(4):
                await queue.ack(message)
            assert (await queue.stats()).in_flight == 0
        assert google.slowed <= 4
