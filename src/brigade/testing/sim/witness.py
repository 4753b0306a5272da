"""Sees every write at the moment it is applied, and tells what it meant: grants, ends, births, moves.

It decodes what was there and what is there now, and derives records from the difference: independent of what
any client believes it did.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from brigade.stores.bucket.book import LEASED, READY, Book, from_runs
from brigade.stores.bucket.history import read_records
from brigade.stores.bucket.keys import QueueKeys, SegmentName
from brigade.stores.bucket.past import log_of
from brigade.stores.bucket.wire import LANE, LEDGER, PARKED, SEGMENT, Entry, Lane, Ledger, Parked
from brigade.testing.sim import records as r

__all__ = ["Witness"]

_NAMES = ("ready", "leased", "succeeded", "failed", "dead", "purged")


@functools.lru_cache(4096)
def _parse(segment: str) -> SegmentName | None:
    return SegmentName.parse(segment)


class Witness:
    """Turns applied writes into records. `present` are the messages whose segments are there now."""

    def __init__(self, emit: Callable[[r.Record], None]) -> None:
        self._emit = emit
        self._keys: dict[str, QueueKeys] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._lanes: dict[str, Lane] = {}
        self._parked: dict[str, Parked] = {}
        self._segments: dict[tuple[str, str], list[Entry | None]] = {}
        self._at = 0

    def wrote(self, key: str, body: bytes | None, at: int) -> None:
        """An object was written, or deleted where `body` is None."""
        parts = key.split("/", 3)
        if len(parts) < 4 or parts[0] != "q":
            return
        _, queue, area, _ = parts
        self._at = at
        keys = self._keys.setdefault(queue, QueueKeys(queue))
        match area:
            case "seg" | "lseg":
                name = keys.parse(key)
                if name is not None:
                    self._segment(queue, name, key, body)
            case "led":
                name = keys.parse(key)
                if name is not None:
                    self._ledger(queue, name, key, body)
            case "lane":
                self._lane(queue, key, body)
            case "failed":
                self._failed(queue, key, body)
            case "hist":
                for record in read_records(body) if body else ():
                    self._emit(r.Recorded(at=at, queue=queue, ref=record.ref, outcome=record.outcome))
            case _:
                pass

    def is_present(self, queue: str, segment: str) -> bool:
        return (queue, segment) in self._segments

    def present(self, queue: str) -> list[str]:
        """The segments that hold messages, and the objects that hold parked failures."""
        parked = [key for key, value in self._parked.items() if any(value.entries)]
        prefix = f"q/{queue}/"
        return [name for owner, name in self._segments if owner == queue] + [
            key for key in parked if key.startswith(prefix)
        ]

    def _segment(self, queue: str, name: SegmentName, key: str, body: bytes | None) -> None:
        found = SEGMENT.decode(body, key=key) if body is not None else None
        before = self._segments.pop((queue, str(name)), None)
        if before is not None:
            for place, entry in enumerate(before):
                if entry is not None:
                    self._emit(r.Gone(at=self._at, queue=queue, ref=f"{name}-{place}"))
        if found is None or found.void:
            return
        self._segments[queue, str(name)] = found.entries
        for place, entry in enumerate(found.entries):
            if entry is None:
                continue
            self._emit(
                r.Born(
                    at=self._at,
                    queue=queue,
                    ref=f"{name}-{place}",
                    uid=entry.correlation or "",
                    own_id=entry.own_id,
                    max_attempts=entry.max_attempts,
                    derived=name.derived,
                    lane=bool(name.lane),
                    origin=entry.failure.queue if entry.failure else None,
                )
            )

    def _ledger(self, queue: str, name: SegmentName, key: str, body: bytes | None) -> None:
        if body is None:
            if self._ledgers.pop(key, None) is not None:
                self._close(queue, str(name))
            return
        new = LEDGER.decode(body, key=key)
        old = self._ledgers.get(key) or _blank(name, new)
        self._ledgers[key] = new
        self._compare(queue, name, old, new, None)

    def _close(self, queue: str, segment: str) -> None:
        present = self.is_present(queue, segment)
        self._emit(r.Closed(at=self._at, queue=queue, segment=segment, present=present))

    def _lane(self, queue: str, key: str, body: bytes | None) -> None:
        old = self._lanes.pop(key, None)
        new = LANE.decode(body, key=key) if body is not None else None
        before = {entry.segment: entry for entry in old.entries} if old else {}
        after = {entry.segment: entry for entry in new.entries} if new else {}
        if new is not None:
            self._lanes[key] = new
        for segment in before:
            if segment not in after:
                self._close(queue, segment)
        kept = [segment for segment in before if segment in after]
        added = [segment for segment in after if segment not in before]
        if list(after) != kept + added or (new is not None and len(after) != len(new.entries)):
            self._emit(r.Shuffled(at=self._at, queue=queue, lane=key))
        for segment, entry in after.items():
            name = _parse(segment)
            assert name is not None
            if segment in added:
                for place in range(name.size):
                    self._emit(r.Appended(at=self._at, queue=queue, ref=f"{segment}-{place}", lane=key))
            was = before[segment].ledger if segment in before else None
            if entry.ledger is not None and entry.ledger is not was:
                self._compare(queue, name, was or _blank(name, entry.ledger), entry.ledger, new)

    def _compare(self, queue: str, name: SegmentName, old: Ledger, new: Ledger, lane: Lane | None) -> None:
        if old.states == new.states and old.leases == new.leases and old.grants == new.grants:
            return
        old_rows, new_rows = memoryview(old.leases).cast("H"), memoryview(new.leases).cast("H")
        attempts = memoryview(new.attempts).cast("H")
        ends = _ends(new) - _ends(old)
        present = self.is_present(queue, str(name))
        for place, (was, now) in enumerate(zip(old.states, new.states, strict=True)):
            held = old.grants[old_rows[place]] if was == LEASED else None
            holds = new.grants[new_rows[place]] if now == LEASED else None
            ref = f"{name}-{place}"
            if held and holds and held.token == holds.token:
                if held.expires != holds.expires:
                    self._emit(r.Extended(at=self._at, queue=queue, ref=ref, token=held.token, expires=holds.expires))
                continue
            if held is not None:
                hows = [how for version, how, index in ends if index == place and version == held.version]
                how = hows[0] if len(hows) == 1 else "unlogged"
                self._emit(r.Ended(at=self._at, queue=queue, ref=ref, token=held.token, how=how))
            if was != now:
                self._emit(r.Became(at=self._at, queue=queue, ref=ref, was=_NAMES[was], now=_NAMES[now]))
            if holds is not None:
                self._emit(
                    r.Granted(
                        at=self._at,
                        queue=queue,
                        ref=ref,
                        token=holds.token,
                        version=holds.version,
                        attempt=attempts[place],
                        claimed=holds.claimed,
                        expires=holds.expires,
                        due=Book(old).due_at(place),
                        present=present,
                        blocked_by=None if lane is None else _in_the_way(lane, str(name), place, holds.claimed),
                    )
                )

    def _failed(self, queue: str, key: str, body: bytes | None) -> None:
        old = self._parked.pop(key, None)
        new = PARKED.decode(body, key=key) if body is not None else None
        if new is not None:
            self._parked[key] = new
        refs = new.refs if new else old.refs if old else []
        for place, ref in enumerate(refs):
            was = old.entries[place] if old else None
            now = new.entries[place] if new else None
            if was is None and now is not None:
                self._emit(r.Parked(at=self._at, queue=queue, ref=ref, uid=now.correlation or ""))
            elif was is not None and now is None:
                redriven = old is not None and place in old.moving
                uid = was.correlation or ""
                self._emit(r.Unparked(at=self._at, queue=queue, ref=ref, uid=uid, redriven=redriven))


def _blank(name: SegmentName, like: Ledger) -> Ledger:
    return Book.fresh(name.size, like.specs).close("")


def _ends(ledger: Ledger) -> set[tuple[int, str, int]]:
    return {(end.version, end.how, place) for end in log_of(ledger).ends for place in from_runs(end.runs)}


def _in_order(lane: Lane) -> Iterator[tuple[str, int, int, int]]:
    """Segment, place, state and lease expiry of each message of a lane, in the order of delivery."""
    step = -1 if lane.lifo else 1
    for entry in lane.entries[::step]:
        name = _parse(entry.segment)
        assert name is not None
        ledger = entry.ledger or Book.fresh(name.size, entry.specs).close("")
        rows = memoryview(ledger.leases).cast("H")
        for place in range(name.size)[::step]:
            state = ledger.states[place]
            yield entry.segment, place, state, ledger.grants[rows[place]].expires if state == LEASED else 0


def _in_the_way(lane: Lane, segment: str, place: int, claimed: int) -> str | None:
    """A message that should have ended before this one is handed out, or that is leased beside it."""
    ahead = True
    for other, index, state, expires in _in_order(lane):
        if (other, index) == (segment, place):
            ahead = False
        elif (ahead and state in (READY, LEASED)) or expires > claimed:
            return f"{other}-{index}"
    return None
