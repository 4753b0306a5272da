"""What requests cost: prices, the two commands, and that what they say is what a bucket sees."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from brigade import ConfigError
from brigade.cost import MONTH, Prices, idle_requests, load_prices
from brigade.testing.servers.fixtures import seaweedfs_server
from brigade.testing.servers.proxy import Proxy
from brigade.testing.servers.s3 import s3_url

__all__ = ["seaweedfs_server"]

BRIGADE = Path(sys.executable).parent / "brigade"


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run([BRIGADE, *arguments], capture_output=True, text=True, timeout=100)
    assert ran.returncode == code, ran.stderr
    return ran


def test_requests_are_billed_by_their_kind() -> None:
    prices = Prices(put=5, list=50, get=0.5, delete=0)
    requests = {"create": 100, "swap": 100, "copy": 100, "list": 10, "get": 1000, "head": 1000, "delete": 9}
    assert prices.of(requests) == pytest.approx(1.5 + 0.5 + 1.0)
    assert Prices().of({"create": 1_000_000}) == pytest.approx(5)


def test_prices_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("put = 0.0055\nget = 0.00044\n")
    (tmp_path / "p.json").write_text('{"put": 1, "list": 2}')
    assert load_prices(str(tmp_path / "p.toml")) == Prices(put=0.0055, get=0.00044)
    assert load_prices(str(tmp_path / "p.json"), {"list": 3}) == Prices(put=1, list=3)


@pytest.mark.parametrize("text, part", [("post = 1", "post"), ("put = -1", "put"), ("put = 'x'", "put"), ("=", "read")])
def test_bad_prices_are_refused(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(ConfigError, match=part):
        load_prices(str(tmp_path / "p.toml"))


def test_an_idle_worker_costs_a_few_dollars_a_month() -> None:
    assert sum(idle_requests(60.0).values()) <= 12
    assert Prices().of(idle_requests(MONTH)) < 3
    assert Prices().of(idle_requests(MONTH, poll_interval=60)) < 1.5


def test_cost_tells_requests_and_dollars() -> None:
    found = json.loads(run("cost", "--json").stdout)
    by_batch = {one["batch"]: one for one in found["batches"]}
    assert by_batch[1]["requests_per_message"] <= 6
    assert by_batch[100]["requests_per_message"] <= 0.06
    assert by_batch[1000]["requests_per_message"] <= 0.01
    assert by_batch[100]["dollars_per_million"] < 0.3
    assert found["idle"]["dollars"] < 3
    dearer = json.loads(run("cost", "--batch", "100", "--price", "put=0.05", "--json").stdout)
    assert dearer["batches"][0]["dollars_per_million"] > 5 * by_batch[100]["dollars_per_million"]
    assert "all month" in run("cost", "--batch", "10", "--messages", "5").stdout
    assert "put=0.005" in run("cost", "--price", "put=cheap", code=2).stderr


def test_bench_counts_what_goes_over_the_wire_and_leaves_nothing(seaweedfs_server: str) -> None:
    with Proxy(seaweedfs_server) as proxy:
        url = s3_url(proxy.endpoint, f"bench/{uuid.uuid4().hex}")
        found = json.loads(run("bench", "--url", url, "--batch", "100", "--rounds", "10", "--json").stdout)
        (one,) = found["batches"]
        assert one["messages"] == 1000
        assert one["messages_per_second"] > 0
        told = {kind: round(share * 1000) for kind, share in one["kinds"].items()}
        assert told["swap"] == proxy.counts["swap"] == 10
        assert proxy.total - sum(told.values()) <= 14, "what opening and deleting the queue took"
        assert "no queues" in run("queues", "--url", url, code=3).stderr
        assert "$/million" in run("bench", "--url", url, "--batch", "10", "--rounds", "2").stdout


def test_stats_of_a_cloud_store_end_with_what_they_cost(seaweedfs_server: str) -> None:
    url = s3_url(seaweedfs_server, f"bench/{uuid.uuid4().hex}")
    run("enqueue", "tasks", "x", "--url", url)
    assert "this look took" in run("stats", "--url", url).stdout.splitlines()[-1]
