"""How far ahead to claim: about two seconds of work, by the speed at which handlers finish."""

from __future__ import annotations

__all__ = ["Speed"]

WINDOW, LONG = 1.0, 4.0


class Speed:
    """Messages finished a second while there was work. Idle time doesn't count."""

    def __init__(self) -> None:
        self._rate: float | None = None
        self._done = 0
        self._busy = 0.0
        self._last: float | None = None

    def begins(self, now: float) -> None:
        """A handler starts."""
        if self._last is None:
            self._last = now

    def ends(self, now: float, *, idle: bool) -> None:
        """A handler has ended; `idle` says that none is left."""
        if self._last is not None:
            self._busy += now - self._last
        self._last = None if idle else now
        self._done += 1
        if self._busy >= WINDOW:
            recent = self._done / self._busy
            known = recent if self._rate is None or self._busy >= LONG else self._rate
            self._rate = (known + recent) / 2
            self._done, self._busy = 0, 0.0

    def rate(self, now: float) -> float:
        """Messages a second; 0 while nothing is known. When nothing ends any more it falls by itself."""
        busy = self._busy if self._last is None else self._busy + now - self._last
        if self._rate is None:
            return self._done / busy if busy > 0 else 0.0
        return min(self._rate, (self._done + 1) / busy) if busy >= LONG else self._rate

    def ahead(self, seconds: float, most: int, now: float) -> int:
        """How many messages to hold beyond those that run."""
        return min(most, int(self.rate(now) * seconds))
