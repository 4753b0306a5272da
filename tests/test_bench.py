"""The benchmark runs, and its report has what the docs show."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.chart import chart
from bench.standing import Standing, standings
from brigade.testing.servers.postgres import programs

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_a_quick_benchmark_measures_every_case(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--json", "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    stores = {"memory", "file, no fsync", "file, fsync", "sqlite, fsync"}
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


def test_standings_are_ratios_to_the_best_that_does_the_same() -> None:
    postgres = [
        {"name": name, "case": "process", "processes": processes, "best": best}
        for name, processes, best in (("brigade", 1, 300.0), ("slow", 1, 10.0), ("fast", 1, 100.0), ("fast", 2, 900.0))
    ]
    peers = [
        {
            "name": name,
            "durable": True,
            "acks": acks,
            "enqueue": rate,
            "consume": rate,
            "enqueue_threads": 2 * rate,
            "consume_threads": rate,
            "enqueue_many": 10 * rate if name == "brigade" else None,
            "consume_many": 10 * rate if name == "brigade" else None,
            "consume_next": 3 * rate if name == "brigade" else None,
            "consume_long": rate,
        }
        for name, acks, rate in (("brigade", True, 50.0), ("keeps", True, 100.0), ("loses", False, 1000.0))
    ]
    found = standings({"postgres": postgres, "peers": peers})
    assert found[0] == Standing("PostgreSQL", "process", 300.0, 100.0, "fast")
    assert [(one.who, one.ratio) for one in found[1:]] == [
        ("keeps", ratio) for ratio in (0.5, 5, 0.5, 0.5, 1.5, 0.5, 5, 0.5)
    ]
    drawn = ElementTree.fromstring(chart(found))
    bars = [one.get("class") for one in drawn.iter() if one.tag.endswith("rect")]
    assert bars == ["ahead", "behind", "ahead", "behind", "behind", "ahead", "behind", "ahead", "behind"]
