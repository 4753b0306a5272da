"""The benchmark runs, and its report has what the docs show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from brigade.testing.servers.postgres import programs

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_a_quick_benchmark_measures_every_case(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--json", "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    stores = {"memory", "file, no fsync", "file, fsync"}
    assert {one["store"] for one in report["throughput"]} == stores
    assert all(one["best"] > 0 for one in report["throughput"])
    assert {one["case"] for one in report["throughput"]} >= {
        "enqueue, 1 caller",
        "enqueue, 64 callers at once",
        "enqueue_many, 1,000 a call",
        "claim + ack, 1,000 at a time",
        "claim + ack, 1,000, 4 processes",
        "end to end, batches of 1,000",
    }
    assert {one["batch"] for one in report["requests"]} == {1, 10, 100, 1000}
    if programs() is not None:
        assert {one["case"] for one in report["postgres"] if one["name"] == "brigade"} >= {
            "enqueue, 1 caller",
            "process",
        }
        assert all(one["best"] > 0 for one in report["postgres"])
    assert {(one["clients"], one["best"] > 0) for one in report["http"]} == {(1, True), (16, True), (64, True)}
    assert all(one["requests"] < 1 for one in report["crowds"])
    assert report["machine"]["python"].startswith("3.")
    assert list(tmp_path.iterdir()) == [], "the benchmark leaves nothing behind"
