"""The conformance suite on SQLite, synced at every write as by default, and without."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brigade.testing.conformance import Harness, suite


@pytest.fixture(params=["fsync", "no fsync"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    async with Harness(f"sqlite://{tmp_path}/store.db", fsync=request.param == "fsync") as made:
        yield made


globals().update(suite())
