"""The conformance suite with encryption on, on the stores that need nothing but this machine."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from brigade.crypto.keys import Keys, new_key, write_keys
from brigade.testing.conformance import VERBS, Harness, suite


@pytest.fixture(params=["memory", "file"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    name, key = new_key(0)
    write_keys(tmp_path / "keys", Keys(name, {name: key}), replace=False)
    options = {"encryption": f"file:{tmp_path}/keys", "encryption_strict": True}
    if request.param == "memory":
        made = Harness(f"memory://{uuid.uuid4().hex}", **options)
    else:
        made = Harness(f"file://{tmp_path}/store", fsync=False, **options)
    async with made:
        yield made


globals().update(suite(*(verb for verb in VERBS if verb != "bad_input")))  # refused before any store is asked
