"""A ledger, opened: pure decisions about claims and settlements. No I/O; `now` is an argument.

A `Book` is made from a stored `Ledger`, changed, and closed into a new `Ledger` that is swapped in. What may
become of a message is asked of `brigade.machine`; this module only keeps the account.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

import msgspec

from brigade.clock import FOREVER, to_ms
from brigade.machine import Event, State, step
from brigade.policy import Failure
from brigade.stores.bucket.past import log_of, pack, shorten
from brigade.stores.bucket.wire import End, GrantRow, Ledger, Move, Spec

__all__ = [
    "DEAD",
    "FAILED",
    "LEASED",
    "PURGED",
    "READY",
    "SUCCEEDED",
    "Book",
    "Rules",
    "Won",
    "places_in",
    "state_of",
    "to_runs",
]

READY, LEASED, SUCCEEDED, FAILED, DEAD, PURGED = range(6)
_STATES = (State.READY, State.IN_FLIGHT, State.SUCCEEDED, State.FAILED, State.FAILED, State.ABSENT)
PACK = 128
"""Grants and ends that are at hand in a ledger, before those that are over are packed."""
MOST_CHUNKS = 64
_IS_LEASED = bytes(code == LEASED for code in range(256))


def state_of(code: int) -> State:
    """The machine's name for a state code of a ledger."""
    return _STATES[code]


def to_runs(members: Iterable[int]) -> list[int]:
    """Indices as start, length, start, length, …: a batch of a thousand is two numbers."""
    runs: list[int] = []
    for member in members:
        if runs and member == runs[-2] + runs[-1]:
            runs[-1] += 1
        else:
            runs += (member, 1)
    return runs


def from_runs(runs: Sequence[int]) -> Iterator[int]:
    for start, length in zip(runs[::2], runs[1::2], strict=True):
        yield from range(start, start + length)


def places_in(states: bytes | bytearray, code: int) -> Iterator[int]:
    """The messages in that state. It may be changed of those that were told."""
    place = states.find(code)
    while place >= 0:
        yield place
        place = states.find(code, place + 1)


class Rules(msgspec.Struct, frozen=True, gc=False):
    """What a decision needs of the policy. `lapse` is when the ttl of a message that is due at `due` is over."""

    max_attempts: int
    dead_letter_queue: str | None
    lapse: int | None
    lifo: bool
    due: int = 0

    @classmethod
    def of(cls, failure: Failure, *, due: int, ttl: float | None, lifo: bool) -> Rules:
        lapse = None if ttl is None else due + to_ms(ttl)
        return cls(failure.max_attempts, failure.dead_letter_queue, lapse, lifo, due)


class Won(msgspec.Struct, frozen=True):
    """The messages that a claim took, with their attempt counts, and which of them a lease had run out on."""

    row: GrantRow
    members: list[int]
    attempts: list[int]
    max_attempts: list[int]
    recovered: list[int]


