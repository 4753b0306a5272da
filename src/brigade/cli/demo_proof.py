"""The demo's proof: history is read as any program could read it, and compared with what was enqueued."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brigade.cli.demo_crew import Crew
from brigade.model import MessageInfo

__all__ = ["Proof", "prove"]


@dataclass(frozen=True, slots=True)
class Proof:
    """What came out, beside what went in."""

    enqueued: int
    processed: int
    dead_lettered: int
    lost: int
    twice: int
    letters: int
    retried: int
    killed: str | None
    left_behind: int
    recovered: int
    requests: int
    seconds: float

    @property
    def holds(self) -> bool:
        """Every id exactly once in history, every dead letter in its queue, and what the killed one held, too."""
        return (
            self.lost == 0
            and self.twice == 0
            and self.enqueued == self.processed + self.dead_lettered
            and self.letters == self.dead_lettered
            and self.killed is not None
            and self.recovered > 0
        )

    def summary(self) -> dict[str, Any]:
        return {
            "enqueued": self.enqueued,
            "processed": self.processed,
            "dead_lettered": self.dead_lettered,
            "lost": self.lost,
            "ended_twice": self.twice,
            "retried": self.retried,
            "killed": self.killed,
            "leases_left_behind": self.left_behind,
            "leases_recovered": self.recovered,
            "requests_per_message": round(self.requests / self.enqueued, 4),
            "seconds": round(self.seconds, 2),
            "nothing_lost": self.holds,
        }


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Every record in the folder: gzipped JSON lines."""
    records: list[dict[str, Any]] = []
    for file in sorted(folder.rglob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            records += map(json.loads, lines)
    return records


def _but_the_last(record: dict[str, Any]) -> list[dict[str, Any]]:
    return record["attempts"][:-1]


def prove(
    history: Path, ids: Sequence[str], letters: Sequence[MessageInfo], crew: Crew, *, requests: int, seconds: float
) -> Proof:
    """Compare the ids that were enqueued with the ids that ended."""
    records = read_history(history)
    ended = Counter(record["id"] for record in records)
    outcomes = Counter(record["outcome"] for record in records)
    killed = crew.victim.name if crew.victim else None
    expired = sum(
        attempt["how"] == "expired" and attempt["owner"] == killed
        for record in records
        for attempt in record["attempts"]
    )
    return Proof(
        enqueued=len(ids),
        processed=outcomes["processed"],
        dead_lettered=outcomes["dead-lettered"],
        lost=len(set(ids) - set(ended)),
        twice=sum(count - 1 for count in ended.values()) + len(set(ended) - set(ids)),
        letters=len({letter.failure.id for letter in letters if letter.failure} & set(ids)),
        retried=sum(attempt["how"] == "nacked" for record in records for attempt in _but_the_last(record)),
        killed=killed,
        left_behind=crew.left_behind,
        recovered=expired,
        requests=requests,
        seconds=seconds,
    )
