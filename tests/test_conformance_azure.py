"""The conformance suite on Azure, as Azurite serves it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from brigade.testing.conformance import VERBS, Harness, suite
from brigade.testing.servers.azurite import az_url
from brigade.testing.servers.fixtures import azurite_server

__all__ = ["azurite_server"]


@pytest.fixture
async def harness(azurite_server: str) -> AsyncIterator[Harness]:
    async with Harness(az_url(azurite_server, f"conformance/{uuid.uuid4().hex}")) as made:
        yield made


tests = suite(*(verb for verb in VERBS if verb != "bad_input"))  # refused before any store is asked
del tests["test_a_message_behind_a_thousand_leased_ones_is_found"]  # a slow server makes it no truer
globals().update(tests)
