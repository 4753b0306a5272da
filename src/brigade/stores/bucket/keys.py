"""Where everything lies in the bucket. Every key is built here, from checked names only.

q/<queue>/policy.json                      the policy
q/<queue>/seg/!paused, seg/!lanes          flags that every candidate listing shows for free
q/<queue>/seg/<p>/<order>-<uid>-<n>        segments; p = priority digit (0 first)
q/<queue>/led/<p>/<order>-<uid>-<n>        their ledgers
q/<queue>/lane/<lane>                      lanes: ordered segments of a strict queue or a group, with leases
q/<queue>/lseg/<lane>/<order>-<uid>-<n>    the segments of a lane
q/<queue>/failed/<segment>-<move>          parked failures
q/<queue>/blob/<message>                   payloads too large for a segment
q/<queue>/state/<message>                  workflow state
q/<queue>/ids/<hash>                       markers of messages enqueued under the user's own id
q/<queue>/hist/date=<date>/<time>-<uid>-<counts>.jsonl.gz
q/<queue>/bulk/<segment>                   staged segments: written by a bulk job, seen when it is published
q/<queue>/note/<hash>                      notes: what a stream has leased
q/<queue>/job/<hash>                       what a bulk job has decided to publish, and whether that is done
auth/token/<id>                            tokens of servers, hashed
corrupt/<key>                              damaged objects, set aside
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple, cast

from brigade.clock import FOREVER
from brigade.ids import Ids, digest
from brigade.names import check_queue_name

__all__ = ["TOKENS", "QueueKeys", "SegmentName", "lane_name", "parse_message_ref"]

TOKENS = "auth/token/"
STRICT_LANE = "0" * 16
_SEGMENT = re.compile(r"(?:([0-9])|g([0-9a-f]{16}))-([0-9]{14})-([0-9a-f]{16}[flFLd][ps])-([0-9]{1,5})")
_LANE = re.compile(r"[0-9a-f]{16}")
_DAY = re.compile(r"date=[0-9]{4}-[0-9]{2}-[0-9]{2}")
_HISTORY = re.compile(r"([0-9]{14})-([0-9a-f]+)-([0-9]+)s([0-9]+)f([0-9]+)d\.jsonl\.gz")


_named = cast("Callable[[type[SegmentName], tuple[int, str, int, str, int]], SegmentName]", tuple.__new__)
"""Makes a name in half the time that its constructor takes."""


def lane_name(group: str | None) -> str:
    """The key name of a group's lane; None is the one lane of a strict queue."""
    return STRICT_LANE if group is None else digest("group", group)


class SegmentName(NamedTuple):
    """A segment's name says where it lies, when it is due, how many messages it has and whether it is special.

    `uid` is a sequence number within the millisecond, randomness, then two letters. The first: `f` or `l` for
    the direction of time (lifo counts it backwards), `d` for a derived name: a step that may be repeated makes
    the same one, so the segment is voided, not deleted, when it ends, and the sweeper takes the void away an
    hour later. `F` and `L` are `f` and `l` of a staged segment, whose messages lie under `bulk/`. The second:
    `p` plain, or `s` special: some message has its own due time, ttl, attempts or id, so a claimer reads the
    segment before it makes the ledger.
    """

    priority: int
    lane: str
    order: int
    uid: str
    size: int

    @classmethod
    def make(
        cls,
        ids: Ids,
        *,
        now: int,
        due: int,
        priority: int,
        lane: str,
        size: int,
        lifo: bool,
        special: bool,
        staged: bool = False,
    ) -> SegmentName:
        moment, sequence = ids.tick(now)
        order = max(due, moment)
        if lifo:
            order, sequence = FOREVER - order, 0xFFFF - sequence
        direction = "fFlL"[2 * lifo + staged]
        uid = f"{sequence:04x}{ids.bits(48):012x}{direction}{'s' if special else 'p'}"
        return cls(priority, lane, order, uid, size)

    @classmethod
    def derive(cls, *parts: str, at: int, priority: int, lane: str, size: int, special: bool = False) -> SegmentName:
        """A name that follows from the parts, so that whoever repeats the step makes the same one."""
        uid = f"0000{digest(*parts, size=6)}d{'s' if special else 'p'}"
        return cls(priority, lane, at, uid, size)

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(text: str) -> SegmentName | None:
        found = _SEGMENT.fullmatch(text)
        if found is None:
            return None
        priority, lane, order, uid, size = found.groups()
        return SegmentName(int(priority or 0), lane or "", int(order), uid, int(size))

    def __str__(self) -> str:
        priority, lane, order, uid, size = self
        return f"g{lane}-{order:014d}-{uid}-{size}" if lane else f"{priority}-{order:014d}-{uid}-{size}"

    @property
    def lifo(self) -> bool:
        return self.uid[-2] in "lL"

    @property
    def staged(self) -> bool:
        return self.uid[-2] in "FL"

    @property
    def derived(self) -> bool:
        return self.uid[-2] == "d"

    @property
    def special(self) -> bool:
        return self.uid[-1] == "s"

    @property
    def due(self) -> int:
        """When its earliest message is due, in milliseconds."""
        return FOREVER - self.order if self.lifo else self.order


def parse_message_ref(ref: str) -> tuple[SegmentName, int] | None:
    """A message's segment and index from its generated id; None where it isn't one."""
    if ref.endswith("-1-0"):
        name = SegmentName.parse(ref[:-2])
        return None if name is None else (name, 0)
    head, _, tail = ref.rpartition("-")
    name = SegmentName.parse(head)
    if name is None or not tail.isascii() or not tail.isdigit() or len(tail) > 5 or int(tail) >= name.size:
        return None
    return name, int(tail)


