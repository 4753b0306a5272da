"""`python -m bench.paper`: what rates of messages ask of S3: counted requests, its documented limits, its prices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bench.counts import BATCHES, counted
from bench.measure import MEMORY
from brigade.cost import MONTH, load_prices

__all__ = ["Load", "loads"]

RATES = (1, 1_000, 100_000, 1_000_000)
WRITES, READS = 3_500, 5_500
"""Requests a second that S3 promises a prefix; deletes are writes, and listings are counted as reads."""

MOST_REQUESTS = 100_000
"""A second; batches with which a rate needs more are left out."""


@dataclass(frozen=True, slots=True)
class Load:
    """A rate of messages in batches of one size."""

    rate: int
    batch: int
    writes: float
    reads: float
    dollars: float

    @property
    def prefixes(self) -> int:
        """How many queues to spread it over, for S3's sake."""
        return max(1, math.ceil(max(self.writes / WRITES, self.reads / READS)))


def loads() -> list[Load]:
    """Every rate with every batch size that makes sense."""
    found = [counted("memory://", MEMORY, batch, "steady") for batch in BATCHES]
    made = [_load(rate, one.batch, one.kinds) for rate in RATES for one in found]
    return [one for one in made if one.writes + one.reads <= MOST_REQUESTS]


def _load(rate: int, batch: int, a_message: Mapping[str, float]) -> Load:
    read = sum(count for kind, count in a_message.items() if kind in ("get", "head", "list"))
    written = sum(a_message.values()) - read
    dollars = load_prices().of({kind: count * rate * MONTH for kind, count in a_message.items()})
    return Load(rate, batch, rate * written, rate * read, dollars)


def main() -> None:
    print("| messages a second | batch | writes a second | reads a second | prefixes | $ a month |")
    print("|---:|---:|---:|---:|---:|---:|")
    for one in loads():
        numbers = [f"{value:,.0f}" if value >= 10 else f"{value:.2g}" for value in (one.writes, one.reads)]
        cells = [f"{one.rate:,}", f"{one.batch:,}", *numbers, str(one.prefixes), f"{one.dollars:,.0f}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
