"""The audit: runs every check over the whole history, and says what holds and what is broken."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from brigade.checks import seconds
from brigade.clock import to_ms
from brigade.errors import BrigadeError, ConfigError
from brigade.spark.audit.checks import CHECKS, EXPECTED, LATE, Check
from brigade.spark.history.engines import Engine
from brigade.sync import Hub

__all__ = ["Finding", "Verdict", "Violation", "audit", "slack_for"]

SHOWN = 1000
"""Offending rows of each check that are handed back; all of them are counted and written."""

_EXACT = {"postgresql": 0.0, "postgres": 0.0, "file": 0.02, "sqlite": 0.02, "memory": 0.02}
_CLOUD = 2.0


class Violation(msgspec.Struct):
    """A row that breaks a guarantee."""

    check: str
    queue: str
    ref: str
    id: str
    happened_at: datetime | None
    detail: str


class Finding(msgspec.Struct):
    """What became of one check."""

    check: str
    guarantee: str
    title: str
    found: int
    rows: list[Violation] = []

    @property
    def holds(self) -> bool:
        return self.found == 0


class Verdict(msgspec.Struct):
    """What the audit says. `waiting` counts expected messages that have no end yet and are still in a queue."""

    holds: bool
    messages: int
    attempts: int
    queues: int
    first: datetime | None
    last: datetime | None
    slack: float
    findings: list[Finding]
    waiting: int = 0
    written: str | None = None


def slack_for(kind: str) -> float:
    """Seconds by which times in history may be off: a database has one clock, clouds tell theirs in whole seconds."""
    return _EXACT.get(kind, _CLOUD)


def audit(
    engine: Engine,
    *,
    slack: float | None = None,
    expected: Sequence[str] | None = None,
    hub: Hub | None = None,
    violations: str | None = None,
) -> Verdict:
    """Check the guarantees. `expected` are ids or refs that were enqueued; with a `hub`, those without an end are
    looked for in its queues. Offending rows are written to the folder `violations`."""
    allowed = slack_for(engine.kind) if slack is None else seconds(slack, "slack")
    checks = list(CHECKS)
    if expected is not None:
        engine.values("expected", "id", sorted(set(expected)))
        checks.append(EXPECTED)
    engine.define("violations", " UNION ALL ".join(_sql(check, to_ms(allowed)) for check in checks), keep=True)
    totals = _totals(engine)
    counts = {row["check_name"]: row["found"] for row in engine.rows(_COUNT)} if totals["messages"] else {}
    findings = [_finding(engine, check, counts.get(check.name, 0)) for check in checks]
    waiting = _look_up(hub, findings[-1]) if hub is not None and expected is not None else 0
    broken = any(finding.found for finding in findings)
    if broken and violations is not None:
        engine.save("SELECT * FROM violations", violations)
    return Verdict(
        not broken,
        totals["messages"],
        totals["attempts"],
        totals["queues"],
        totals["first_at"],
        totals["last_at"],
        allowed,
        findings,
        waiting,
        violations if broken else None,
    )


_COUNT = "SELECT check_name, count(*) AS found FROM violations GROUP BY check_name"


def _sql(check: Check, slack: int) -> str:
    inner = check.sql.format(slack=slack, beyond=slack + 1, late=slack + LATE)
    return f"SELECT '{check.name}' AS check_name, v.queue, v.ref, v.id, v.happened_at, v.detail FROM ({inner}) v"


def _totals(engine: Engine) -> dict[str, Any]:
    (row,) = engine.rows(
        "SELECT count(*) AS messages, count(DISTINCT queue) AS queues, min(enqueued_at) AS first_at, "
        "max(finished_at) AS last_at, (SELECT count(*) FROM attempts) AS attempts FROM messages"
    )
    return row


def _finding(engine: Engine, check: Check, found: int) -> Finding:
    made = Finding(check.name, check.guarantee, check.title, found)
    if found:
        rows = engine.rows(
            f"SELECT * FROM violations WHERE check_name = '{check.name}' ORDER BY queue, happened_at, ref LIMIT {SHOWN}"
        )
        made.rows = [
            Violation(check.name, row["queue"], row["ref"], row["id"], row["happened_at"], row["detail"])
            for row in rows
        ]
    return made


def _look_up(hub: Hub, missing: Finding) -> int:
    """Take messages that are still in a queue off the list; returns how many those were."""
    if missing.found > SHOWN:
        raise ConfigError(
            f"{missing.found:,} of the expected messages have no end yet; audit when the queues are worked off"
        )
    gone = [row for row in missing.rows if not _is_there(hub, row.id)]
    waiting = len(missing.rows) - len(gone)
    missing.found = len(gone)
    missing.rows = gone
    return waiting


def _is_there(hub: Hub, id: str) -> bool:
    for name in hub.queues():
        try:
            hub.queue(name, create=False).get(id)
        except ConfigError:
            raise
        except BrigadeError:
            continue
        return True
    return False