class HistoryName(NamedTuple):
    """A history file's name: when it was written and how many messages ended how."""

    key: str
    at: int
    succeeded: int
    failed: int
    dead: int

    @classmethod
    def parse(cls, key: str) -> HistoryName | None:
        found = _HISTORY.fullmatch(key.rpartition("/")[2])
        if found is None:
            return None
        at, _, succeeded, failed, dead = found.groups()
        return cls(key, int(at), int(succeeded), int(failed), int(dead))


class QueueKeys:
    """The keys of one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = check_queue_name(queue)
        self.root = f"q/{queue}/"
        self.policy = f"{self.root}policy.json"
        self.segments = f"{self.root}seg/"
        self.ledgers = f"{self.root}led/"
        self.lanes = f"{self.root}lane/"
        self.lane_segments = f"{self.root}lseg/"
        self.failed = f"{self.root}failed/"
        self.blobs = f"{self.root}blob/"
        self.states = f"{self.root}state/"
        self.markers = f"{self.root}ids/"
        self.history = f"{self.root}hist/"
        self.bulk = f"{self.root}bulk/"
        self.jobs = f"{self.root}job/"
        self.notes = f"{self.root}note/"
        self.folders = (
            self.segments,
            self.ledgers,
            self.lanes,
            self.lane_segments,
            self.failed,
            self.blobs,
            self.states,
            self.markers,
            self.history,
            self.bulk,
            self.jobs,
            self.notes,
        )
        self.paused_flag = f"{self.segments}!paused"
        self.lanes_flag = f"{self.segments}!lanes"

    def segment(self, name: SegmentName) -> str:
        """What shows that the segment is there: itself, or, where it was staged and is in no lane, a stub."""
        if name.lane and name.staged:
            return self.staged(name)
        if name.lane:
            return f"{self.lane_segments}{name.lane}/{name.order:014d}-{name.uid}-{name.size}"
        return f"{self.segments}{name.priority}/{name.order:014d}-{name.uid}-{name.size}"

    def for_plain(self, ids: Ids, now: int, priority: int, *, lifo: bool) -> tuple[SegmentName, str, str]:
        """For one message that is due now and has nothing special about it: a name, the message's id, the key."""
        order, sequence = ids.tick(now)
        if lifo:
            order, sequence = FOREVER - order, 0xFFFF - sequence
        uid = f"{sequence << 48 | ids.bits(48):016x}{'lp' if lifo else 'fp'}"
        text = f"{order:014d}-{uid}-1"
        name = _named(SegmentName, (priority, "", order, uid, 1))
        return name, f"{priority}-{text}-0", f"{self.segments}{priority}/{text}"

    def segment_of(self, ref: str) -> str:
        """The segment of a message that is alone in it, in no lane and was not staged."""
        return f"{self.segments}{ref[0]}/{ref[2:-2]}"

    def ledger(self, name: SegmentName) -> str:
        """The object that records the segment's leases: a ledger of its own, or its lane."""
        if name.lane:
            return self.lanes + name.lane
        return f"{self.ledgers}{name.priority}/{name.order:014d}-{name.uid}-{name.size}"

    def contents(self, name: SegmentName) -> str:
        """The object that has the segment's messages."""
        return self.staged(name) if name.staged else self.segment(name)

    def staged(self, name: SegmentName) -> str:
        return f"{self.bulk}{name}"

    def job(self, job: str) -> str:
        return self.jobs + digest("job", job, size=16)

    def note(self, name: str) -> str:
        return self.notes + digest("note", name, size=16)

    def lane(self, lane: str) -> str:
        return self.lanes + lane

    def blob(self, ref: str) -> str:
        return self.blobs + ref

    def state(self, ref: str) -> str:
        return self.states + ref

    def marker(self, own_id: str) -> str:
        return self.markers + digest("id", own_id, size=16)

    def parked(self, name: SegmentName, move: int) -> str:
        return f"{self.failed}{name}-m{move}"

    def history_file(self, at: int, uid: str, *, succeeded: int, failed: int, dead: int) -> str:
        day = datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d")
        return f"{self.history}date={day}/{at:014d}-{uid}-{succeeded}s{failed}f{dead}d.jsonl.gz"

    def history_after(self, at: int) -> str:
        """A key that comes before every history file written at `at` or later."""
        day = datetime.fromtimestamp(max(at, 0) / 1000, UTC).strftime("%Y-%m-%d")
        return f"{self.history}date={day}/{max(at, 0):014d}"

    def has_history(self, key: str) -> bool:
        """Whether this is a history file of this queue, and no key that leads elsewhere."""
        day, _, name = key.removeprefix(self.history).partition("/")
        return key.startswith(self.history) and bool(_DAY.fullmatch(day) and _HISTORY.fullmatch(name))

    def has_lane(self, lane: str) -> bool:
        """Whether this is the name of a lane."""
        return bool(_LANE.fullmatch(lane))

    def has_parked(self, key: str) -> bool:
        """Whether this is where parked failures of this queue lie."""
        name, _, move = key.removeprefix(self.failed).rpartition("-m")
        return key.startswith(self.failed) and move.isdecimal() and SegmentName.parse(name) is not None

    def parse(self, key: str) -> SegmentName | None:
        """The segment whose segment, staged segment or ledger key this is."""
        for prefix in (self.segments, self.ledgers):
            if key.startswith(prefix):
                return SegmentName.parse(key[len(prefix) :].replace("/", "-", 1))
        if key.startswith(self.lane_segments):
            return SegmentName.parse("g" + key[len(self.lane_segments) :].replace("/", "-", 1))
        if key.startswith(self.bulk):
            return SegmentName.parse(key[len(self.bulk) :])
        return None


def corrupt_key(key: str) -> str:
    return f"corrupt/{key}"
