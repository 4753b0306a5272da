"""What one process remembers of one queue: policy, candidates, ledgers. A hint, never the truth."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import msgspec

from brigade.clock import FOREVER
from brigade.ids import Ids
from brigade.policy import QueuePolicy
from brigade.stores.bucket.book import Rules
from brigade.stores.bucket.keys import QueueKeys, SegmentName
from brigade.stores.bucket.wire import Entry, Lane, Ledger

__all__ = ["Decided", "Known", "KnownEntries", "KnownLane", "KnownLedger", "QueueView", "Tally"]

MOST_ENTRIES = 256
CROWDED = 16


class KnownLedger(msgspec.Struct):
    """A ledger as last seen. `etag` is None where only its existence is known; `next_at` is when to look again.

    `since` is when others were first seen to be busy with it.
    """

    etag: str | None
    ledger: Ledger | None
    next_at: int
    since: int = 0

    @property
    def busy(self) -> bool:
        """Whether others have just written it, and it has not been looked into since."""
        return self.etag is None


class KnownEntries(NamedTuple):
    """A segment's messages, as read under the account of that name."""

    account: str
    entries: list[Entry | None]


@dataclass(slots=True)
class KnownLane:
    """A lane as last seen."""

    etag: str | None
    lane: Lane | None
    next_at: int


class Decided(NamedTuple):
    """A message that failed with nobody holding it: its lease ran out for the last time, or its time was up."""

    ref: str
    reason: str
    error: str | None
    attempts: int
    dead_letter_queue: str | None


class Known(NamedTuple):
    """What is remembered at one moment."""

    ledgers: list[SegmentName]
    lanes: dict[str, KnownLane]
    unmoved: list[SegmentName]
    ended: list[SegmentName]


@dataclass(slots=True)
class Tally:
    """What the names of history files up to `after` add up to."""

    renew_at: int = 0
    after: str = ""
    succeeded: int = 0
    dead: int = 0


