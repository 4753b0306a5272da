"""Says whether a history keeps Brigade's promises. Knows nothing of how the history was made.

Clocks of clients may be off by a constant, so a claimer that is ahead may take a lease over before it has run
out by the store's clock. What is promised then is that there is one current token at any time and that an old
one changes nothing; that each takeover was due by the clock of whoever made it, which is off by no more than
the run allows; and so, with true clocks, that leases never overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from brigade.testing.sim import records as r

__all__ = ["Violation", "check"]

OPEN = ("ready", "leased")
OUTCOMES = {"succeeded": "processed", "failed": "failed", "dead": "dead-lettered"}
HOW = {"ack": "acked", "nack": "nacked", "release": "released"}
LEGAL = {
    ("ready", "leased"),
    ("ready", "failed"),
    ("ready", "dead"),
    ("ready", "purged"),
    ("leased", "ready"),
    ("leased", "succeeded"),
    ("leased", "failed"),
    ("leased", "dead"),
}
ENDS = {
    "ready": ("nacked", "released"),
    "leased": ("expired",),
    "succeeded": ("acked",),
    "failed": ("nacked", "expired"),
    "dead": ("nacked", "expired"),
}


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
    """One message under one name, as the store saw it."""

    born: r.Born
    state: str = "ready"
    token: str = ""
    expires: int = 0
    version: int = 0
    grants: int = 0
    released: int = 0
    appended: bool = False
    gone: bool = False
    parked: bool = False
    recorded: bool = False
    last_end: str = ""
    granted_at: dict[str, int] = field(default_factory=dict[str, int])
    ends: dict[str, str] = field(default_factory=dict[str, str])
    ended_at: int | None = None

    @property
    def open(self) -> bool:
        return self.state in OPEN and not self.gone


class _Check:
    def __init__(self, limits: r.Limits) -> None:
        self.limits = limits
        self.found: list[Violation] = []
        self.lives: dict[tuple[str, str], Life] = {}
        self.by_uid: dict[str, list[Life]] = {}
        self.intents: dict[str, r.Intent] = {}
        self.repeated: set[str] = set()
        self.meant_at: dict[str, int] = {}
        self.returned_at: dict[str, int] = {}
        self.lanes: dict[str, dict[str, int]] = {}
        self.returned: list[r.Returned] = []
        self.told: dict[tuple[str, str], list[r.Told]] = {}
        self.acked_at: dict[tuple[str, str], int] = {}
        self.versions: dict[tuple[str, str], dict[str, int]] = {}
        self.unparked: Counter[tuple[str, bool]] = Counter()
        self.witnessed = False
        self.place = 0

    def broken(self, rule: str, at: int, text: str) -> None:
        self.found.append(Violation(rule, at, text))

    def life(self, record: r.Became | r.Granted | r.Ended | r.Extended | r.Gone | r.Recorded) -> Life | None:
        return self.lives.get((record.queue, record.ref))

    def take(self, record: r.Record) -> None:
        match record:
            case r.Intent():
                if record.uid in self.intents:
                    self.repeated.add(record.uid)
                self.intents[record.uid] = record
                self.meant_at.setdefault(record.uid, self.place)
            case r.Returned():
                self.returned.append(record)
                self.returned_at.setdefault(record.uid, self.place)
            case r.Unsure():
                pass
            case r.Delivered():
                self.delivered(record)
            case r.Told():
                self.on_told(record)
            case r.Raised():
                self.broken("raised", record.at, f"{record.where} raised {record.error}")
            case r.Born():
                self.on_born(record)
            case r.Gone():
                self.on_gone(record)
            case r.Appended():
                found = self.lives.get((record.queue, record.ref))
                if found is not None:
                    found.appended = True
                    self.lanes.setdefault(record.lane, {}).setdefault(found.born.uid, self.place)
            case r.Granted():
                self.granted(record)
            case r.Extended():
                self.extended(record)
            case r.Ended():
                self.ended(record)
            case r.Became():
                self.became(record)
            case r.Closed():
                if record.present:
                    self.broken(
                        "order of deletes",
                        record.at,
                        f"the account of {record.segment} went while its segment was there",
                    )
            case r.Shuffled():
                self.broken("lane order", record.at, f"{record.lane} changed its order")
            case r.Parked():
                self.on_parked(record)
            case r.Unparked():
                self.unparked[record.uid, record.redriven] += 1
            case r.Recorded():
                self.on_recorded(record)
        self.place += 1

    def delivered(self, record: r.Delivered) -> None:
        key = (record.queue, record.ref)
        what = f"{record.ref} of {record.queue}"
        meant = self.intents.get(record.uid)
        if meant is None or meant.payload != record.payload:
            self.broken("payload", record.at, f"{what} was delivered with a payload that nobody enqueued")
        elif (meant.group, meant.priority) != (record.group, record.priority):
            self.broken("payload", record.at, f"{what} was delivered with another group or priority")
        if record.attempt > record.max_attempts:
            self.broken("attempts", record.at, f"{what}: attempt {record.attempt} of {record.max_attempts}")
        acked = self.acked_at.get(key)
        if acked is not None and acked < record.since:
            self.broken("G3", record.at, f"{what} was claimed after its ack had been answered")
        versions = self.versions.setdefault(key, {})
        if any(version == record.version and token != record.token for token, version in versions.items()):
            self.broken("versions", record.at, f"{what}: version {record.version} was given out twice")
        versions[record.token] = record.version
        life = self.lives.get(key)
        if life is None:
            return
        granted = life.granted_at.get(record.token)
        if granted is None:
            self.broken("G2", record.at, f"{what} was delivered under token {record.token}, never granted")
        elif life.ended_at is not None and granted > life.ended_at:
            self.broken("G3", record.at, f"{what} was delivered under a grant made after it had ended")

    def on_told(self, record: r.Told) -> None:
        key = (record.ref, record.token)
        self.told.setdefault(key, []).append(record)
        if record.kind == "ack" and record.answer == "ok":
            self.acked_at.setdefault((record.queue, record.ref), self.place)
        life = self.lives.get((record.queue, record.ref))
        how = HOW.get(record.kind)
        if life is None or how is None:
            return
        what = f"{record.kind} of {record.ref} under {record.token}"
        applied = life.ends.get(record.token)
        if record.answer == "ok" and applied != how:
            self.broken("G2", record.at, f"{what} was answered ok, but the store saw {applied}")
        if record.answer == "stale" and applied == how and len(self._ends_told(key)) == 1:
            self.broken("settle", record.at, f"{what} was answered stale, but it was applied")

    def _ends_told(self, key: tuple[str, str]) -> list[r.Told]:
        return [told for told in self.told[key] if told.kind in HOW]

    def on_born(self, record: r.Born) -> None:
        self.witnessed = True
        key = (record.queue, record.ref)
        what = f"{record.ref} of {record.queue} (message {record.uid})"
        if key in self.lives:
            self.broken("resurrected", record.at, f"{what} came back after its segment had gone")
        same = self.by_uid.setdefault(record.uid, [])
        open_here = [life.born.ref for life in same if life.open and life.born.queue == record.queue]
        if open_here and record.origin is None:
            self.broken("made twice", record.at, f"{what} was made while {open_here} was still open")
        if not record.derived and record.own_id is None and any(not life.born.derived for life in same):
            self.broken("made twice", record.at, f"{what}: one enqueue made two messages")
        if record.own_id is not None and not record.derived:
            mine = [
                life
                for life in self.lives.values()
                if life.born.own_id == record.own_id
                and life.born.queue == record.queue
                and not life.born.derived
                and life.state != "purged"
            ]
            if mine:
                self.broken("own ids", record.at, f"{what}: id {record.own_id!r} has {mine[0].born.ref} too")
        if record.origin is not None:
            dead = [life for life in same if life.born.queue == record.origin and life.state == "dead"]
            copies = [life for life in same if life.born.origin == record.origin]
            if len(dead) <= len(copies):
                self.broken("decide first", record.at, f"{what} was dead-lettered without being decided")
        life = self.lives[key] = Life(record)
        same.append(life)

    def on_gone(self, record: r.Gone) -> None:
        life = self.life(record)
        if life is None:
            return
        life.gone = True
        what = f"{record.ref} of {record.queue}"
        if life.state in OPEN:
            if not life.born.lane or life.appended:
                self.broken("G1", record.at, f"{what} was deleted while it was {life.state}")
        elif life.state != "purged" and not life.recorded:
            self.broken("history", record.at, f"{what} was deleted before history knew of it")
        elif life.state == "failed" and not life.parked:
            self.broken("G1", record.at, f"{what} was deleted before it was parked")
        elif life.state == "dead" and not self._letters(life):
            self.broken("G1", record.at, f"{what} was deleted before it was dead-lettered")

    def _letters(self, life: Life) -> list[Life]:
        return [other for other in self.by_uid[life.born.uid] if other.born.origin == life.born.queue]

    def granted(self, record: r.Granted) -> None:
        life = self.life(record)
        if life is None or not record.present:
            return
        what = f"{record.ref} of {record.queue}"
        if life.ended_at is not None:
            self.broken("G3", record.at, f"{what} was claimed after it had {life.state}")
            return
        if life.token and record.claimed < life.expires:
            self.broken(
                "G2",
                record.at,
                f"{what} was claimed at {record.claimed}, but leased until {life.expires}",
            )
        if record.claimed > record.at + self.limits.skew_ms:
            self.broken("G2", record.at, f"{what} was claimed at {record.claimed}, in the future")
        if record.version <= life.version:
            self.broken("versions", record.at, f"{what}: version {record.version} after {life.version}")
        if record.claimed < record.due:
            self.broken("due", record.at, f"{what} was claimed at {record.claimed}, due at {record.due}")
        if record.blocked_by is not None:
            self.broken("G6", record.at, f"{what} was claimed before {record.blocked_by} had ended")
        life.grants += 1
        counted = life.grants - life.released
        if record.attempt != counted:
            self.broken("G4", record.at, f"{what}: attempt {record.attempt}, but {counted} were counted")
        most = life.born.max_attempts or self.limits.max_attempts[record.queue]
        if record.attempt > most:
            self.broken("attempts", record.at, f"{what}: attempt {record.attempt} of {most}")
        life.token, life.expires, life.version = record.token, record.expires, record.version
        life.granted_at[record.token] = self.place

    def extended(self, record: r.Extended) -> None:
        life = self.life(record)
        if life is None or life.gone:
            return
        if life.token != record.token:
            self.broken("G2", record.at, f"{record.ref}: a lease that is not current was extended")
        life.expires = record.expires

    def ended(self, record: r.Ended) -> None:
        life = self.life(record)
        if life is None or life.gone:
            return
        if record.how == "unlogged" or life.token != record.token:
            self.broken("G2", record.at, f"{record.ref}: lease {record.token} ended without a word")
        if record.how == "released":
            life.released += 1
        if record.how != "expired":
            life.token = ""
        life.last_end = record.how
        life.ends[record.token] = record.how

    def became(self, record: r.Became) -> None:
        life = self.life(record)
        if life is None or life.gone:
            return
        what = f"{record.ref} of {record.queue} went from {record.was} to {record.now}"
        if life.state != record.was:
            self.broken("states", record.at, f"{what}, but it was {life.state}")
        if (record.was, record.now) not in LEGAL:
            self.broken("states", record.at, what)
        if record.was == "leased" and life.last_end not in ENDS[record.now]:
            self.broken("states", record.at, f"{what} by a lease that was {life.last_end}")
        if record.was == "ready" and record.now in ("failed", "dead") and life.grants > life.released:
            self.broken("states", record.at, f"{what} after it had been claimed")
        if life.ended_at is None:
            life.state = record.now
            if record.now not in OPEN:
                life.token = ""
                life.ended_at = self.place

    def on_parked(self, record: r.Parked) -> None:
        life = self.lives.get((record.queue, record.ref))
        if life is None:
            return
        if life.parked:
            self.broken("made twice", record.at, f"{record.ref} was parked twice")
        if life.state != "failed":
            self.broken("decide first", record.at, f"{record.ref} was parked while it was {life.state}")
        life.parked = True

    def on_recorded(self, record: r.Recorded) -> None:
        life = self.life(record)
        if life is None:
            return
        life.recorded = True
        if OUTCOMES.get(life.state) != record.outcome:
            self.broken("history", record.at, f"history says that {record.ref} was {record.outcome}, not {life.state}")

    def finish(self, final: r.Final) -> None:
        end = 0
        for text in final.stuck:
            self.broken("stuck", end, f"{text} could not be drained")
        for key in final.keys:
            self.broken("left behind", end, key)
        if self.witnessed:
            for receipt in self.returned:
                self._not_lost(receipt)
            for uid, lives in self.by_uid.items():
                self._conserved(uid, lives)
            for lane, places in self.lanes.items():
                self._in_order(lane, places)

    def _in_order(self, lane: str, places: dict[str, int]) -> None:
        """Messages of one call lie in a lane as they were given, and after those of calls that had returned."""
        latest: tuple[int, str] = (-1, "")
        last_of: dict[int, tuple[int, str]] = {}
        for uid in sorted(places, key=places.__getitem__):
            meant = self.meant_at.get(uid)
            if meant is None or uid not in self.returned_at or uid in self.repeated:
                continue
            call = self.intents[uid].call
            for before, other in (latest, last_of.get(call, (-1, ""))):
                limit = meant if other and self.intents[other].call == call else self.returned_at[uid]
                if other and limit < before:
                    self.broken("G6", self.intents[uid].at, f"{uid} lies after {other} in {lane}, but came first")
            last_of[call] = (meant, uid)
            latest = max(latest, (meant, uid))

    def _not_lost(self, receipt: r.Returned) -> None:
        life = self.lives.get((receipt.queue, receipt.ref))
        what = f"the enqueue of {receipt.uid} returned {receipt.ref}"
        if life is None:
            self.broken("G1", receipt.at, f"{what}, which was never there")
            return
        if not receipt.duplicate and life.born.uid != receipt.uid:
            self.broken("G1", receipt.at, f"{what}, which is message {life.born.uid}")
        if life.state == "purged" and not self.limits.purged:
            self.broken("G1", receipt.at, f"{what}, which was purged though nobody asked for it")

    def _conserved(self, uid: str, lives: list[Life]) -> None:
        """Every failure has its copy, and every redriven message is one that was parked or a dead letter."""
        at = lives[-1].born.at
        for life in lives:
            what = f"{life.born.ref} of {life.born.queue} (message {uid})"
            if life.state == "failed" and not life.parked:
                self.broken("G1", at, f"{what} failed but was not parked")
        dead = Counter(life.born.queue for life in lives if life.state == "dead")
        letters = Counter(life.born.origin for life in lives if life.born.origin is not None)
        if dead != letters:
            self.broken("G1", at, f"message {uid} was dead-lettered {letters}, decided {dead}")
        redriven = sum(life.born.derived and life.born.origin is None for life in lives)
        if not self.unparked[uid, True] <= redriven <= self.unparked[uid, True] + letters.total():
            self.broken(
                "G1",
                at,
                f"message {uid} left the parked {self.unparked[uid, True]} times and came back {redriven} times",
            )
        if self.unparked[uid, False] and not self.limits.purged:
            self.broken("G1", at, f"message {uid} was taken from the parked though nobody purged")


def check(history: Sequence[r.Record], limits: r.Limits, final: r.Final) -> list[Violation]:
    """Every broken promise, in the order in which they were broken."""
    checked = _Check(limits)
    for record in history:
        checked.take(record)
    checked.finish(final)
    return checked.found
