"""The conformance suite over HTTP: a server on the memory store, and every hub a client of it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from brigade.testing.conformance import VERBS, Harness, suite
from served import served


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served(f"memory://{uuid.uuid4().hex}") as serving:
        yield serving.address


@pytest.fixture
async def harness(address: str) -> AsyncIterator[Harness]:
    async with Harness(address) as made:
        yield made


# A server shares and repeats; its clients only ask it to.
globals().update(suite(*(verb for verb in VERBS if verb != "sharing")))
