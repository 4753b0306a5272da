"""What the doctor says: a finding for each check, and a verdict over all."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

__all__ = ["Finding", "Latency", "Report", "Verdict", "fail", "ok", "quantile", "warn"]


class Verdict(StrEnum):
    """How a check ended. Only FAIL makes a store unsafe."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"
    SKIPPED = "skipped"


class Finding(msgspec.Struct, frozen=True):
    """What one check saw, and what that means for queues on this store."""

    verdict: Verdict
    seen: str
    meaning: str = ""
    check: str = ""


class Latency(msgspec.Struct, frozen=True):
    """How long one kind of operation took, in milliseconds."""

    operation: str
    p50: float
    p95: float


class Report(msgspec.Struct, frozen=True):
    """Every finding. `leftover` names what could not be removed."""

    findings: Sequence[Finding]
    latencies: Sequence[Latency] = ()
    leftover: Sequence[str] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        found = {finding.verdict for finding in self.findings}
        return next((one for one in (Verdict.FAIL, Verdict.WARN) if one in found), Verdict.OK)

    @property
    def safe(self) -> bool:
        return self.verdict is not Verdict.FAIL


def ok(seen: str, meaning: str = "") -> Finding:
    return Finding(Verdict.OK, seen, meaning)


def warn(seen: str, meaning: str) -> Finding:
    return Finding(Verdict.WARN, seen, meaning)


def fail(seen: str, meaning: str) -> Finding:
    return Finding(Verdict.FAIL, seen, meaning)


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which `part` of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
