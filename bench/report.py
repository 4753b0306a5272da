"""What was measured, as tables for people, JSON for machines, and Markdown for the docs."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

import brigade
from bench.chart import chart
from bench.counts import PATTERNS, Requests
from bench.http import CLIENTS, HttpRequests, HttpResult
from bench.measure import STORES, Measurement
from bench.peers import LONG, THREADS, PeerResult
from bench.postgres import PROCESSES, PostgresResult
from bench.s3 import S3Result
from bench.spark import SparkResult
from bench.standing import Standing, standings

__all__ = ["Report", "as_json", "machine", "show", "write_docs"]


@dataclass(slots=True)
class Report:
    """Everything that one run found; what was not asked for is empty."""

    machine: dict[str, str]
    throughput: Sequence[Measurement] = ()
    requests: Sequence[Requests] = ()
    peers: Sequence[PeerResult] = ()
    skipped: Sequence[str] = ()
    postgres: Sequence[PostgresResult] = ()
    s3: Sequence[S3Result] = ()
    http: Sequence[HttpResult] = ()
    crowds: Sequence[HttpRequests] = ()
    spark: Sequence[SparkResult] = ()


def machine(place: Path) -> dict[str, str]:
    """What the figures depend on."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "brigade": brigade.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": f"{os.cpu_count()} × {_cpu_model()}",
        "memory": _memory(),
        "file system": _file_system(place),
        "load": f"{os.getloadavg()[0]:.1f} at the start",
    }


def _cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1) if found else platform.processor() or "unknown"


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1024**3:.0f} GiB"
    except (OSError, ValueError):
        return "unknown"


def _file_system(place: Path) -> str:
    """The kind of file system that the runs were made on: on tmpfs an fsync costs nothing."""
    best, kind = "", "unknown"
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return kind
    for line in lines:
        _, where, what, *_ = line.split()
        if str(place.resolve()).startswith(where) and len(where) > len(best):
            best, kind = where, what
    return kind


def as_json(report: Report) -> dict[str, Any]:
    """The report as plain values."""
    return {
        "machine": report.machine,
        "throughput": [{**asdict(m), "best": round(m.best, 1)} for m in report.throughput],
        "requests": [{**asdict(r), "total": round(r.total, 5)} for r in report.requests],
        "peers": [asdict(peer) for peer in report.peers],
        "postgres": [asdict(one) for one in report.postgres],
        "s3": [{**asdict(one), "requests": one.requests} for one in report.s3],
        "http": [asdict(one) for one in report.http],
        "crowds": [asdict(one) for one in report.crowds],
        "spark": [asdict(one) for one in report.spark],
        "skipped": list(report.skipped),
    }


def show(report: Report, console: Console) -> None:
    """Print all tables."""
    for title, header, rows in _tables(report):
        if not rows:
            continue
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
        for place, name in enumerate(header):
            table.add_column(name, justify="left" if place == 0 or _texts(rows, place) else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if any(not peer.acks for peer in report.peers):
        console.print("* takes the message away at once and has no ack: a worker that dies loses it")
    if report.skipped:
        console.print(f"Skipped, not installed: {', '.join(report.skipped)} (make bench installs what it can)")


def _texts(rows: Sequence[Sequence[str]], place: int) -> bool:
    return any(row[place][:1].isalpha() for row in rows)


def write_docs(report: Report, path: Path) -> None:
    """Replace what stands between the markers in the page, for what was measured.

    The figures themselves are kept beside the page, so that a run of one part can draw the whole picture.
    """
    text = path.read_text(encoding="utf-8")
    kept = path.with_suffix(".json")
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    found |= {name: value for name, value in as_json(report).items() if value}
    standing = standings(found)
    parts = {"machine": _markdown(("", ""), sorted(report.machine.items()))}
    names = ("throughput", "requests", "peers", "postgres", "s3", "http", "crowds", "spark")
    for name, (_, header, rows) in zip(names, _tables(report), strict=True):
        if rows:
            parts[name] = _markdown(header, rows)
    parts["standing"] = _markdown(("", "work", "Brigade", "best other one", "", "ratio"), _standing_rows(standing))
    for name, body in parts.items():
        mark = re.compile(rf"(<!-- bench:{name} -->\n).*?(<!-- /bench:{name} -->)", re.DOTALL)
        if not mark.search(text):
            raise SystemExit(f"{path} has no markers <!-- bench:{name} --> and <!-- /bench:{name} -->")
        text = mark.sub(lambda found, body=body: f"{found[1]}\n{body}\n{found[2]}", text)
    kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".svg").write_text(chart(standing), encoding="utf-8")
    path.write_text(text, encoding="utf-8")


