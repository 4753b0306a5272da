"""A hub on each kind of store, for what every one of them has to do the same way."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator

import pytest

import brigade
from brigade.hub import AsyncHub
from postgres_server import postgres, postgres_url
from served import served

__all__ = ["hub", "postgres", "postgres_url"]


@pytest.fixture(params=["memory", "postgres", "http"])
async def hub(request: pytest.FixtureRequest) -> AsyncIterator[AsyncHub]:
    with contextlib.ExitStack() as stack:
        if request.param == "http":
            url = stack.enter_context(served(f"memory://{uuid.uuid4().hex}")).address
        else:
            url = "memory://" if request.param == "memory" else request.getfixturevalue("postgres_url")
        async with brigade.connect_async(url) as opened:
            yield opened
