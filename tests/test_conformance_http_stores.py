"""Servers on other stores: the part of the suite where it matters what is behind the server."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from brigade.testing.conformance import Harness, suite
from brigade.testing.servers.fixtures import seaweedfs_server
from brigade.testing.servers.s3 import s3_url
from postgres_server import postgres, postgres_url
from served import served

__all__ = ["postgres", "postgres_url", "seaweedfs_server"]


@pytest.fixture(scope="module", params=["file", "seaweedfs", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        if request.param == "file":
            url, options = f"file://{tmp_path_factory.mktemp('served')}", {"fsync": False}
        elif request.param == "seaweedfs":
            url = s3_url(request.getfixturevalue("seaweedfs_server"), f"http/{uuid.uuid4().hex}")
        else:
            url = request.getfixturevalue("postgres_url")
        yield stack.enter_context(served(url, options=options)).address


@pytest.fixture
async def harness(address: str) -> AsyncIterator[Harness]:
    async with Harness(address) as made:
        yield made


tests = suite("bulk", "claim", "dead_letters", "groups", "large_payloads", "operator", "scan", "settle", "state")
for slow in ("test_a_message_behind_a_thousand_leased_ones_is_found",):
    tests.pop(slow, None)
globals().update(tests)
