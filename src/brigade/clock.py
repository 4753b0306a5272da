"""The only module that reads a clock. Times are integer milliseconds since the epoch, by the store's clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["FOREVER", "Clock", "SystemClock", "monotonic_ns", "to_datetime", "to_ms", "wall_ns"]

FOREVER = 99_999_999_999_999
"""Later than any time that fits the fourteen digits of a segment's name."""


class Clock(Protocol):
    """What the protocol knows of time."""

    def now(self) -> int:
        """The store's time in milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow, for time-outs inside this process."""
        ...


class SystemClock:
    """This machine's clock, moved by the offset to the store's clock."""

    def __init__(self, offset_ms: int = 0) -> None:
        self.offset_ms = offset_ms

    def now(self) -> int:
        return wall_ns() // 1_000_000 + self.offset_ms

    def monotonic(self) -> float:
        return time.monotonic()


wall_ns = time.time_ns
"""This machine's wall clock in nanoseconds: what files on a local disk are stamped with."""
monotonic_ns = time.monotonic_ns
"""Nanoseconds that only grow, since some moment of this machine's life."""


def to_datetime(ms: int) -> datetime:
    """Milliseconds since the epoch as an aware UTC datetime."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def to_ms(seconds: float) -> int:
    """A duration in seconds as whole milliseconds."""
    return round(seconds * 1000)
