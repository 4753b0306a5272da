"""Strict order: once a message of a line has been handed out, whatever lies before it has ended for good.

What lies before is known only where a call had returned before another began, or within one call. So a message
that is handed out again after a later one of its line was in somebody's hands breaks the order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from brigade.testing.chaos.journal import Merged
from brigade.testing.sim import records as r
from brigade.testing.sim.lives import Violation

__all__ = ["check"]

Line = tuple[str, str | None]
"""A strict queue, or a queue and a group."""


class _Enqueued(NamedTuple):
    """A message of a line. `meant` and `returned` are places in history; `nth` is its place in its call."""

    ref: str
    call: int
    nth: int
    meant: int
    returned: int


class _Claims:
    """When a message was in somebody's hands for the first time, and when the last claim of it began."""

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last


def check(merged: Merged, strict: Sequence[str]) -> list[Violation]:
    lines = _lines(merged, strict)
    claims: dict[tuple[str, str], _Claims] = {}
    for record, at, begun in zip(merged.records, merged.times, merged.begun, strict=True):
        if isinstance(record, r.Delivered):
            known = claims.setdefault((record.queue, record.ref), _Claims(at, begun))
            known.first, known.last = min(known.first, at), max(known.last, begun)
    return [violation for line, members in lines.items() for violation in _in_order(line, members, claims)]


def _lines(merged: Merged, strict: Sequence[str]) -> dict[Line, list[_Enqueued]]:
    """The messages of each line whose enqueue returned, in the order of their returns."""
    meant: dict[str, tuple[r.Intent, int, int]] = {}
    sizes: dict[int, int] = {}
    lines: dict[Line, list[_Enqueued]] = {}
    for place, record in enumerate(merged.records):
        if isinstance(record, r.Intent) and record.own_id is None:
            index = sizes[record.call] = sizes.get(record.call, -1) + 1
            meant[record.uid] = (record, place, index)
        elif isinstance(record, r.Returned) and record.uid in meant and not record.duplicate:
            intent, begun, index = meant[record.uid]
            if intent.group is not None or record.queue in strict:
                member = _Enqueued(record.ref, intent.call, index, begun, place)
                lines.setdefault((record.queue, intent.group), []).append(member)
    return lines


def _in_order(line: Line, members: Sequence[_Enqueued], claims: dict[tuple[str, str], _Claims]) -> Iterator[Violation]:
    """For each message, the earliest that anything behind it was handed out, against its own last claim.

    From the back, in the order in which calls returned: what began after this one returned is behind it.
    """
    queue, group = line
    behind = sorted(members, key=lambda member: member.meant)
    earliest: list[tuple[int, _Enqueued] | None] = [None] * (len(behind) + 1)
    for place in range(len(behind) - 1, -1, -1):
        known = claims.get((queue, behind[place].ref))
        best = earliest[place + 1]
        if known is not None and (best is None or known.first < best[0]):
            best = (known.first, behind[place])
        earliest[place] = best
    starts = [member.meant for member in behind]
    calls: dict[int, list[_Enqueued]] = {}
    for member in members:
        calls.setdefault(member.call, []).append(member)
    for member in members:
        own = claims.get((queue, member.ref))
        if own is None:
            continue
        for first, other in _candidates(member, starts, earliest, calls[member.call], claims, queue):
            if first < own.last:
                where = f"group {group} of {queue}" if group is not None else queue
                text = f"{member.ref} was claimed again after {other.ref}, which lies behind it in {where}"
                yield Violation("G6", 0, text)
                break


def _candidates(
    member: _Enqueued,
    starts: Sequence[int],
    earliest: Sequence[tuple[int, _Enqueued] | None],
    siblings: Sequence[_Enqueued],
    claims: dict[tuple[str, str], _Claims],
    queue: str,
) -> Iterator[tuple[int, _Enqueued]]:
    later = earliest[bisect_right(starts, member.returned)]
    if later is not None:
        yield later
    for other in siblings:
        known = claims.get((queue, other.ref))
        if known is not None and member.nth < other.nth:
            yield known.first, other
