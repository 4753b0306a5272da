"""The lives of messages as the store saw them, and the rules that each step of a life must keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from brigade.testing.sim import records as r

__all__ = ["OPEN", "Life", "Lives", "Violation"]

OPEN = ("ready", "leased")
OUTCOMES = {"succeeded": "processed", "failed": "failed", "dead": "dead-lettered"}
LEGAL = {
    ("ready", "leased"): (),
    ("ready", "failed"): (),
    ("ready", "dead"): (),
    ("ready", "purged"): (),
    ("leased", "ready"): ("nacked", "released"),
    ("leased", "succeeded"): ("acked",),
    ("leased", "failed"): ("nacked", "expired"),
    ("leased", "dead"): ("nacked", "expired"),
}
"""Every change of state there may be, with the ends of a lease that may bring it about."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: which, when, and what was seen."""

    rule: str
    at: int
    text: str

    def __str__(self) -> str:
        return f"[{self.rule}] at {self.at}: {self.text}"


@dataclass(slots=True)
class Life:
    """One message under one name. Grants and ends are known by token; `place` numbers are positions in history."""

    born: r.Born
    state: str = "ready"
    token: str = ""
    expires: int = 0
    version: int = 0
    counted: int = 0
    appended: bool = False
    gone: bool = False
    parked: bool = False
    recorded: bool = False
    last_end: str = ""
    ended_at: int | None = None
    granted_at: dict[str, int] = field(default_factory=dict[str, int])
    ends: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def open(self) -> bool:
        return self.state in OPEN and not self.gone

    @property
    def what(self) -> str:
        return f"{self.born.ref} of {self.born.queue} (message {self.born.uid})"


