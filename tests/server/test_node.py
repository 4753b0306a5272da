"""A real client that isn't ours: Node with its own fetch."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from brigade.server.serve import Serving

SCRIPT = Path(__file__).with_name("client.mjs")


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_node_enqueues_waits_acks_and_streams(serving: Serving) -> None:
    done = subprocess.run(["node", SCRIPT, serving.address], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "same": True,
        "payload": {"n": 1},
        "correlation": "from-node",
        "state": "succeeded",
        "seen": [1, 2, 3],
        "stale": [409, "queue_message_lease_mismatch"],
    }
