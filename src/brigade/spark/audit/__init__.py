"""The guarantees, checked over the whole history."""

from brigade.spark.audit.audit import Finding, Verdict, Violation, audit, slack_for

__all__ = ["Finding", "Verdict", "Violation", "audit", "slack_for"]