class Book:
    """The account of one segment's messages."""

    def __init__(self, ledger: Ledger) -> None:
        self.version = ledger.version
        self.final = ledger.final
        self.states = bytearray(ledger.states)
        self.attempts = array("H", ledger.attempts)
        self.leases = array("H", ledger.leases)
        self.grants = list(ledger.grants)
        self.ends = list(ledger.ends)
        self.due = dict(ledger.due)
        self.specs = ledger.specs
        self.reasons = dict(ledger.reasons)
        self.moves = list(ledger.moves)
        self.results = dict(ledger.results)
        self.born = ledger.born
        self.past = ledger.past
        self.changed = False
        self.stored_moves = len(self.moves)

    @classmethod
    def fresh(cls, count: int, specs: list[Spec] | None = None, *, version: int = 0) -> Book:
        """The account of a segment that nobody has claimed from."""
        states = bytearray(count)
        for place, spec in enumerate(specs or ()):
            if spec.hole:
                states[place] = PURGED
        empty = bytes(2 * count)
        return cls(Ledger("", version, False, bytes(states), empty, empty, [], [], {}, specs))

    def close(self, nonce: str) -> Ledger:
        """The ledger to store."""
        if len(self.grants) + len(self.ends) >= PACK:
            self._pack()
        return Ledger(
            nonce,
            self.version,
            self.final,
            bytes(self.states),
            self.attempts.tobytes(),
            self.leases.tobytes(),
            self.grants,
            self.ends,
            self.due,
            self.specs,
            self.reasons,
            self.moves,
            self.results,
            self.born or nonce,
            self.past,
        )

    def max_attempts(self, place: int, rules: Rules) -> int:
        own = self.specs[place].max_attempts if self.specs else None
        return own or rules.max_attempts

    def due_at(self, place: int) -> int:
        later = self.due.get(place)
        if later is not None:
            return later
        return self.specs[place].due if self.specs else 0

    def settled(self) -> bool:
        """Whether every message has ended, moves included."""
        return READY not in self.states and LEASED not in self.states and all(move.done for move in self.moves)

    def next_change(self, now: int, rules: Rules) -> int:
        """When, at the latest known, something here may be claimed or must be decided; `FOREVER` if never."""
        soonest = FOREVER
        if LEASED in self.states:
            soonest = min(self.grants[row].expires for row in self._live())
        if READY not in self.states:
            return soonest
        if not self.specs and len(self.due) < self.states.count(READY):
            return now
        for place in self._places(READY):
            soonest = min(soonest, self.due_at(place))
        return soonest

    def claim(
        self,
        *,
        limit: int,
        now: int,
        expires: int,
        token: str,
        owner: str,
        rules: Rules,
        only: Sequence[int] | None = None,
        early: bool = False,
    ) -> Won | None:
        """Take up to `limit` claimable messages, head first, and decide those that are spent or have lapsed.

        `only` restricts the claim to these messages: the head of a lane, or those that somebody has chosen. With
        `early` they need not be due.
        """
        self._lapse(now, rules)
        expired = {row for row in self._live() if self.grants[row].expires <= now}
        members: list[int] = []
        lost: list[int] = []
        spent: list[int] = []
        if only is None and not self.grants and not self.specs and not self.due and READY in self.states:
            whole = len(self.states)
            if self.states.count(READY) == whole:
                taken = range(whole)[: -limit - 1 : -1] if rules.lifo else range(whole)[:limit]
                row = GrantRow(self.version + 1, token, owner, now, expires)
                return self._grant(list(taken), [], row, rules) if limit else None
        places: Iterable[int] = range(len(self.states)) if only is None else only
        if only is None and not expired:
            places = self._places(READY)
        for place in reversed(list(places)) if rules.lifo else places:
            if len(members) == limit and not expired:
                break
            state = self.states[place]
            if state == READY:
                if (early or self.due_at(place) <= now) and len(members) < limit:
                    members.append(place)
            elif state == LEASED and self.leases[place] in expired:
                row = step(
                    State.IN_FLIGHT,
                    Event.EXPIRE,
                    attempts=self.attempts[place],
                    max_attempts=self.max_attempts(place, rules),
                )
                if row.to is State.FAILED:
                    spent.append(place)
                elif len(members) < limit:
                    lost.append(place)
                    members.append(place)
        for place in lost + spent:
            grant = self.grants[self.leases[place]]
            self._log(grant.version, "expired", grant.expires, place)
        self._fail(spent, now, rules, "lease expired", None)
        if not members:
            return None
        return self._grant(members, lost, GrantRow(self.version + 1, token, owner, now, expires), rules)

    def share(self, won: Won, takers: Sequence[tuple[str, str]]) -> list[Won]:
        """Part what was just claimed among its takers, a token and an owner for each message: a grant for each taker.

        The claim was made under the first token; a taker whose grant is new has a version of its own.
        """
        parts: dict[tuple[str, str], list[int]] = {}
        for number, taker in zip(range(len(won.members)), takers, strict=False):
            parts.setdefault(taker, []).append(number)
        if len(parts) == 1:
            return [won]
        several: list[Won] = []
        for (token, owner), numbers in parts.items():
            row = won.row
            if token != row.token:
                self.version += 1
                row = GrantRow(self.version, token, owner, row.claimed, row.expires)
                self.grants.append(row)
                for number in numbers:
                    self.leases[won.members[number]] = len(self.grants) - 1
            members = [won.members[number] for number in numbers]
            several.append(
                Won(
                    row,
                    members,
                    [won.attempts[number] for number in numbers],
                    [won.max_attempts[number] for number in numbers],
                    [place for place in won.recovered if place in members],
                )
            )
        return several

    def holds(self, place: int, token: str) -> bool:
        """Whether the token is the current one of that message."""
        return self.states[place] == LEASED and self.grants[self.leases[place]].token == token

    def held_by(self, token: str) -> list[int]:
        """The messages whose current token it is."""
        rows = {row for row, grant in enumerate(self.grants) if grant.token == token}
        return [place for place in self._places(LEASED) if self.leases[place] in rows] if rows else []

    def ended_by(self, place: int, token: str, how: str) -> bool:
        """Whether the lease with that token ended that way: tells a lost answer from a lost race."""
        log = log_of(self)
        versions = {grant.version for grant in log.grants if grant.token == token}
        return any(
            end.version in versions and end.how == how and place in from_runs(end.runs) for end in reversed(log.ends)
        )

    def ack(self, places: Sequence[int], now: int) -> None:
        to = step(State.IN_FLIGHT, Event.ACK).to
        code = _STATES.index(to)
        for row, members in self._by_row(places).items():
            self.ends.append(End(self.grants[row].version, "acked", now, to_runs(members)))
        for place in places:
            self.states[place] = code
            self.leases[place] = 0
            if self.due:
                self.due.pop(place, None)
        self.changed = True

    def nack(self, place: int, *, now: int, due: int, error: str | None, reject: bool, rules: Rules) -> State:
        """Fail one attempt: back to ready while attempts are left, unless it is rejected."""
        limit = 0 if reject else self.max_attempts(place, rules)
        row = step(State.IN_FLIGHT, Event.NACK, attempts=self.attempts[place], max_attempts=limit)
        self._log(self.grants[self.leases[place]].version, "nacked", now, place, error)
        if row.to is State.FAILED:
            self._fail([place], now, rules, "rejected" if reject else "failed", error)
        else:
            self._ready(place, due)
        return row.to

    def give_back(self, place: int, *, now: int, due: int, error: str | None = None) -> State:
        """Return a message without counting the attempt."""
        row = step(State.IN_FLIGHT, Event.RELEASE)
        self._log(self.grants[self.leases[place]].version, "released", now, place, error)
        self.attempts[place] = max(self.attempts[place] + row.attempts, 0)
        self._ready(place, due)
        return row.to

    def extend(self, places: Sequence[int], expires: int) -> None:
        """Move the expiry of these leases. Where they are all that is left of their grant, its row moves."""
        for row, members in self._by_row(list(dict.fromkeys(places))).items():
            grant = self.grants[row]
            moved = GrantRow(grant.version, grant.token, grant.owner, grant.claimed, expires)
            if self._leases().count(row) == len(members):
                self.grants[row] = moved
                continue
            self.grants.append(moved)
            for place in members:
                self.leases[place] = len(self.grants) - 1
        self.changed = True

    def purge(self) -> int:
        """Drop every ready message; returns how many."""
        places = list(self._places(READY))
        for place in places:
            self.states[place] = PURGED
            self.due.pop(place, None)
        self.changed = self.changed or bool(places)
        return len(places)

    def drop(self, place: int) -> bool:
        """Drop one message, if it waits."""
        if self.states[place] != READY:
            return False
        self.states[place] = PURGED
        self.due.pop(place, None)
        self.changed = True
        return True

    def hasten(self, place: int, now: int) -> bool:
        """Make one message due that waits for its next attempt."""
        if self.states[place] != READY or self.due.get(place, 0) <= now:
            return False
        self.due[place] = now
        self.changed = True
        return True

    def unmoved(self) -> list[int]:
        """The numbers of the moves that are decided but not done."""
        return [number for number, move in enumerate(self.moves) if not move.done]

    def moved(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            move = self.moves[number]
            if not move.done:
                self.moves[number] = Move(move.at, move.target, move.members, True)
                self.changed = True

    def finalize(self) -> bool:
        """Mark the ledger final if every message has ended; returns whether it is final now."""
        if not self.final and self.settled():
            self.final = self.changed = True
        return self.final

    def _by_row(self, places: Sequence[int]) -> dict[int, list[int]]:
        rows: dict[int, list[int]] = {}
        for place in places:
            rows.setdefault(self.leases[place], []).append(place)
        return rows

    def _leases(self) -> list[int]:
        """The grants' rows of all that is leased, one a message."""
        return list(compress(self.leases, self.states.translate(_IS_LEASED)))

    def _live(self) -> set[int]:
        """The rows of grants under which something is leased."""
        return set(self._leases())

    def _places(self, code: int) -> Iterator[int]:
        return places_in(self.states, code)

    def _lapse(self, now: int, rules: Rules) -> None:
        if rules.lapse is None and self.specs is None:
            return
        lapsed: list[int] = []
        for place in self._places(READY):
            limit = rules.lapse
            if self.specs:
                spec = self.specs[place]
                later = max(0, spec.due - rules.due)
                limit = spec.lapse if spec.lapse is not None else None if limit is None else limit + later
            if limit is not None and limit <= now and self.attempts[place] == 0:
                lapsed.append(place)
        if lapsed:
            step(State.READY, Event.LAPSE)
            self._fail(lapsed, now, rules, "expired", None)

    def _grant(self, members: list[int], lost: list[int], row: GrantRow, rules: Rules) -> Won:
        added = step(State.READY, Event.CLAIM).attempts
        self.version = row.version
        self.grants.append(row)
        number = len(self.grants) - 1
        for place in members:
            self.states[place] = LEASED
            self.attempts[place] += added
            self.leases[place] = number
            if self.due:
                self.due.pop(place, None)
        self.changed = True
        attempts = [self.attempts[place] for place in members]
        if self.specs is None:
            limits = [rules.max_attempts] * len(members)
        else:
            limits = [self.max_attempts(place, rules) for place in members]
        return Won(row, members, attempts, limits, lost)

    def _ready(self, place: int, due: int) -> None:
        self.states[place] = READY
        self.leases[place] = 0
        self.due[place] = due
        self.changed = True

    def _fail(self, places: Sequence[int], now: int, rules: Rules, reason: str, error: str | None) -> None:
        if not places:
            return
        code = FAILED if rules.dead_letter_queue is None else DEAD
        for place in places:
            self.states[place] = code
            self.leases[place] = 0
            self.due.pop(place, None)
            self.reasons[place] = (reason, error)
        self.changed = True
        if len(self.moves) > self.stored_moves and self.moves[-1].target == rules.dead_letter_queue:
            self.moves[-1] = Move(now, rules.dead_letter_queue, [*self.moves[-1].members, *places])
        else:
            self.moves.append(Move(now, rules.dead_letter_queue, list(places)))

    def _log(self, version: int, how: str, at: int, place: int, error: str | None = None) -> None:
        last = self.ends[-1] if self.ends else None
        if last and last.version == version and last.how == how and last.at == at and last.error == error:
            runs = last.runs
            runs = [*runs[:-1], runs[-1] + 1] if place == runs[-2] + runs[-1] else [*runs, place, 1]
            self.ends[-1] = End(version, how, at, runs, error)
        else:
            self.ends.append(End(version, how, at, [place, 1], error))
        self.changed = True

    def _pack(self) -> None:
        """Put away what is over, where it is much. Rows under which something is leased stay."""
        rows = sorted(self._live())
        live = [self.grants[row] for row in rows]
        versions = {grant.version for grant in live}
        over = [grant for grant in self.grants if grant.version not in versions]
        if len(over) + len(self.ends) < PACK:
            return
        past = [*self.past, pack(over, self.ends)]
        self.past = past if len(past) <= MOST_CHUNKS else [shorten(past)]
        self.grants, self.ends = live, []
        numbers = {row: number for number, row in enumerate(rows)}
        for place in self._places(LEASED):
            self.leases[place] = numbers[self.leases[place]]
