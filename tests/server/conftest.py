"""A server on a memory store, and an HTTP client that is not Brigade's."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest
from http_helpers import connected

from brigade.server.serve import Serving
from brigade.server.service import Limits
from served import served


@pytest.fixture(scope="session")
def shared() -> Iterator[Serving]:
    with served(f"memory://{uuid.uuid4().hex}", limits=Limits(most_consumers=1000)) as one:
        yield one


@pytest.fixture
def serving(shared: Serving) -> Iterator[Serving]:
    """The shared server, with no queue."""
    yield shared
    with connected(shared) as client:
        for name in client.get("list").json()["queues"]:
            assert client.post("delete", json={"queue": name}).status_code == 200


@pytest.fixture
def http(serving: Serving) -> Iterator[httpx.Client]:
    with connected(serving) as client:
        yield client
