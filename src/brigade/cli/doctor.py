"""`brigade doctor`: does this store keep its promises?"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import click

from brigade.cli.app import Terminated
from brigade.cli.common import console, json_option, print_json, table, url_option
from brigade.cli.text import cell
from brigade.doctor import Report, Verdict, connections_to, examine
from brigade.stores.opening import shown_url

__all__ = ["doctor"]

COLOURS = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red", Verdict.SKIPPED: "dim"}


@click.command(short_help="Check that a store keeps its promises.")
@click.argument("store", metavar="[URL]", required=False)
@click.option("--quick", is_flag=True, help="Fewer rounds and writers: a look, not a proof.")
@url_option
@json_option
def doctor(store: str | None, quick: bool, url: str, as_json: bool) -> int:
    """Race real operations on the store at URL, and say whether queues are safe there.

    Works under names of its own, which are removed in the end, so it disturbs no queue. Ends with 1 where the
    store is not safe.

    \b
    Examples:
      brigade doctor file:///var/lib/jobs
      brigade doctor --quick --json | jq .safe
    """
    place = store or url
    report = asyncio.run(_examined(place, quick=quick))
    if as_json:
        print_json(_plain(place, report))
    else:
        _show(place, report)
    return 0 if report.safe else 1


async def _examined(url: str, *, quick: bool) -> Report:
    """Examine, with a line of progress on a terminal. Being asked to stop cleans up first."""
    task, terminated = asyncio.current_task(), False
    assert task is not None

    def stop() -> None:
        nonlocal terminated
        terminated = True
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    try:
        if not sys.stderr.isatty():
            return await examine(connections_to(url), quick=quick)
        with console(stderr=True).status("connecting …") as status:
            return await examine(
                connections_to(url),
                quick=quick,
                tell=lambda name, number, total: status.update(f"{number} of {total}: {name} …"),
            )
    except asyncio.CancelledError:
        if terminated:
            raise Terminated from None
        raise


def _show(url: str, report: Report) -> None:
    out = console()
    found = table("check", "verdict", "what was seen", "what it means")
    for finding in report.findings:
        colour = COLOURS[finding.verdict]
        verdict = cell(finding.verdict.value, style=colour)
        found.add_row(finding.check, verdict, cell(finding.seen), cell(finding.meaning))
    if not any(finding.meaning for finding in report.findings):
        found.columns.pop()
    out.print(found)
    if report.latencies:
        times = table("operation", "p50 ms", "p95 ms", numbers=True)
        for latency in report.latencies:
            times.add_row(latency.operation, f"{latency.p50:.2f}", f"{latency.p95:.2f}")
        out.print(times)
    out.print(cell(_verdict(url, report), style=COLOURS[report.verdict]))


def _verdict(url: str, report: Report) -> str:
    place = shown_url(url)
    if not report.safe:
        failed = [finding.check for finding in report.findings if finding.verdict is Verdict.FAIL]
        return f"{place} is NOT SAFE for queues: {', '.join(failed)}"
    warned = sum(finding.verdict is Verdict.WARN for finding in report.findings)
    return f"{place} is safe for queues" + (f", with {warned} warnings" if warned else "")


def _plain(url: str, report: Report) -> dict[str, Any]:
    return {
        "url": shown_url(url),
        "safe": report.safe,
        "verdict": report.verdict.value,
        "checks": [
            {
                "check": finding.check,
                "verdict": finding.verdict.value,
                "seen": finding.seen,
                "meaning": finding.meaning or None,
            }
            for finding in report.findings
        ],
        "latency_ms": {latency.operation: {"p50": latency.p50, "p95": latency.p95} for latency in report.latencies},
        "leftover": list(report.leftover),
    }
