"""What each process writes down as it goes, so that it survives SIGKILL, and how journals become one history.

A line is one write to a file: the call, its begin and end by the monotonic clock, which all processes of a machine
share, and the records that the checker knows. What a call was about to do is written before it, what it was told
after it: a process that dies in between leaves the first without the second.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from brigade.testing.sim import records as r

__all__ = ["Journal", "Line", "Merged", "merge", "read_journals", "wall_ms"]


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of one process. `begun` and `at` are nanoseconds by the monotonic clock; `count` is what it is about."""

    who: str
    op: str
    at: int
    begun: int = 0
    count: int = 1
    records: list[r.Record] = []


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Journal:
    """One process's journal. Every thread may write."""

    def __init__(self, path: str, who: str) -> None:
        self.who = who
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._writing = threading.Lock()

    def write(self, op: str, records: Sequence[r.Record] = (), *, begun: int = 0, count: int | None = None) -> None:
        line = Line(
            who=self.who,
            op=op,
            at=time.monotonic_ns(),
            begun=begun,
            count=len(records) if count is None else count,
            records=list(records),
        )
        with self._writing:
            os.write(self._file, _encoder.encode(line) + b"\n")


def read_journals(folder: Path) -> tuple[list[Line], int]:
    """Every line of every journal, and how many were torn by the death of their writer."""
    lines: list[Line] = []
    torn = 0
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_bytes().splitlines():
            try:
                lines.append(_decoder.decode(text))
            except msgspec.DecodeError:
                torn += 1
    return lines, torn


class Merged(msgspec.Struct):
    """The history of a run: records in the order of time, with the moment and the begin of the call of each."""

    records: list[r.Record]
    times: list[int]
    begun: list[int]
    operations: Counter[str]


def merge(lines: Iterable[Line], witnessed: Sequence[tuple[int, r.Record]] = ()) -> Merged:
    """One history of all journals and of what a witness saw. `since` is set from the begin of each claim."""
    found: list[tuple[int, int, r.Record]] = [(at, at, record) for at, record in witnessed]
    operations: Counter[str] = Counter()
    for line in lines:
        operations[line.op] += line.count
        found += [(line.at, line.begun or line.at, record) for record in line.records]
    found.sort(key=lambda entry: entry[0])
    times = [at for at, _, _ in found]
    records = [
        replace(record, since=bisect_left(times, begun)) if isinstance(record, r.Delivered) else record
        for _, begun, record in found
    ]
    return Merged(records, times, [begun for _, begun, _ in found], operations)
