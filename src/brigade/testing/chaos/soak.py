"""Mixed load without faults for a long time: is memory flat, and is anything left behind?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from brigade.testing.chaos.arenas import open_arena
from brigade.testing.chaos.roster import Roster
from brigade.testing.chaos.run import CREW, SLACK, Report, Say, conclude, set_up

__all__ = ["Growth", "SoakReport", "growth", "soak"]

MIB = 1 << 20
FLAT = 8 * MIB
SHARE = 0.10
"""Memory is flat if it grew over the second half by less than both a tenth and these bytes, whichever is more."""


class Growth(msgspec.Struct, frozen=True):
    """A process's memory over the second half of the run: where it stood, and what the line through it says."""

    name: str
    samples: int
    first_mib: float
    last_mib: float
    grew_mib: float
    flat: bool


class SoakReport(Report, kw_only=True):
    """A run without faults, and the memory of every process."""

    memory: list[Growth] = msgspec.field(default_factory=list[Growth])

    @property
    def ok(self) -> bool:
        return not self.violations and all(one.flat for one in self.memory)


def growth(name: str, samples: Sequence[tuple[float, int]]) -> Growth:
    """Least squares through the second half of the samples, each a moment and resident bytes."""
    half = list(samples[len(samples) // 2 :])
    count = len(half)
    mean_at = sum(at for at, _ in half) / count
    mean = sum(size for _, size in half) / count
    spread = sum((at - mean_at) ** 2 for at, _ in half)
    slope = sum((at - mean_at) * (size - mean) for at, size in half) / spread if spread else 0.0
    grew = slope * (half[-1][0] - half[0][0])
    return Growth(
        name,
        count,
        round(half[0][1] / MIB, 1),
        round(half[-1][1] / MIB, 1),
        round(grew / MIB, 2),
        grew < max(FLAT, SHARE * mean),
    )


def soak(
    name: str,
    folder: Path,
    *,
    seed: int,
    seconds: float,
    lease: float = 10.0,
    crew: Sequence[str] = CREW,
    every: float = 2.0,
    say: Say = lambda _text: None,
) -> SoakReport:
    """Run the crew on an arena, look at its memory every few seconds, drain and judge."""
    folder.mkdir(parents=True, exist_ok=True)
    samples: dict[str, list[tuple[float, int]]] = {}
    with open_arena(name, folder, seed, faults=False) as arena:
        set_up(arena, lease)
        roster = Roster(folder, arena.urls, crew, seed=seed, lease=lease, faults=False)
        try:
            for member in roster.members:
                roster.start(member)
            say(f"{name}: {len(crew)} processes, {seconds:g} s without faults, seed {seed}")
            begun = time.monotonic()
            while (now := time.monotonic() - begun) < seconds:
                for member, size in roster.memory().items():
                    samples.setdefault(member, []).append((now, size))
                roster.replace_dead()
                time.sleep(min(every, max(0.0, seconds - now)))
            roster.stop()
        finally:
            roster.kill_all()
        arena.calm()
        report = SoakReport(arena=name, seed=seed, seconds=seconds)
        conclude(arena, roster, folder, report, lease=lease, skew=SLACK)
    report.memory = [growth(member, taken) for member, taken in samples.items()]
    return report
