"""The conformance suite on PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from brigade.testing.conformance import Harness, suite
from postgres_server import postgres, postgres_url

__all__ = ["postgres", "postgres_url"]


@pytest.fixture
async def harness(postgres_url: str) -> AsyncIterator[Harness]:
    async with Harness(postgres_url) as made:
        yield made


globals().update(suite())
