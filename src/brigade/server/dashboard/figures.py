"""What polling has seen of one queue: samples in a ring, and the rates, percentiles and series made from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from brigade.model import Stats
from brigade.survey import Ended

__all__ = ["Figures", "Rates", "Sample", "Timing", "quantile"]

KEPT = 360
WINDOW = 60_000
"""Milliseconds over which percentiles are taken."""

RECENT = 10
"""Samples over which rates are taken."""


class Timing(NamedTuple):
    """Seconds until messages were started and while they ran, of those that ended in the last minute."""

    wait_p50: float | None = None
    wait_p95: float | None = None
    run_p50: float | None = None
    run_p95: float | None = None


class Sample(NamedTuple):
    """A queue at one moment."""

    at: int
    stats: Stats
    timing: Timing = Timing()


class Rates(NamedTuple):
    """Messages a second."""

    enqueued: float
    acked: float
    failed: float


class Figures:
    """A ring of samples of one queue."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self.after: str | None = None
        self._ended: deque[Ended] = deque(maxlen=5000)

    @property
    def last(self) -> Sample | None:
        return self.samples[-1] if self.samples else None

    @property
    def stats(self) -> Stats | None:
        return self.samples[-1].stats if self.samples else None

    @property
    def timing(self) -> Timing:
        return self.samples[-1].timing if self.samples else Timing()

    def add(self, at: int, stats: Stats) -> None:
        self.samples.append(Sample(at, stats, self._timing(at)))

    def add_ended(self, ended: Iterable[Ended]) -> None:
        self._ended.extend(ended)

    def _timing(self, now: int) -> Timing:
        recent = [one for one in self._ended if one.finished_at_ms >= now - WINDOW]
        waits = sorted(one.waited for one in recent if one.waited is not None)
        runs = sorted(one.ran for one in recent if one.ran is not None)
        return Timing(quantile(waits, 0.5), quantile(waits, 0.95), quantile(runs, 0.5), quantile(runs, 0.95))

    def rates(self) -> Rates | None:
        """Over the last few samples; None while there is only one."""
        if len(self.samples) < 2:
            return None
        return _between(self.samples[max(0, len(self.samples) - RECENT)], self.samples[-1])

    def depths(self) -> list[int]:
        """How many waited, for a sparkline."""
        return [one.stats.ready + one.stats.delayed + one.stats.in_flight for one in list(self.samples)[-60:]]

    def series(self, since: int = 0) -> list[list[float | None]]:
        """A row for each sample after that moment: time in seconds, then what the charts show."""
        rows: list[list[float | None]] = []
        before: Sample | None = None
        for one in self.samples:
            if one.at > since:
                rates = _between(before, one) if before is not None else None
                rows.append(
                    [
                        one.at / 1000,
                        one.stats.ready,
                        one.stats.delayed,
                        one.stats.in_flight,
                        *((round(rate, 3) for rate in rates) if rates else (None, None, None)),
                        *one.timing,
                    ]
                )
            before = one
        return rows


def _between(first: Sample, last: Sample) -> Rates:
    """What is new of each. History that is forgotten and queues that are purged make numbers smaller, not rates."""
    seconds = max(last.at - first.at, 1) / 1000
    old, new = first.stats, last.stats
    return Rates(
        max(0, new.total - old.total) / seconds,
        max(0, new.succeeded - old.succeeded) / seconds,
        max(0, new.failed + new.dead_lettered - old.failed - old.dead_lettered) / seconds,
    )


def quantile(ordered: Sequence[float], part: float) -> float | None:
    """The value below which `part` of the sorted values lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else None
