"""Says whether a history keeps Brigade's promises. Knows nothing of how the history was made.

Clocks of clients may be off by a constant, so a claimer that is ahead may take a lease over before it has run
out by the store's clock. What is promised then is that there is one current token at any time and that an old
one changes nothing; that each takeover was due by the clock of whoever made it, which is off by no more than
the run allows; and so, with true clocks, that leases never overlap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from brigade.testing.sim import records as r
from brigade.testing.sim.lives import OPEN, Life, Lives, Violation

__all__ = ["Violation", "check"]

HOW = {"ack": "acked", "nack": "nacked", "release": "released"}


def check(history: Sequence[r.Record], limits: r.Limits, final: r.Final) -> list[Violation]:
    """Every broken promise: first those seen on the way, then those seen at the end."""
    found: list[Violation] = []

    def broken(rule: str, at: int, text: str) -> None:
        found.append(Violation(rule, at, text))

    lives = Lives(limits, broken)
    clients = _Clients(lives, broken)
    rules = lives.rules | clients.rules
    for place, record in enumerate(history):
        rules[type(record)](record, place)
    for text in final.stuck:
        broken("stuck", 0, f"{text} could not be drained")
    for key in final.keys:
        broken("left behind", 0, key)
    if lives.by_uid:
        _Accounts(lives, clients, limits, broken).check()
    return found


class _Clients:
    """What clients were told, held against what the store saw where that is known."""

    def __init__(self, lives: Lives, broken: Callable[[str, int, str], None]) -> None:
        self._lives = lives
        self._broken = broken
        self.intents: dict[str, r.Intent] = {}
        self.meant_at: dict[str, int] = {}
        self.repeated: set[str] = set()
        self.returned: list[r.Returned] = []
        self.returned_at: dict[str, int] = {}
        self._told: Counter[tuple[str, str]] = Counter()
        self._acked_at: dict[tuple[str, str], int] = {}
        self._versions: dict[tuple[str, str, int], str] = {}
        self.rules: dict[type, Callable[[Any, int], None]] = {
            r.Intent: self._intent,
            r.Returned: self._returned,
            r.Unsure: lambda _record, _place: None,
            r.Delivered: self._delivered,
            r.Told: self._settled,
            r.Raised: self._raised,
        }

    def _intent(self, record: r.Intent, place: int) -> None:
        if record.uid in self.intents:
            self.repeated.add(record.uid)
        self.intents[record.uid] = record
        self.meant_at.setdefault(record.uid, place)

    def _returned(self, record: r.Returned, place: int) -> None:
        self.returned.append(record)
        self.returned_at.setdefault(record.uid, place)

    def _raised(self, record: r.Raised, _: int) -> None:
        self._broken("raised", record.at, f"{record.where} raised {record.error}")

    def _delivered(self, record: r.Delivered, _: int) -> None:
        key = (record.queue, record.ref)
        what = f"{record.ref} of {record.queue} (message {record.uid})"
        meant = self.intents.get(record.uid)
        if meant is None or meant.payload != record.payload:
            self._broken("payload", record.at, f"{what} was delivered with a payload that nobody enqueued")
        elif (meant.group, meant.priority) != (record.group, record.priority):
            self._broken("payload", record.at, f"{what} was delivered with another group or priority")
        if record.attempt > record.max_attempts:
            self._broken("attempts", record.at, f"{what}: attempt {record.attempt} of {record.max_attempts}")
        if self._acked_at.get(key, record.since) < record.since:
            self._broken("G3", record.at, f"{what} was claimed after its ack had been answered")
        if self._versions.setdefault((*key, record.version), record.token) != record.token:
            self._broken("versions", record.at, f"{what}: version {record.version} was given out twice")
        life = self._lives.get(*key)
        if life is None:
            return
        granted = life.granted_at.get(record.token)
        if granted is None:
            self._broken("G2", record.at, f"{what} was delivered under a token that was never granted")
        elif life.ended_at is not None and granted > life.ended_at:
            self._broken("G3", record.at, f"{what} was delivered under a grant made after it had ended")

    def _settled(self, record: r.Told, place: int) -> None:
        if record.kind == "ack" and record.answer == "ok":
            self._acked_at.setdefault((record.queue, record.ref), place)
        how = HOW.get(record.kind)
        life = self._lives.get(record.queue, record.ref)
        if how is None or life is None:
            return
        self._told[record.ref, record.token] += 1
        applied = life.ends.get(record.token)
        what = f"{record.kind} of {life.what} under {record.token}"
        if record.answer == "ok" and applied != how:
            self._broken("G2", record.at, f"{what} was answered ok, but the store saw {applied or 'nothing'}")
        if record.answer == "stale" and applied == how and self._told[record.ref, record.token] == 1:
            self._broken("settle", record.at, f"{what} was answered stale, but it was applied")


class _Accounts:
    """The end of a run: what was promised on the way must add up."""

    def __init__(
        self, lives: Lives, clients: _Clients, limits: r.Limits, broken: Callable[[str, int, str], None]
    ) -> None:
        self._lives = lives
        self._clients = clients
        self._limits = limits
        self._broken = broken

    def check(self) -> None:
        for receipt in self._clients.returned:
            self._not_lost(receipt)
        for uid, lives in self._lives.by_uid.items():
            self._adds_up(uid, lives)
        for lane, places in self._lives.lanes.items():
            self._in_order(lane, places)

    def _not_lost(self, receipt: r.Returned) -> None:
        """What an enqueue returned for was there, was the message that was meant, and ended: not purged unasked."""
        life = self._lives.get(receipt.queue, receipt.ref)
        what = f"the enqueue of {receipt.uid} returned {receipt.ref}"
        if life is None:
            self._broken("G1", receipt.at, f"{what}, which was never there")
            return
        if life.state in OPEN:
            self._broken("G1", receipt.at, f"{what}, which is {'lost' if life.gone else life.state}")
        if life.born.uid != receipt.uid and not receipt.duplicate:
            self._broken("G1", receipt.at, f"{what}, which is message {life.born.uid}")
        if life.state == "purged" and not self._limits.purged:
            self._broken("G1", receipt.at, f"{what}, which was purged though nobody asked for it")

    def _adds_up(self, uid: str, lives: list[Life]) -> None:
        """Every failure has its one copy, and whatever came back was a parked failure or a dead letter."""
        at = lives[-1].born.at
        for life in lives:
            if life.state == "failed" and not life.parked:
                self._broken("G1", at, f"{life.what} failed but was not parked")
        dead = Counter(life.born.queue for life in lives if life.state == "dead")
        letters = Counter(life.born.origin for life in lives if life.born.origin is not None)
        if dead != letters:
            self._broken("G1", at, f"message {uid} was dead-lettered {dict(letters)}, decided {dict(dead)}")
        redriven = sum(life.born.derived and life.born.origin is None for life in lives)
        left = self._lives.unparked[uid, True]
        if not left <= redriven <= left + letters.total():
            self._broken("G1", at, f"message {uid} was redriven {left} times and came back {redriven} times")
        if self._lives.unparked[uid, False] and not self._limits.purged:
            self._broken("G1", at, f"message {uid} was parked and purged though nobody asked for it")

    def _in_order(self, lane: str, places: dict[str, int]) -> None:
        """Messages of one call lie in a lane as they were given, and after those of calls that had returned."""
        clients = self._clients
        latest = (-1, "")
        last_of: dict[int, tuple[int, str]] = {}
        for uid in sorted(places, key=places.__getitem__):
            if uid not in clients.returned_at or uid in clients.repeated:
                continue
            meant, call = clients.meant_at[uid], clients.intents[uid].call
            before, other = last_of.get(call, (-1, ""))
            if meant < before:
                text = f"{uid} lies after {other} in {lane}, but was given before it in the same call"
                self._broken("G6", clients.intents[uid].at, text)
            if clients.returned_at[uid] < latest[0]:
                text = f"{uid} lies after {latest[1]} in {lane}, but had been enqueued before that began"
                self._broken("G6", clients.intents[uid].at, text)
            last_of[call] = (meant, uid)
            latest = max(latest, (meant, uid))
