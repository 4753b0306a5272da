"""The verbs that write, on a disk that is synced at every write, as by default."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brigade.testing.conformance import Harness, suite


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with Harness(f"file://{tmp_path}/store") as made:
        yield made


globals().update(suite("enqueue", "claim", "ack", "nack", "lanes", "own_ids", "dead_letters", "redrive"))