class Lives:
    """Follows every message through what was applied in the store."""

    def __init__(self, limits: r.Limits, broken: Callable[[str, int, str], None]) -> None:
        self._limits = limits
        self._broken = broken
        self._of: dict[tuple[str, str], Life] = {}
        self.by_uid: dict[str, list[Life]] = {}
        self.lanes: dict[str, dict[str, int]] = {}
        self.unparked: Counter[tuple[str, bool]] = Counter()
        self.rules: dict[type, Callable[[Any, int], None]] = {
            r.Born: self._born,
            r.Gone: self._gone,
            r.Appended: self._appended,
            r.Granted: self._granted,
            r.Extended: self._extended,
            r.Ended: self._ended,
            r.Became: self._became,
            r.Closed: self._closed,
            r.Shuffled: self._shuffled,
            r.Parked: self._parked,
            r.Unparked: self._unparked,
            r.Recorded: self._recorded,
        }

    def get(self, queue: str, ref: str) -> Life | None:
        return self._of.get((queue, ref))

    def _born(self, record: r.Born, _: int) -> None:
        life = Life(record)
        same = self.by_uid.setdefault(record.uid, [])
        if (record.queue, record.ref) in self._of:
            self._broken("resurrected", record.at, f"{life.what} came back after its segment had gone")
        beside = [other for other in same if other.born.queue == record.queue]
        here = [other.born.ref for other in beside if other.open]
        letters = sum(other.born.origin is not None for other in beside)
        if record.origin is None and len(here) >= max(letters, 1):
            self._broken("made twice", record.at, f"{life.what} was made while {here} was still open")
        if not record.derived and record.own_id is None and any(not other.born.derived for other in same):
            self._broken("made twice", record.at, f"{life.what}: one enqueue made two messages")
        if not record.derived and record.own_id is not None:
            self._own_id(life)
        if record.origin is not None:
            dead = [other for other in same if other.born.queue == record.origin and other.state == "dead"]
            if len(dead) <= len(self.letters(record.uid, record.origin)):
                self._broken("decide first", record.at, f"{life.what} was dead-lettered without being decided")
        self._of[record.queue, record.ref] = life
        same.append(life)

    def _own_id(self, life: Life) -> None:
        """The user's own id has one message until that, or what was redriven of it, is purged."""
        wanted = (life.born.queue, life.born.own_id, False)
        for other in self._of.values():
            born = other.born
            if (born.queue, born.own_id, born.derived) != wanted:
                continue
            if not any(again.state == "purged" for again in self.by_uid[born.uid]):
                self._broken("own ids", life.born.at, f"{life.what} has the id {born.own_id!r} of {born.ref}")

    def letters(self, uid: str, origin: str) -> list[Life]:
        """The dead letters that were made of a message that failed in that queue."""
        return [life for life in self.by_uid.get(uid, ()) if life.born.origin == origin]

    def _gone(self, record: r.Gone, _: int) -> None:
        life = self.get(record.queue, record.ref)
        if life is None:
            return
        life.gone = True
        if life.born.lane and not life.appended:
            self._never_placed(life)
        elif life.state in OPEN:
            self._broken("G1", record.at, f"{life.what} was deleted while it was {life.state}")
        elif life.state != "purged" and not life.recorded:
            self._broken("history", record.at, f"{life.what} was deleted before history knew of it")
        elif life.state == "failed" and not life.parked:
            self._broken("G1", record.at, f"{life.what} was deleted before it was parked")
        elif life.state == "dead" and not self.letters(life.born.uid, life.born.queue):
            self._broken("G1", record.at, f"{life.what} was deleted before it was dead-lettered")

    def _never_placed(self, life: Life) -> None:
        """A segment that never joined its lane is as good as never written: nobody could claim from it."""
        del self._of[life.born.queue, life.born.ref]
        self.by_uid[life.born.uid].remove(life)
        if not self.by_uid[life.born.uid]:
            del self.by_uid[life.born.uid]

    def _appended(self, record: r.Appended, place: int) -> None:
        life = self.get(record.queue, record.ref)
        if life is not None:
            life.appended = True
            if not life.born.derived:
                self.lanes.setdefault(record.lane, {}).setdefault(life.born.uid, place)

    def _granted(self, record: r.Granted, place: int) -> None:
        life = self.get(record.queue, record.ref)
        if life is None or not record.present:
            return
        if life.ended_at is not None:
            self._broken("G3", record.at, f"{life.what} was claimed after it had {life.state}")
            return
        life.counted += 1
        most = life.born.max_attempts or self._limits.max_attempts[record.queue]
        claimed, attempt, version = record.claimed, record.attempt, record.version
        for rule, bad, text in (
            ("G2", life.token and claimed < life.expires, f"while it was leased until {life.expires}"),
            ("G2", claimed > record.at + self._limits.skew_ms, "in the future"),
            ("versions", version <= life.version, f"as version {version} after {life.version}"),
            ("due", claimed < record.due, f"before it was due at {record.due}"),
            ("G6", record.blocked_by is not None, f"while {record.blocked_by} was in its way"),
            ("G4", attempt != life.counted, f"as attempt {attempt}, but {life.counted} were counted"),
            ("attempts", attempt > most, f"as attempt {attempt} of {most}"),
        ):
            if bad:
                self._broken(rule, record.at, f"{life.what} was claimed at {claimed} {text}")
        life.token, life.expires, life.version = record.token, record.expires, version
        life.granted_at[record.token] = place

    def _extended(self, record: r.Extended, _: int) -> None:
        life = self.get(record.queue, record.ref)
        if life is None or life.gone:
            return
        if life.token != record.token:
            self._broken("G2", record.at, f"{life.what}: a lease that is not current was extended")
        life.expires = record.expires

    def _ended(self, record: r.Ended, _: int) -> None:
        life = self.get(record.queue, record.ref)
        if life is None or life.gone:
            return
        if record.how == "unlogged" or life.token != record.token:
            self._broken("G2", record.at, f"{life.what}: lease {record.token} ended without a word")
        if record.how == "released":
            life.counted -= 1
        if record.how != "expired":
            life.token = ""
        life.last_end = life.ends[record.token] = record.how

    def _became(self, record: r.Became, place: int) -> None:
        life = self.get(record.queue, record.ref)
        if life is None or life.gone:
            return
        what = f"{life.what} went from {record.was} to {record.now}"
        ends = LEGAL.get((record.was, record.now))
        if ends is None or life.state != record.was:
            self._broken("states", record.at, f"{what} when it was {life.state}")
        elif ends and life.last_end not in ends:
            self._broken("states", record.at, f"{what} by a lease that was {life.last_end}")
        elif record.was == "ready" and record.now in ("failed", "dead") and life.counted:
            self._broken("states", record.at, f"{what} after it had been claimed")
        if life.ended_at is None:
            life.state = record.now
            if record.now not in OPEN:
                life.token, life.ended_at = "", place

    def _closed(self, record: r.Closed, _: int) -> None:
        if record.present:
            text = f"the account of {record.segment} went while its segment was there"
            self._broken("order of deletes", record.at, text)

    def _shuffled(self, record: r.Shuffled, _: int) -> None:
        self._broken("G6", record.at, f"{record.lane} changed its order")

    def _parked(self, record: r.Parked, _: int) -> None:
        life = self.get(record.queue, record.ref)
        if life is None:
            return
        if life.parked:
            self._broken("made twice", record.at, f"{life.what} was parked twice")
        if life.state != "failed":
            self._broken("decide first", record.at, f"{life.what} was parked while it was {life.state}")
        life.parked = True

    def _unparked(self, record: r.Unparked, _: int) -> None:
        self.unparked[record.uid, record.redriven] += 1

    def _recorded(self, record: r.Recorded, _: int) -> None:
        life = self.get(record.queue, record.ref)
        if life is None:
            return
        life.recorded = True
        if OUTCOMES.get(life.state) != record.outcome:
            text = f"history says that {life.what} was {record.outcome}, but it was {life.state}"
            self._broken("history", record.at, text)