class QueueView:
    """One process's memory of one queue. Losing it costs requests and nothing else.

    `unmoved` are segments with failures still to be moved; `finished` are ledgers that this process made final
    and has yet to write to history; `ended` are segments that are over but may still be listed. `patience` is for
    how many milliseconds what others have just written is not looked into. `cursor` is where claims start: the
    head, unless others were faster lately; the more often that was, the further on, up to `crowd` places. `pledged` are
    segments whose first claim need not be durable at once.
    """

    def __init__(self, queue: str, policy: QueuePolicy) -> None:
        self.keys = QueueKeys(queue)
        self.policy = policy
        self.paused = False
        self.has_lanes = False
        self.announced_lanes = False
        self.listed_at: float | None = None
        self.next_due = FOREVER
        self.more_after: str | None = None
        self.candidates: list[SegmentName] = []
        self.patience = 0
        self.crowd = 0
        self.cursor: SegmentName | None = None
        self.pledged: set[SegmentName] = set()
        self.pledging: list[SegmentName] = []
        self.pledged_at = 0.0
        self.lone_claims = 0
        self.ledgers: dict[SegmentName, KnownLedger] = {}
        self.ledgers_before: dict[SegmentName, KnownLedger] = {}
        self.lanes: dict[str, KnownLane] = {}
        self.entries: dict[SegmentName, KnownEntries] = {}
        self.ended: set[SegmentName] = set()
        self.failures: list[Decided] = []
        self.tally = Tally()
        self.parked: dict[str, tuple[str, int]] = {}
        self.unmoved: dict[SegmentName, None] = {}
        self.finished: dict[SegmentName, Ledger] = {}

    @property
    def crowded(self) -> bool:
        """Whether so many others are at work that what was known a moment ago is most likely old."""
        return self.crowd > CROWDED

    def rules(self, name: SegmentName) -> Rules:
        """The policy as it applies to a segment. What was redriven is not subject to the queue's ttl again."""
        ttl = None if name.derived else self.policy.ttl
        return Rules.of(self.policy.failure, due=name.due, ttl=ttl, lifo=self.policy.ordering == "lifo")

    def add_candidate(self, name: SegmentName) -> None:
        """A segment that this process wrote or was told of: no listing is needed to find it."""
        if self.listed_at is None or name.lane:
            return
        place = bisect_left(self.candidates, name)
        if place == len(self.candidates) or self.candidates[place] != name:
            insort(self.candidates, name)

    def forget(self, name: SegmentName) -> None:
        """The segment has ended."""
        self.ledgers.pop(name, None)
        self.ledgers_before.pop(name, None)
        self.entries.pop(name, None)
        self.drop_candidate(name)

    def forget_ledgers_up_to(self, listed: str | None) -> None:
        """What was known before the listing is of use only behind the key that this has come to; None: the end."""
        if listed is None:
            self.ledgers_before = {}
        else:
            known = self.ledgers_before.items()
            self.ledgers_before = {name: one for name, one in known if self.keys.segment(name) > listed}

    def keep_entries(self, name: SegmentName, account: str, entries: list[Entry | None]) -> None:
        """Remember a segment's messages, within bounds: the ones read longest ago go first."""
        self.entries.pop(name, None)
        self.entries[name] = KnownEntries(account, entries)
        while len(self.entries) > MOST_ENTRIES:
            del self.entries[next(iter(self.entries))]

    def prune_entries(self) -> None:
        """Forget the messages of segments that are over: others have finished them."""
        alive = {entry.segment for known in self.lanes.values() if known.lane for entry in known.lane.entries}
        self.entries = {
            name: known
            for name, known in self.entries.items()
            if name in self.ledgers or name in self.finished or (name.lane and str(name) in alive)
        }

    def known(self) -> Known:
        """What is remembered now: only that may be forgotten after a listing that is about to begin."""
        return Known(list(self.ledgers), dict(self.lanes), list(self.unmoved), list(self.ended))

    def keep_only(
        self, known: Known, *, segments: Container[SegmentName], ledgers: Container[str], lanes: Container[str]
    ) -> None:
        """Forget what a full listing no longer has. Claims do so as they list; who only looks has to do it here."""
        for name in known.ledgers:
            if not name.lane and self.keys.ledger(name) not in ledgers:
                self.ledgers.pop(name, None)
        for lane, seen in known.lanes.items():
            if lane not in lanes and self.lanes.get(lane) is seen:
                del self.lanes[lane]
        for name in known.unmoved:
            if not self._has_account(name, ledgers):
                self.unmoved.pop(name, None)
        self.ended.difference_update([name for name in known.ended if name not in segments])

    def _has_account(self, name: SegmentName, ledgers: Container[str]) -> bool:
        if not name.lane:
            return self.keys.ledger(name) in ledgers
        lane = self.lanes.get(name.lane)
        return lane is not None and (lane.lane is None or any(one.segment == str(name) for one in lane.lane.entries))

    def drop_candidate(self, name: SegmentName) -> None:
        place = bisect_left(self.candidates, name)
        if place < len(self.candidates) and self.candidates[place] == name:
            del self.candidates[place]

    def after(self, name: SegmentName | None) -> Iterator[SegmentName]:
        """The candidates that come after `name`, or all. They must not change while this is read."""
        start = 0 if name is None else bisect_right(self.candidates, name)
        return islice(self.candidates, start, None)

    def skip(self, name: SegmentName | None, count: int) -> SegmentName | None:
        """The candidate `count` places further on; `name` where there are not that many."""
        place = (0 if name is None else bisect_right(self.candidates, name)) + count - 1
        return self.candidates[place] if count and place < len(self.candidates) else name

    def forget_all(self) -> None:
        """Forget everything that can be read again."""
        self.candidates, self.ledgers, self.ledgers_before = [], {}, {}
        self.lanes, self.entries, self.ended, self.parked = {}, {}, set(), {}
        self.tally = Tally()
        self.stale()

    def start(self, ids: Ids, now: int, limit: int) -> SegmentName | None:
        """Where a claim of `limit` starts among others: before some candidate near the head, of the head's priority.

        What is known to have nothing to give doesn't count, nor does what others with such a claim have taken whole.
        """
        near: list[int] = []
        for place, name in enumerate(self.candidates):
            known = self.ledgers.get(name)
            if known is not None and known.next_at > now and (not known.busy or name.size <= limit):
                continue
            if len(near) > self.crowd or (near and name.priority != self.candidates[near[0]].priority):
                break
            near.append(place)
        place = near[ids.below(len(near))] if near else 0
        return self.candidates[place - 1] if place else None

    def stale(self) -> None:
        """List again before the next claim."""
        self.listed_at = None
