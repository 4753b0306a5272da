"""Says whether a run kept the promises: the checker of the simulation, and what the durable record adds to it."""

from __future__ import annotations

from brigade.testing.chaos.judge.ended import Ended, Held
from brigade.testing.chaos.judge.verdict import Verdict, judge

__all__ = ["Ended", "Held", "Verdict", "judge"]
