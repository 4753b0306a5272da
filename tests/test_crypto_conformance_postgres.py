"""The verbs that write and read contents, on PostgreSQL with encryption on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brigade.crypto.keys import Keys, new_key, write_keys
from brigade.testing.conformance import Harness, suite
from postgres_server import postgres, postgres_url

__all__ = ["postgres", "postgres_url"]


@pytest.fixture
async def harness(postgres_url: str, tmp_path: Path) -> AsyncIterator[Harness]:
    name, key = new_key(0)
    write_keys(tmp_path / "keys", Keys(name, {name: key}), replace=False)
    async with Harness(postgres_url, encryption=f"file:{tmp_path}/keys", encryption_strict=True) as made:
        yield made


VERBS = ("ack", "claim", "dead_letters", "enqueue", "get", "lanes", "large_payloads", "nack", "own_ids", "peek")
tests = suite(*VERBS, "redrive", "settle", "state")
globals().update(tests)
