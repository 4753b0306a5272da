"""The benchmark runs, and its report has what the docs show."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from bench.chart import chart
from bench.http import CLIENTS, HttpResult
from bench.report import Report, as_json, show
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
    assert {one["name"] for one in report["http"]} == {"brigade"}, "a smoke test needs no other server"
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
            "enqueue_long": 3 * rate if name == "brigade" else rate,
            "consume_long": rate,
        }
        for name, acks, rate in (("brigade", True, 50.0), ("keeps", True, 100.0), ("loses", False, 1000.0))
    ]
    found = standings({"postgres": postgres, "peers": peers})
    assert found[0] == Standing("PostgreSQL", "process", 300.0, 100.0, "fast")
    assert [(one.who, one.ratio) for one in found[1:]] == [
        ("keeps", ratio) for ratio in (0.5, 1.5, 5, 0.5, 0.5, 0.5, 5, 0.5)
    ]
    drawn = ElementTree.fromstring(chart(found))
    bars = [one.get("class") for one in drawn.iter() if one.tag.endswith("rect")]
    assert bars == ["ahead", "behind", "ahead", "ahead", "behind", "behind", "behind", "ahead", "behind"]


SERVERS = {
    ("brigade", "enqueue"): (40.0, 60.0, 80.0),
    ("brigade", "dequeue + ack"): (20.0, 30.0, 25.0),
    ("brigade", "dequeue + ack, the ack with the next dequeue"): (15.0, 40.0, 50.0),
    ("brigade", "enqueue, 100 a request"): (900.0, 1000.0, 950.0),
    ("brigade", "dequeue + ack, 100 a request"): (300.0, 200.0, 100.0),
    ("Other", "enqueue"): (80.0, 90.0, 40.0),
    ("Other", "dequeue + ack"): (10.0, 20.0, 100.0),
    ("Other", "enqueue, 10 a request"): (200.0, 250.0, 240.0),
    ("Other", "dequeue + ack, 10 a request"): (60.0, 70.0, 80.0),
}


def over_http(*names: str) -> Report:
    results = [
        HttpResult(name, "1.2", case, clients, 2000, best)
        for (name, case), rates in SERVERS.items()
        for clients, best in zip(CLIENTS, rates, strict=True)
        if name in names
    ]
    return Report({}, http=results, skipped=sorted({"Other"} - {*names}))


def test_servers_are_compared_by_clients_and_by_the_best_of_each() -> None:
    report = over_http("brigade", "Other")
    assert [(one.ground, one.work, one.ratio) for one in standings(as_json(report))] == [
        ("HTTP", "enqueue, 1 client", 0.5),
        ("HTTP", "enqueue, 64 clients", 2.0),
        ("HTTP", "dequeue + ack, 1 client", 2.0),
        ("HTTP", "dequeue + ack, 64 clients", 0.5),
        ("HTTP", "enqueue, the best of each", 4.0),
        ("HTTP", "dequeue + ack, the best of each", 3.0),
    ]
    assert ["Other", "1.2:", "enqueue,", "10", "a", "request", "200", "250", "240"] in shown(report)


def test_a_server_that_is_not_installed_has_no_rows_and_is_named() -> None:
    report = over_http("brigade")
    assert standings(as_json(report)) == []
    assert ["brigade", "1.2:", "enqueue", "40", "60", "80"] in shown(report)
    assert ["Skipped,", "not", "installed:", "Other"] in [line[:4] for line in shown(report)]


def shown(report: Report) -> list[list[str]]:
    """The words of each line that people see."""
    page = StringIO()
    show(report, Console(file=page, width=120))
    return [line.split() for line in page.getvalue().splitlines()]
