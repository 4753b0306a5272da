"""Every order of events there is, for a few actors and a message or two: the protocol, explored to the end."""

from __future__ import annotations

from brigade.testing.explore.casts import CASTS, Cast
from brigade.testing.explore.search import Report, explore

__all__ = ["CASTS", "Cast", "Report", "explore"]
