"""A report as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from brigade.testing.chaos.auditing import Audited
from brigade.testing.chaos.judge.recorded import Recorded
from brigade.testing.chaos.run import Report

__all__ = ["as_text"]

SHOWN = 20


def as_text(report: Report) -> str:
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield f"{report.arena}: seed {report.seed}, {report.seconds:g} s, drained in {report.drained_in:g} s"
    seen = f", {report.witnessed} of them seen on the wire" if report.witnessed else ""
    yield f"  {report.messages} messages, {report.acked} acks, {report.records} records{seen}"
    yield from _counts("operations", report.operations)
    yield from _counts("faults", report.faults)
    yield from _counts("ended by themselves", report.died)
    if report.audit is not None:
        yield f"  the Spark audit: {_view(report.audit)}, in {report.audit.seconds:g} s"
    if report.recorded is not None:
        yield f"  the judge: {_view(report.recorded)}"
    if report.ok:
        yield "  every promise was kept" + ("; both agree" if report.audit is not None else "")
        return
    yield f"  {len(report.violations)} violations:"
    yield from (f"    {text}" for text in report.violations[:SHOWN])
    if len(report.violations) > SHOWN:
        yield f"    and {len(report.violations) - SHOWN} more"
    yield f"  the history is in {report.evidence}"


def _view(one: Recorded | Audited) -> str:
    broken = ", ".join(f"{tag} broken {count} times" for tag, count in one.broken.items()) or "no violation"
    return f"{one.messages} messages ended, {one.leases} leases, {one.acks} acks, {broken}"


def _counts(title: str, counted: Mapping[str, int]) -> Iterator[str]:
    if counted:
        yield f"  {title}: " + ", ".join(f"{name} {count}" for name, count in counted.items())
