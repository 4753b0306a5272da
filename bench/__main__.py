"""`python -m bench`: measure on this machine, in one run."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from bench import counts, http, peers, postgres, processes, s3, spark, throughput
from bench.measure import Ground
from bench.report import Report, as_json, machine, show, write_docs

PARTS = ("disk", "requests", "peers", "postgres", "s3", "http", "spark")
DOCS = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def main() -> None:
    arguments = _arguments()
    errors = Console(stderr=True)
    ground = Ground(quick=arguments.quick, parent=arguments.dir)
    try:
        with _progress(errors, _runs(ground, arguments.only or PARTS), plain=not errors.is_terminal) as tick:
            ground.tick = tick
            report = _measured(ground, arguments.only or PARTS)
    finally:
        ground.clear()
    if arguments.json:
        print(json.dumps(as_json(report), indent=2))
    else:
        show(report, Console())
    if arguments.write:
        write_docs(report, DOCS)
        errors.print(f"wrote {DOCS.relative_to(Path.cwd()) if DOCS.is_relative_to(Path.cwd()) else DOCS}")


def _measured(ground: Ground, parts: Sequence[str]) -> Report:
    report = Report(machine(ground.root))
    skipped: set[str] = set()
    if "http" in parts:
        report.http, report.crowds = http.run_http(ground)
        skipped |= {*http.missing()}
    if "disk" in parts:
        report.throughput = [*throughput.throughput(ground), *processes.processes(ground)]
    if "requests" in parts:
        report.requests = counts.count_requests(ground)
    if "peers" in parts:
        report.peers = peers.run_peers(ground)
        skipped |= {*peers.missing()}
    if "postgres" in parts:
        report.postgres = postgres.run_postgres(ground)
        skipped |= {*postgres.missing()}
    if "s3" in parts:
        report.s3 = s3.run_s3(ground)
        skipped |= {*s3.missing()}
    if "spark" in parts and not ground.quick:
        report.spark = spark.run_spark(ground)
    report.skipped = sorted(skipped)
    return report


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure throughput and requests a message on this machine.",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke test: few messages, one round")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this part; may be given more than once")
    parser.add_argument("--dir", type=Path, help="where the stores are made (default: a temporary directory)")
    return parser.parse_args()


def _runs(ground: Ground, parts: Sequence[str]) -> int:
    known = {
        "disk": throughput.runs(ground.rounds) + processes.runs(ground.rounds),
        "requests": counts.runs(),
        "peers": peers.runs(ground.rounds),
        "postgres": postgres.runs(ground.rounds),
        "s3": s3.runs(ground.rounds, quick=ground.quick),
        "http": http.runs(ground.rounds, quick=ground.quick),
        "spark": 0 if ground.quick else spark.runs(ground.rounds),
    }
    return sum(known[part] for part in parts)


@contextlib.contextmanager
def _progress(console: Console, total: int, *, plain: bool) -> Generator[Callable[[str], None], None, None]:
    """A bar on a terminal; elsewhere one line for each thing that is measured."""
    if plain:
        seen: set[str] = set()

        def line(text: str) -> None:
            case = text.partition(" · ")[0]
            if case not in seen:
                seen.add(case)
                console.print(f"measuring {case}", highlight=False)

        yield line
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=total)
        started = False

        def step(text: str) -> None:
            nonlocal started
            progress.update(task, description=text, advance=1 if started else 0)
            started = True

        yield step


if __name__ == "__main__":
    main()
