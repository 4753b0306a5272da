"""The conformance suite on the stores that need nothing but this machine."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brigade.testing.conformance import Harness, suite


@pytest.fixture(params=["memory", "file"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    if request.param == "memory":
        made = Harness(f"memory://{uuid.uuid4().hex}")
    else:
        made = Harness(f"file://{tmp_path}/store", fsync=False)
    async with made:
        yield made


globals().update(suite())
