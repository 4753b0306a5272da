"""The conformance suite over HTTP: a server on the memory and on the file store, and every hub a client of it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from brigade.testing.conformance import Harness, suite
from served import served, store_url


@pytest.fixture(scope="module", params=["memory", "file"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    url, options = store_url(request.param, tmp_path_factory.mktemp("served"), uuid.uuid4().hex)
    with served(url, options=options) as serving:
        yield serving.address


@pytest.fixture
async def harness(address: str) -> AsyncIterator[Harness]:
    async with Harness(address, without={"operator"}) as made:
        yield made


globals().update(suite())
