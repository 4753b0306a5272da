"""The offset to the store's clock, from the `Date` of its answers, which tells whole seconds.

An answer dated D that was asked for at `sent` and came at `received`, by this machine's clock, was made between
the two, so the offset lies in [D - received, D + 1 s - sent]. Each answer narrows the interval; time widens it,
because clocks drift. An answer that contradicts it means that a clock was set, and starts it anew.
"""

from __future__ import annotations

__all__ = ["Offset"]

SECOND = 1000
DRIFT = 0.0002


class Offset:
    """What is known of the offset, in milliseconds: it is between `low` and `high`."""

    def __init__(self) -> None:
        self.low = self.high = 0.0
        self._at: float | None = None

    @property
    def known(self) -> bool:
        return self._at is not None

    @property
    def best(self) -> int:
        """No offset where the clocks may agree; else the middle of what is possible."""
        return 0 if self.low <= 0 <= self.high else round((self.low + self.high) / 2)

    @property
    def error(self) -> float:
        """By how much `best` may be wrong."""
        return max(self.high - self.best, self.best - self.low)

    def add(self, date: int, sent: float, received: float) -> None:
        """Take in an answer: its date, and when it was asked for and came by this machine's clock."""
        low, high = date - received, date + SECOND - sent
        if self._at is not None:
            drift = abs(received - self._at) * DRIFT
            kept_low, kept_high = max(low, self.low - drift), min(high, self.high + drift)
            if kept_low <= kept_high:
                low, high = kept_low, kept_high
        self.low, self.high, self._at = low, high, received

    def wait(self, now: float) -> float:
        """Milliseconds until an answer would halve the interval: when the middle would have a second begin."""
        return -(now + (self.low + self.high) / 2) % SECOND
