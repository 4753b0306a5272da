"""When to try again, and how often one object may be written."""

from __future__ import annotations

import asyncio

from brigade.clock import Clock
from brigade.ids import Ids

__all__ = ["Pace", "pause"]

BASE = 0.1
SLOW_BASE = 0.5
LONGEST = 10.0


async def pause(ids: Ids, attempt: int, *, slow: bool = False) -> None:
    """Wait before another try: random, and longer each time; longer still where the store wants fewer requests."""
    longest = min((SLOW_BASE if slow else BASE) * 2.0**attempt, LONGEST)
    await asyncio.sleep(ids.uniform(longest / 2 if slow else 0.0, longest))


class Pace:
    """Keeps the writes of one object name to a rate, after a burst. Google's store takes about one a second."""

    def __init__(self, interval: float, burst: int) -> None:
        self._interval = interval
        self._burst = burst
        self._due: dict[str, float] = {}

    def delay(self, key: str, now: float) -> float:
        """Seconds to wait before this write of the object, which counts from here on."""
        if not self._interval:
            return 0.0
        if len(self._due) > 10_000:
            self._due = {known: due for known, due in self._due.items() if due > now}
        due = max(self._due.get(key, 0.0), now) + self._interval
        self._due[key] = due
        return max(0.0, due - now - self._interval * self._burst)

    async def turn(self, key: str, clock: Clock) -> None:
        wait = self.delay(key, clock.monotonic())
        if wait > 0:
            await asyncio.sleep(wait)
