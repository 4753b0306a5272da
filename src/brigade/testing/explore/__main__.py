"""`brigade-explore`: every order of events of a few actors. Says how many states there are, and what broke."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from brigade.cli.common import console
from brigade.clock import SystemClock
from brigade.stores.bucket import book
from brigade.testing.explore.casts import CASTS
from brigade.testing.explore.search import Report, explore

__all__ = ["main"]

EXAMPLE = "example: brigade-explore takeover lane --most 200000"
SHOW_EVERY = 2.0
_counts: list[Any] = []
"""What the processes of the pool share: how many states each cast has so far."""


def _explored(chosen: tuple[int, str], most: int | None, reduced: bool, shortest: bool) -> tuple[Report, float]:
    place, name = chosen
    clock = SystemClock()
    began = clock.monotonic()
    tell = partial(_count, place)
    report = explore(CASTS[name], most_states=most, tell=tell, reduced=reduced, shortest=shortest)
    return report, clock.monotonic() - began


def _share(counts: Any, packed: bool) -> None:
    """In a process of the pool, before anything else."""
    _counts.append(counts)
    if packed:
        book.PACK = 1


def _count(place: int, states: int) -> None:
    _counts[0][place] = states


def _next(results: Any, names: Sequence[str], counts: Sequence[int], done: set[str]) -> tuple[Report, float]:
    """The next cast that is done. Until then a line at the terminal says how far the others have come."""
    with console(stderr=True).status("exploring …") if sys.stderr.isatty() else nullcontext() as status:
        while True:
            try:
                return results.next(timeout=SHOW_EVERY)
            except multiprocessing.TimeoutError:
                if status is not None:
                    status.update(_so_far(names, counts, done))


def _so_far(names: Sequence[str], counts: Sequence[int], done: set[str]) -> str:
    under_way = [f"{name} {count:,}" for name, count in zip(names, counts, strict=True) if count and name not in done]
    return f"{len(done)} of {len(names)} casts done; states so far: {', '.join(under_way) or 'none'}"


def _plain(report: Report, seconds: float) -> dict[str, Any]:
    return {
        "cast": report.cast,
        "states": report.states,
        "moves": report.moves,
        "judged": report.judged,
        "ends": report.ends,
        "longest": report.longest,
        "complete": report.complete,
        "seconds": round(seconds, 1),
        "broken": [{"path": told, "violations": list(map(str, found))} for told, found in report.broken],
    }


def _show(told: dict[str, Any]) -> None:
    how_far = "all of them" if told["complete"] else "stopped there"
    print(
        f"{told['cast']}: {told['states']:,} states ({how_far}), {told['moves']:,} moves, "
        f"{told['judged']:,} judged, {told['ends']:,} ends, {told['longest']} moves at most, {told['seconds']:,} s",
        flush=True,
    )
    for broken in told["broken"]:
        print("  a promise was broken:", *broken["violations"], sep="\n  ")
        print("  by:", *broken["path"], sep="\n    ", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and explore; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(prog="brigade-explore", description=__doc__, epilog=EXAMPLE)
    parser.add_argument("casts", nargs="*", metavar="CAST", help=f"one of {', '.join(CASTS)} (default: all)")
    parser.add_argument("--most", type=int, metavar="N", help="stop a cast after so many states")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes to use")
    parser.add_argument("--unreduced", action="store_true", help="tell apart what comes to the same; takes far longer")
    parser.add_argument(
        "--packed", action="store_true", help="pack what is over in a ledger at once, not when it is much"
    )
    parser.add_argument("--shortest", action="store_true", help="find the shortest path to what is broken")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args(argv)
    unknown = [name for name in given.casts if name not in CASTS]
    if unknown:
        parser.error(f"there is no cast {unknown[0]!r}; choose from {', '.join(CASTS)}")
    names: list[str] = list(dict.fromkeys(given.casts)) or list(CASTS)
    broken, done = False, set[str]()
    context = multiprocessing.get_context("spawn")
    counts: Any = context.Array("Q", len(names), lock=False)
    with context.Pool(max(given.jobs, 1), _share, [counts, given.packed]) as pool:
        one = partial(_explored, most=given.most, reduced=not given.unreduced, shortest=given.shortest)
        results = pool.imap_unordered(one, list(enumerate(names)))
        while len(done) < len(names):
            report, seconds = _next(results, names, counts, done)
            done.add(report.cast)
            told = _plain(report, seconds)
            print(json.dumps(told), flush=True) if given.json else _show(told)
            broken = broken or bool(report.broken)
    return 1 if broken else 0


if __name__ == "__main__":
    # Under its own name: the pool's processes can't find functions of a module that is called `__main__`.
    from brigade.testing.explore.__main__ import main as named

    sys.exit(named())
