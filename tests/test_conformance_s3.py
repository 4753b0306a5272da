"""The conformance suite on S3, as SeaweedFS serves it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from brigade.testing.conformance import Harness, suite
from brigade.testing.servers.fixtures import seaweedfs_server
from brigade.testing.servers.s3 import s3_url

__all__ = ["seaweedfs_server"]


@pytest.fixture
async def harness(seaweedfs_server: str) -> AsyncIterator[Harness]:
    async with Harness(s3_url(seaweedfs_server, f"conformance/{uuid.uuid4().hex}")) as made:
        yield made


globals().update(suite())
