"""The protocol under a seeded scheduler with a virtual clock, and a checker of what it promised."""

from __future__ import annotations

from brigade.testing.sim.checker import Violation, check
from brigade.testing.sim.run import Report, run

__all__ = ["Report", "Violation", "check", "run"]
