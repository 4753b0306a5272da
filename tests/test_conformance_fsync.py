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


tests = suite("enqueue", "claim", "ack", "nack", "lanes", "own_ids", "dead_letters", "redrive")
del tests["test_a_message_behind_a_thousand_leased_ones_is_found"]  # thousands of syncs prove nothing more
globals().update(tests)
