"""One run: set up, let crew and nemesis loose, drain, and judge."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

import brigade
from brigade.testing.chaos.agreement import disagreements
from brigade.testing.chaos.arenas import Arena, open_arena
from brigade.testing.chaos.auditing import Audit, Audited, Request
from brigade.testing.chaos.journal import merge, read_journals
from brigade.testing.chaos.judge import Ended, judge
from brigade.testing.chaos.judge.recorded import Recorded
from brigade.testing.chaos.nemesis import SKEW, Nemesis
from brigade.testing.chaos.plan import LINE, ROLES, max_attempts, policies
from brigade.testing.chaos.roster import Roster
from brigade.testing.sim import records as r
from brigade.testing.sim.lives import Violation

__all__ = ["CREW", "Report", "Say", "chaos", "conclude", "request_of", "set_up"]

CREW = ("producer", "consumer", *ROLES)
"""Two producers, two consumers by hand, threads that call by themselves, and a worker of each kind."""

SLACK = 100
"""Milliseconds that clocks which agree may seem to differ."""

Say = Callable[[str], None]


class Report(msgspec.Struct, kw_only=True):
    """What a run was, what happened in it, and what is wrong."""

    arena: str
    seed: int
    seconds: float
    drained_in: float = 0.0
    messages: int = 0
    acked: int = 0
    records: int = 0
    witnessed: int = 0
    torn: int = 0
    operations: dict[str, int] = {}
    faults: dict[str, int] = {}
    died: dict[str, int] = {}
    violations: list[str] = []
    evidence: str | None = None
    recorded: Recorded | None = None
    audit: Audited | None = None

    @property
    def ok(self) -> bool:
        return not self.violations


def chaos(
    name: str,
    folder: Path,
    *,
    seed: int,
    seconds: float,
    lease: float = 2.0,
    every: float = 2.0,
    crew: Sequence[str] = CREW,
    audit: Audit | None = None,
    say: Say = lambda _text: None,
) -> Report:
    """Run the crew on an arena under the nemesis for some seconds, then drain and judge. With an `audit`, that looks
    at the same history on its own, and has to agree."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_arena(name, folder, seed) as arena:
        set_up(arena, lease)
        roster = Roster(folder, arena.urls, crew, seed=seed, lease=lease, large=arena.takes_large)
        nemesis = Nemesis(arena, roster, seed, lease=lease, every=every)
        try:
            for member in roster.members:
                roster.start(member)
            say(f"{name}: {len(crew)} processes, {seconds:g} s, seed {seed}")
            roster.wait_at_work()
            asyncio.run(nemesis.run(seconds))
            say(f"{name}: the nemesis rests, {nemesis.done.total()} faults")
            roster.stop()
        finally:
            roster.kill_all()
        arena.calm()
        report = Report(arena=name, seed=seed, seconds=seconds)
        report.faults = _sorted(nemesis.done + arena.faults)
        skew = 0 if arena.keeps_own_time else SKEW
        conclude(arena, roster, folder, report, lease=lease, skew=skew + SLACK, audit=audit)
    return report


def set_up(arena: Arena, lease: float) -> None:
    """Make the queues."""
    with brigade.connect(arena.url) as hub:
        for name, policy in policies(lease).items():
            hub.queue(name, policy)


def conclude(
    arena: Arena,
    roster: Roster,
    folder: Path,
    report: Report,
    *,
    lease: float,
    skew: int,
    audit: Audit | None = None,
) -> None:
    """Drain, read what is left, and judge; the report is filled in."""
    begun = time.monotonic()
    stuck = msgspec.json.decode(roster.do("drain", arena.drain_url), type=list[str])
    report.drained_in = round(time.monotonic() - begun, 1)
    ended = asyncio.run(arena.ended())
    lines, report.torn = read_journals(folder / "journals")
    witnessed = list(arena.witnessed)
    merged = merge(lines, witnessed)
    if audit is not None:
        report.audit = audit(request_of(arena.drain_url, folder, merged.records, skew))
    roster.do("sweep", arena.drain_url)
    final = r.Final(stuck, asyncio.run(arena.left()))
    verdict = judge(merged, ended, r.Limits(max_attempts(lease), skew_ms=skew), final, strict=[LINE])
    violations = [
        *verdict.violations,
        *(Violation("crew", 0, f"{count} times {text}") for text, count in roster.died.items()),
        *(Violation("orphans", 0, text) for text in roster.left_running()),
    ]
    if report.audit is not None:
        report.recorded = verdict.recorded
        differing = disagreements(verdict.recorded, verdict.told, report.audit)
        violations += [Violation("agreement", 0, text) for text in differing]
    report.messages, report.acked, report.records = verdict.messages, verdict.acked, verdict.records
    report.witnessed = len(witnessed)
    report.operations = _sorted(merged.operations)
    report.died = dict(roster.died)
    report.violations = [str(violation) for violation in violations]
    if violations:
        report.evidence = str(_write_evidence(folder, merged.records, ended, report))


def request_of(url: str, folder: Path, records: Iterable[r.Record], skew: int) -> Request:
    """What the audit is told: the messages that producers know of, and that two clocks may be off, one each way."""
    expected = sorted({one.ref for one in records if isinstance(one, r.Returned)})
    return Request(url=url, folder=str(folder), expected=expected, slack=2 * skew / 1000)


def _write_evidence(folder: Path, records: Sequence[r.Record], ended: Sequence[Ended], report: Report) -> Path:
    """Everything that is known, in the order of time, for whoever has to find out why."""
    path = folder / "evidence.jsonl"
    encoder = msgspec.json.Encoder()
    with path.open("wb") as file:
        for one in (*report.violations, *records, *ended):
            file.write(encoder.encode(one) + b"\n")
    return path


def _sorted(counted: Counter[str]) -> dict[str, int]:
    return dict(sorted(counted.items()))
