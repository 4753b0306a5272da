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
        self._ended = 0.0

    def begins(self, now: float) -> None:
        """A handler starts."""
        if self._last is None:
            self._last = self._ended = now

    def ends(self, now: float, count: int, *, idle: bool) -> None:
        """So many handlers have ended; `idle` says that none is left."""
        if self._last is not None:
            self._busy += now - self._last
        self._last = None if idle else now
        self._ended = now
        self._done += count
        if self._busy >= WINDOW:
            recent = self._done / self._busy
            known = recent if self._rate is None or self._busy >= LONG else self._rate
            self._rate = (known + recent) / 2
            self._done, self._busy = 0, 0.0

    def rate(self, now: float) -> float:
        """Messages a second; 0 while nothing is known. When nothing ends any more it falls by itself."""
        busy = self._busy if self._last is None else self._busy + now - self._last
        known = self._rate if self._rate is not None else (self._done / busy if busy > 0 else 0.0)
        silence = 0.0 if self._last is None else now - self._ended
        return min(known, 1 / silence) if silence > WINDOW else known

    def ahead(self, seconds: float, most: int, now: float) -> int:
        """How many messages to hold beyond those that run."""
        return min(most, int(self.rate(now) * seconds))