def _markdown(header: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    names = list(header)
    lines = [f"| {' | '.join(names)} |", f"|{'|'.join(['---', *['---:'] * (len(names) - 1)])}|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


Rows = list[tuple[str, ...]]

S3_COLUMNS = ("messages", "enqueue, a second", "process, a second", "enqueue, requests", "process, requests")


def _tables(report: Report) -> list[tuple[str, tuple[str, ...], Rows]]:
    return [
        ("Messages a second, 200 bytes, best of the rounds", ("", *STORES), _speed_rows(report.throughput)),
        (
            "Storage requests a message, enqueue to history",
            ("batch", *(f"{store}, {pattern}" for store in _stores(report) for pattern in PATTERNS)),
            _request_rows(report),
        ),
        (
            f"On a local disk, one process, 1 caller / {THREADS} threads / 1 caller in hundreds: messages a second",
            ("queue", "durable", "how it writes", "enqueue", "claim + ack", f"{LONG:,} in line"),
            _peer_rows(report.peers),
        ),
        (
            "In PostgreSQL, 1 / 2 processes: messages a second",
            ("", *dict.fromkeys(f"{one.name} {one.version}" for one in report.postgres)),
            _postgres_rows(report.postgres),
        ),
        (
            "On S3 (SeaweedFS): messages a second, and requests a message",
            ("", *S3_COLUMNS),
            _s3_rows(report.s3),
        ),
        (
            "Through a server, over HTTP, on memory: messages a second",
            ("", *(f"{clients} client{'s' if clients > 1 else ''}" for clients in CLIENTS)),
            _http_rows(report.http),
        ),
        (
            "Through a server: storage requests a message, enqueue to history, each consumer one at a time",
            ("store", "consumers", "messages", "requests", "messages a second"),
            _crowd_rows(report.crowds),
        ),
        (
            "On Spark, two cores",
            ("", "Brigade", "Spark's Parquet", "ratio"),
            _spark_rows(report.spark),
        ),
    ]


def _speed_rows(found: Sequence[Measurement]) -> Rows:
    by_case: dict[str, dict[str, float]] = {}
    for one in found:
        by_case.setdefault(one.case, {})[one.store] = one.best
    return [
        (case, *(f"{rates[store]:,.0f}" if store in rates else "–" for store in STORES))
        for case, rates in by_case.items()
    ]


def _stores(report: Report) -> list[str]:
    return list(dict.fromkeys(one.store for one in report.requests))


def _request_rows(report: Report) -> Rows:
    stores = _stores(report)
    by_batch: dict[int, dict[tuple[str, str], float]] = {}
    for one in report.requests:
        by_batch.setdefault(one.batch, {})[one.pattern, one.store] = one.total
    return [
        (f"{batch:,}", *(f"{totals[pattern, store]:.4f}" for store in stores for pattern in PATTERNS))
        for batch, totals in by_batch.items()
    ]


def _peer_rows(peers: Sequence[PeerResult]) -> Rows:
    return [
        (
            f"{peer.name} {peer.version}",
            "yes" if peer.durable else "no",
            peer.setting,
            _three(peer.enqueue, peer.enqueue_threads, peer.enqueue_many),
            _three(peer.consume, peer.consume_threads, peer.consume_many) + ("" if peer.acks else " *"),
            f"{peer.enqueue_long:,.0f} / {peer.consume_long:,.0f}",
        )
        for peer in peers
    ]


def _three(one: float, threads: float, many: float | None) -> str:
    return f"{one:,.0f} / {threads:,.0f} / {_or_none(many)}"


def _or_none(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}"


def _postgres_rows(found: Sequence[PostgresResult]) -> Rows:
    systems = list(dict.fromkeys(one.name for one in found))
    best = {(one.case, one.name, one.processes): one.best for one in found}

    def cell(case: str, name: str) -> str:
        return " / ".join(f"{best[case, name, n]:,.0f}" for n in PROCESSES if (case, name, n) in best)

    cases = dict.fromkeys(one.case for one in found)
    return [(case, *(cell(case, name) for name in systems)) for case in cases]


def _s3_rows(found: Sequence[S3Result]) -> Rows:
    return [
        (
            f"{one.name} {one.version}: {one.case}",
            f"{one.messages:,}",
            _short(one.enqueue),
            _short(one.process),
            f"{one.enqueue_requests:.4f}",
            f"{one.process_requests:.4f}",
        )
        for one in found
    ]


def _http_rows(found: Sequence[HttpResult]) -> Rows:
    best: dict[str, dict[int, float]] = {}
    for one in found:
        best.setdefault(f"{one.name} {one.version}: {one.case}", {})[one.clients] = one.best
    return [(case, *(f"{rates[clients]:,.0f}" for clients in CLIENTS)) for case, rates in best.items()]


def _crowd_rows(found: Sequence[HttpRequests]) -> Rows:
    return [
        (one.store, str(one.consumers), f"{one.messages:,}", f"{one.requests:.4f}", _short(one.rate)) for one in found
    ]


def _spark_rows(found: Sequence[SparkResult]) -> Rows:
    return [
        (
            one.case,
            f"{one.value:,.0f}" if one.value >= 10 else f"{one.value:.4f}",
            f"{one.parquet:,.0f}" if one.parquet else "–",
            f"{one.value / one.parquet:.2f}" if one.parquet else "–",
        )
        for one in found
    ]


def _standing_rows(found: Sequence[Standing]) -> Rows:
    return [(one.ground, one.work, _short(one.ours), _short(one.theirs), one.who, one.told) for one in found]


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
