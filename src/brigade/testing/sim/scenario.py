"""What a seed stands for: the queues, who works on them, and what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from brigade.policy import Backoff, Failure, QueuePolicy
from brigade.testing.sim.faults import CALM, Faults

__all__ = ["DEAD_LETTERS", "JOBS", "KINDS", "Scenario", "scenario_of"]

JOBS = "jobs"
DEAD_LETTERS = "jobs_dead"
KINDS = ("fifo", "lifo", "strict", "groups", "own-ids", "hybrid", "retry", "ttl", "mix")
WEATHER = (
    CALM,
    Faults(slow=0.02),
    Faults(before=0.03, after=0.03, corrupt=0.02, slow=0.01, kill=0.002),
    Faults(before=0.08, after=0.08, corrupt=0.04, slow=0.03, kill=0.006),
    Faults(after=0.15, slow=0.01),
    Faults(before=0.02, after=0.02, slow=0.02, kill=0.02),
    Faults(before=0.02, after=0.04, corrupt=0.01, slow=0.02, kill=0.003, coma=0.004),
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run's cast. `duration` is how long everybody works, in virtual seconds; `busy` processes do everything."""

    seed: int
    kind: str
    policy: QueuePolicy
    faults: Faults
    skew_ms: int
    duration: float
    producers: tuple[int, ...]
    workers: tuple[int, ...]
    calls: int
    letters: QueuePolicy | None = None
    own_ids: float = 0.0
    groups: tuple[str, ...] = ()
    delays: float = 0.0
    ttls: float = 0.0
    limits: float = 0.0
    large: float = 0.0
    failing: float = 0.15
    busy: int = 0
    sweepers: int = 1
    sweep_every: float = 8.0
    redrivers: int = 0
    letter_workers: int = 0
    purgers: int = 0
    pausers: int = 0
    inspectors: int = 0
    conditional_delete: bool = True

    @property
    def lease(self) -> float:
        return self.policy.visibility_timeout

    @property
    def queues(self) -> dict[str, QueuePolicy]:
        """Every queue of the run by name."""
        return {JOBS: self.policy} if self.letters is None else {JOBS: self.policy, DEAD_LETTERS: self.letters}


def _maybe(rng: random.Random, chance: float, value: float) -> float:
    return value if rng.random() < chance else 0.0


def scenario_of(seed: int) -> Scenario:
    """The run that a seed stands for, always the same."""
    rng = random.Random(f"scenario {seed}")
    kind = KINDS[seed % len(KINDS)]
    faults = WEATHER[rng.randrange(len(WEATHER))]
    lease = rng.choice((1.0, 2.0, 5.0))
    duration = rng.uniform(10, 40)
    if faults.coma:
        duration = 7200.0
    mix = kind == "mix"
    dead = kind == "hybrid" or (mix and rng.random() < 0.5)
    failure = Failure(max_retries=rng.randrange(4))
    if dead:
        mode = rng.choice(("hybrid", "hybrid", "dead-letter"))
        failure = Failure(mode, max_retries=rng.randrange(3), dead_letter_queue=DEAD_LETTERS)
    policy = QueuePolicy(
        ordering="lifo" if kind == "lifo" or (kind in ("strict", "mix") and rng.random() < 0.3) else "fifo",
        ordering_guarantee=kind == "strict" or (mix and rng.random() < 0.15),
        visibility_timeout=lease,
        failure=failure,
        backoff=Backoff(base=rng.choice((0.0, 0.1, 1.0)), maximum=2.0),
        ttl=rng.choice((2.0, 10.0)) if kind == "ttl" or (mix and rng.random() < 0.2) else None,
        retention=4 * 3600.0,
        segment_messages=rng.choice((3, 10, 1000)),
    )
    letters = None
    if dead:
        letters = replace(QueuePolicy(), visibility_timeout=lease) if rng.random() < 0.7 else QueuePolicy()
    slowest = rng.uniform(0.5, 3) * lease * 1000
    return Scenario(
        seed=seed,
        kind=kind,
        policy=policy,
        faults=replace(faults, latency=rng.choice((1.0, 5.0, 25.0)), slowest=slowest),
        skew_ms=int(_maybe(rng, 0.7, rng.uniform(0, 2) * lease * 1000)),
        duration=duration,
        producers=tuple(rng.randint(1, 4) for _ in range(rng.randint(2, 6))),
        workers=tuple(rng.randint(1, 3) for _ in range(rng.randint(2, 8))),
        calls=rng.randint(1, 4),
        letters=letters,
        own_ids=0.7 if kind == "own-ids" else _maybe(rng, 0.3, 0.2),
        groups=tuple("abc"[: rng.randint(1, 3)]) if kind == "groups" or (mix and rng.random() < 0.5) else (),
        delays=_maybe(rng, 0.4, 0.3),
        ttls=0.3 if kind == "ttl" else _maybe(rng, 0.15, 0.2),
        limits=_maybe(rng, 0.3, 0.3),
        large=_maybe(rng, 0.3, 0.2),
        failing=rng.choice((0.0, 0.15, 0.5)) if kind not in ("retry", "hybrid") else rng.choice((0.3, 0.7)),
        busy=rng.choice((0, 0, 1, 2)),
        sweepers=rng.choice((0, 1, 1, 2)),
        sweep_every=600.0 if faults.coma else rng.choice((1.0, 8.0)),
        redrivers=rng.randint(1, 2) if kind in ("retry", "hybrid") else rng.choice((0, 0, 1)),
        letter_workers=int(dead and rng.random() < 0.5),
        purgers=int(rng.random() < 0.12),
        pausers=int(rng.random() < 0.12),
        inspectors=int(rng.random() < 0.2),
        conditional_delete=rng.random() < 0.75,
    )
