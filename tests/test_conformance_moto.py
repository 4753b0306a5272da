"""The verbs that write, on S3 as moto serves it: the same protocol from other hands. All verbs would take minutes."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from brigade.testing.conformance import Harness, suite
from brigade.testing.servers.fixtures import moto_server
from brigade.testing.servers.s3 import s3_url

__all__ = ["moto_server"]


@pytest.fixture
async def harness(moto_server: str) -> AsyncIterator[Harness]:
    async with Harness(s3_url(moto_server, f"conformance/{uuid.uuid4().hex}")) as made:
        yield made


VERBS = ("ack", "claim", "dead_letters", "enqueue", "groups", "lanes", "large_payloads", "nack", "own_ids", "purge")
tests = suite(*VERBS, "concurrency", "redrive", "settle", "state")
del tests["test_a_message_behind_a_thousand_leased_ones_is_found"]  # a slow server makes it no truer
globals().update(tests)
