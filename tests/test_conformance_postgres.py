"""The conformance suite on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from postgres_server import postgres, postgres_url

from brigade.testing.conformance import Harness, suite

__all__ = ["postgres", "postgres_url"]


@pytest.fixture
async def harness(postgres_url: str) -> AsyncIterator[Harness]:
    async with Harness(postgres_url) as made:
        yield made


globals().update(suite())
