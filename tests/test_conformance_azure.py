"""The conformance suite on Azure, as Azurite serves it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from brigade.testing.conformance import Harness, suite
from brigade.testing.servers.azurite import az_url
from brigade.testing.servers.fixtures import azurite_server

__all__ = ["azurite_server"]


@pytest.fixture
async def harness(azurite_server: str) -> AsyncIterator[Harness]:
    async with Harness(az_url(azurite_server, f"conformance/{uuid.uuid4().hex}")) as made:
        yield made


globals().update(suite())
