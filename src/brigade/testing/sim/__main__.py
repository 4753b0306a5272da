"""`brigade-sim`: plays seeds until one breaks a promise, and says how to play it again."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from brigade.clock import SystemClock
from brigade.testing.sim.run import run
from brigade.testing.sim.scenario import Scenario, scenario_of

__all__ = ["main"]


class Outcome(NamedTuple):
    """What one seed showed, in words."""

    seed: int
    kind: str
    messages: int
    operations: int
    violations: list[str]


def play(seed: int, late: float = 0.0) -> Outcome:
    """Run a seed in any process."""
    try:
        report = run(seed, scenario=_scenario(seed, late))
    except Exception:
        return Outcome(seed, "?", 0, 0, [f"the simulation itself stopped:\n{traceback.format_exc()}"])
    texts = [str(violation) for violation in report.violations]
    return Outcome(seed, report.scenario.kind, report.messages, report.trace.count, texts)


def _scenario(seed: int, late: float) -> Scenario:
    scenario = scenario_of(seed)
    return replace(scenario, faults=replace(scenario.faults, late=late))


def _outcomes(seeds: Iterable[int], jobs: int, late: float) -> Iterator[Outcome]:
    playing = partial(play, late=late)
    if jobs == 1:
        yield from map(playing, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(playing, seeds, chunksize=4)


def replay(seed: int, late: float = 0.0) -> int:
    """Print every operation and record of one seed, then what it broke."""
    report = run(seed, keep_trace=True, scenario=_scenario(seed, late))
    print(report.scenario)
    for line in report.trace.lines:
        print(line, end="")
    for record in report.history:
        print(record)
    print(f"seed {seed}: trace {report.trace.digest}, {len(report.violations)} violations")
    for violation in report.violations:
        print(violation)
    return 1 if report.violations else 0


def sweep(start: int, count: int, jobs: int, late: float = 0.0) -> int:
    """Play many seeds; returns the exit code."""
    how = f" --late {late:g}" if late else ""
    clock = SystemClock()
    began = clock.monotonic()
    failed = messages = operations = 0
    for done, outcome in enumerate(_outcomes(range(start, start + count), jobs, late), 1):
        messages += outcome.messages
        operations += outcome.operations
        if outcome.violations:
            failed += 1
            print(f"seed {outcome.seed} ({outcome.kind}) broke a promise:")
            for text in outcome.violations[:5]:
                print(f"  {text}")
            print(f"  replay it with: brigade-sim --replay {outcome.seed}{how}", flush=True)
        if done % 100 == 0 or done == count:
            rate = done / max(clock.monotonic() - began, 1e-9)
            print(
                f"{done} of {count} seeds, {messages} messages, {operations} operations, "
                f"{rate:.1f} seeds/s, {failed} failed",
                flush=True,
            )
    return 1 if failed else 0


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and play."""
    parser = argparse.ArgumentParser(prog="brigade-sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, metavar="N", help="how many seeds to play")
    parser.add_argument("--start", type=int, default=0, metavar="S", help="the first seed")
    parser.add_argument("--replay", type=int, metavar="SEED", help="play one seed and print its trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes to use")
    parser.add_argument(
        "--late",
        type=float,
        default=0.0,
        metavar="P",
        help="share of the writes answered with an unknown outcome that arrive only afterwards",
    )
    given = parser.parse_args(argv)
    if given.replay is not None:
        return replay(given.replay, given.late)
    return sweep(given.start, given.seeds, max(given.jobs, 1), given.late)


if __name__ == "__main__":
    # Under its own name: the pool's processes can't find functions of a module that is called `__main__`.
    from brigade.testing.sim.__main__ import main as named

    sys.exit(named())
