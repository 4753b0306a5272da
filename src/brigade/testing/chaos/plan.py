"""What every run has in common: the queues, their policies, and what a member of the crew is told to be."""

from __future__ import annotations

import msgspec

from brigade.policy import Backoff, Failure, QueuePolicy

__all__ = ["CALLERS", "FLEET", "JOBS", "LETTERS", "LINE", "ROLES", "Brief", "max_attempts", "policies"]

JOBS, LINE, LETTERS = "jobs", "line", "jobs_dead"
"""Plain messages and groups; one strict line; the dead letters of the jobs."""

CALLERS = "callers"
"""Threads that share a hub, and make plain calls."""

ROLES = ("producer", "consumer", CALLERS, "threads", "tasks", "processes")
"""Who is in a crew. The last three are workers, one for each kind of executor."""

FLEET = "fleet"
"""A Spark job: workers in Spark tasks, for machines that have Java."""


class Brief(msgspec.Struct, frozen=True, kw_only=True):
    """What one process is to do. `skew` is by how many milliseconds its clock is off; with `large` some payloads are
    stored apart."""

    role: str
    name: str
    number: int
    url: str
    journal: str
    seed: int
    parent: int
    lease: float
    skew: int = 0
    pause: float = 0.1
    backlog: int = 300
    faults: bool = True
    large: bool = False


def policies(lease: float) -> dict[str, QueuePolicy]:
    """Short leases and short waits, so that a minute sees many of them run out."""
    backoff = Backoff(base=0.05, maximum=0.3)
    return {
        LETTERS: QueuePolicy(visibility_timeout=lease, failure=Failure("retry", 3), backoff=backoff),
        JOBS: QueuePolicy(
            visibility_timeout=lease, failure=Failure("hybrid", 3, dead_letter_queue=LETTERS), backoff=backoff
        ),
        LINE: QueuePolicy(
            visibility_timeout=lease, ordering_guarantee=True, failure=Failure("retry", 3), backoff=backoff
        ),
    }


def max_attempts(lease: float) -> dict[str, int]:
    return {name: policy.failure.max_attempts for name, policy in policies(lease).items()}
