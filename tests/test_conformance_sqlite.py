"""The conformance suite on SQLite, synced at every write as by default. Without, the contract of blobs has to do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brigade.testing.conformance import Harness, suite


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with Harness(f"sqlite://{tmp_path}/store.db") as made:
        yield made


globals().update(suite())
