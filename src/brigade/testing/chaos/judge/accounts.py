"""Nothing is lost, nothing ends twice, and what clients were told is what the durable record says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from brigade.testing.chaos.journal import Merged
from brigade.testing.chaos.judge.ended import Ended
from brigade.testing.sim import records as r
from brigade.testing.sim.lives import Violation

__all__ = ["check", "in_history"]

Name = tuple[str, str]
"""A message: queue and ref."""


def in_history(merged: Merged, ended: Sequence[Ended]) -> list[Violation]:
    """What the durable record shows to whoever knows what was enqueued."""
    return [*_ends_once(ended), *_not_lost(merged, ended)]


def check(merged: Merged, ended: Sequence[Ended]) -> list[Violation]:
    """What it shows against what clients were told."""
    by_name: dict[Name, Ended] = {}
    for one in ended:
        by_name.setdefault((one.queue, one.ref), one)
    versions = {
        (record.queue, record.ref, record.token): record.version
        for record in merged.records
        if isinstance(record, r.Delivered)
    }
    return list(_as_told(merged, by_name, versions))


def _ends_once(ended: Sequence[Ended]) -> Iterator[Violation]:
    """History may have a record twice, but then it says the same."""
    by_name: dict[Name, Ended] = {}
    for one in ended:
        first = by_name.setdefault((one.queue, one.ref), one)
        what = f"{one.ref} of {one.queue} (message {one.uid})"
        if first.outcome != one.outcome:
            yield Violation("G3", 0, f"{what} ended as {first.outcome} and as {one.outcome}")
        if sum(held.how == "acked" for held in one.held) > 1:
            yield Violation("G3", 0, f"{what} was acked more than once: {one.held}")
        if one.counted > one.max_attempts:
            yield Violation("attempts", 0, f"{what} had {one.counted} attempts of {one.max_attempts}")


def _as_told(
    merged: Merged, by_name: dict[Name, Ended], versions: dict[tuple[str, str, str], int]
) -> Iterator[Violation]:
    """An ack that was answered ended its message, under its own lease, and no other did."""
    acked: dict[Name, str] = {}
    for record in merged.records:
        if not isinstance(record, r.Told) or (record.kind, record.answer) != ("ack", "ok"):
            continue
        name = (record.queue, record.ref)
        what = f"{record.ref} of {record.queue}"
        if acked.setdefault(name, record.token) != record.token:
            yield Violation("G2", record.at, f"{what} was acked under two leases, {acked[name]} and {record.token}")
            continue
        one = by_name.get(name)
        if one is None or one.outcome != "processed":
            said = "nothing" if one is None else one.outcome
            yield Violation("G3", record.at, f"{what}: its ack was answered, but history says {said}")
            continue
        version = versions.get((*name, record.token))
        last = max((held.version for held in one.held if held.how == "acked"), default=version)
        if version is not None and last != version:
            text = f"{what}: its ack was answered under version {version}, but history has it under {last}"
            yield Violation("G2", record.at, text)


def _not_lost(merged: Merged, ended: Sequence[Ended]) -> Iterator[Violation]:
    """Everything was acked in the end, as it was or as a dead letter: whatever was not has got lost."""
    done = {one.uid for one in ended if one.outcome == "processed"}
    for record in merged.records:
        if isinstance(record, r.Returned) and record.uid not in done:
            done.add(record.uid)
            text = f"the enqueue of {record.uid} into {record.queue} returned {record.ref}, which was never acked"
            yield Violation("G1", record.at, f"{text}: it is lost")
