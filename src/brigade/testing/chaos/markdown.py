"""Reports as a table for the documentation: an arena is a column, everything that was counted a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from brigade.testing.chaos.run import Report

__all__ = ["as_markdown"]

NONE = "-"


def as_markdown(reports: Sequence[Report]) -> str:
    return "\n".join(_lines(reports))


def _lines(reports: Sequence[Report]) -> Iterator[str]:
    yield "| | " + " | ".join(f"`{report.arena}`" for report in reports) + " |"
    yield "|---|" + "---:|" * len(reports)
    rows: dict[str, Callable[[Report], object]] = {
        "seed": lambda one: one.seed,
        "minutes": lambda one: f"{one.seconds / 60:g}",
        "enqueued messages": lambda one: one.messages,
        "acks answered": lambda one: one.acked,
        "records judged": lambda one: one.records,
        "of them seen on the wire": lambda one: one.witnessed or None,
    }
    for title, value in rows.items():
        yield _row(title, [value(one) for one in reports])
    yield _row("**operations**", [""] * len(reports))
    yield from _kinds(reports, lambda one: one.operations)
    yield _row("**faults**", [sum(one.faults.values()) for one in reports])
    yield from _kinds(reports, lambda one: one.faults)
    if any(one.audit is not None for one in reports):
        yield _row("**audit** and judge, each on its own", [""] * len(reports))
        for title, name in (("messages ended", "messages"), ("leases", "leases"), ("acks in history", "acks")):
            yield _row(title, [_both(one, name) for one in reports])
    yield _row("**violations**", [len(one.violations) or "none" for one in reports])


def _kinds(reports: Sequence[Report], counts: Callable[[Report], Mapping[str, int]]) -> Iterator[str]:
    """A row for each kind that any of the reports has."""
    for kind in sorted({kind for one in reports for kind in counts(one)}):
        yield _row(kind, [counts(one).get(kind) for one in reports])


def _both(report: Report, name: str) -> str | None:
    """What both counted; both figures where they differ."""
    if report.audit is None or report.recorded is None:
        return None
    audit, judge = getattr(report.audit, name), getattr(report.recorded, name)
    return f"{audit:,}" if audit == judge else f"{audit:,}, {judge:,}"


def _row(title: str, values: Sequence[object]) -> str:
    cells = (NONE if value is None else f"{value:,}" if isinstance(value, int) else str(value) for value in values)
    return f"| {title} | " + " | ".join(cells) + " |"
