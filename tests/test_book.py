"""A ledger's decisions, without any I/O: what a claim takes, how a message ends, and what is remembered of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from brigade.clock import FOREVER
from brigade.machine import State
from brigade.policy import Failure
from brigade.stores.bucket.book import (
    DEAD,
    FAILED,
    LEASED,
    PURGED,
    READY,
    SUCCEEDED,
    Book,
    Rules,
    Won,
    from_runs,
    state_of,
    to_runs,
)
from brigade.stores.bucket.wire import LEDGER, Spec

RULES = Rules(max_attempts=3, dead_letter_queue=None, lapse=None, lifo=False)
LETTERS = replace(RULES, dead_letter_queue="dead")


def claim(book: Book, limit: int = 10, *, now: int = 1000, token: str = "t", rules: Rules = RULES, **more: Any) -> Won:
    won = book.claim(limit=limit, now=now, expires=now + 100, token=token, owner="w", rules=rules, **more)
    assert won is not None
    return won


def refused(book: Book, *, now: int = 1000, limit: int = 10, rules: Rules = RULES) -> bool:
    return book.claim(limit=limit, now=now, expires=now + 100, token="none", owner="w", rules=rules) is None


@pytest.mark.parametrize(
    "members,runs",
    [([], []), ([0], [0, 1]), ([0, 1, 2], [0, 3]), ([1, 3, 4, 9], [1, 1, 3, 2, 9, 1]), ([2, 1], [2, 1, 1, 1])],
)
def test_runs_are_members_in_short(members: list[int], runs: list[int]) -> None:
    assert to_runs(members) == runs
    assert list(from_runs(runs)) == members


@pytest.mark.parametrize(
    "code,state",
    [
        (READY, State.READY),
        (LEASED, State.IN_FLIGHT),
        (SUCCEEDED, State.SUCCEEDED),
        (FAILED, State.FAILED),
        (DEAD, State.FAILED),
        (PURGED, State.ABSENT),
    ],
)
def test_every_code_has_a_state_of_the_machine(code: int, state: State) -> None:
    assert state_of(code) is state


def test_rules_follow_the_policy() -> None:
    assert Rules.of(Failure("retry", 3), due=1000, ttl=None, lifo=False) == Rules(4, None, None, False, 1000)
    assert Rules.of(Failure("dead-letter", 3, "d"), due=1000, ttl=2, lifo=True) == Rules(1, "d", 3000, True, 1000)


class TestClaim:
    def test_head_first_up_to_the_limit(self) -> None:
        book = Book.fresh(5)
        assert claim(book, 2).members == [0, 1]
        assert claim(book, 2).members == [2, 3]
        assert claim(book, 2).members == [4]
        assert refused(book)

    def test_tail_first_with_lifo(self) -> None:
        book = Book.fresh(4)
        lifo = replace(RULES, lifo=True)
        assert claim(book, 2, rules=lifo).members == [3, 2]
        assert claim(book, 9, rules=lifo).members == [1, 0]

    def test_each_claim_has_a_greater_version(self) -> None:
        book = Book.fresh(3, version=7)
        assert [claim(book, 1).row.version for _ in range(3)] == [8, 9, 10]

    def test_attempts_are_counted(self) -> None:
        book = Book.fresh(1)
        for attempt in (1, 2, 3):
            assert claim(book, now=attempt * 1000).attempts == [attempt]

    def test_a_live_lease_is_left_alone_and_an_expired_one_taken_over(self) -> None:
        book = Book.fresh(1)
        claim(book, now=1000)
        assert refused(book, now=1099)
        won = claim(book, now=1100, token="u")
        assert (won.members, won.recovered, won.attempts) == ([0], [0], [2])
        assert not book.holds(0, "t")
        assert book.holds(0, "u")
        assert book.ended_by(0, "t", "expired")

    def test_a_spent_message_fails_instead_of_being_taken_over(self) -> None:
        book = Book.fresh(2)
        once = replace(RULES, max_attempts=1)
        claim(book, 1, now=1000, rules=once)
        assert claim(book, 5, now=2000, rules=once).members == [1]
        assert (book.states[0], book.reasons[0]) == (FAILED, ("lease expired", None))
        assert [(move.target, move.members) for move in book.moves] == [(None, [0])]

    def test_spent_messages_are_decided_even_when_the_limit_is_reached(self) -> None:
        book = Book.fresh(3)
        once = replace(LETTERS, max_attempts=1)
        claim(book, 2, now=1000, rules=once)
        assert book.claim(limit=0, now=2000, expires=0, token="", owner="", rules=once) is None
        assert list(book.states) == [DEAD, DEAD, READY]
        assert [(move.target, move.members) for move in book.moves] == [("dead", [0, 1])]

    def test_what_is_not_due_is_left(self) -> None:
        book = Book.fresh(3, [Spec(due=2000), Spec(), Spec(due=1000)])
        assert claim(book, now=1000).members == [1, 2]
        book.ack([1, 2], 1050)
        assert refused(book, now=1999)
        assert claim(book, now=2000).members == [0]

    def test_holes_were_never_there(self) -> None:
        book = Book.fresh(3, [Spec(), Spec(hole=True), Spec()])
        assert claim(book).members == [0, 2]
        assert book.states[1] == PURGED

    def test_only_restricts_to_the_head_of_a_lane(self) -> None:
        book = Book.fresh(3)
        assert claim(book, only=(1,)).members == [1]

    def test_own_limits_go_before_those_of_the_policy(self) -> None:
        book = Book.fresh(2, [Spec(max_attempts=7), Spec()])
        assert claim(book).max_attempts == [7, 3]

    def test_a_claim_of_nothing_changes_nothing(self) -> None:
        book = Book.fresh(1)
        claim(book)
        again = Book(book.close("n"))
        assert refused(again, now=1050)
        assert not again.changed


class TestLapse:
    def test_unclaimed_messages_lapse_by_the_policy(self) -> None:
        book = Book.fresh(2)
        rules = replace(RULES, lapse=1500)
        claim(book, 1, now=1000, rules=rules)
        assert refused(book, now=1500, rules=replace(rules, max_attempts=9), limit=0)
        assert (book.states[1], book.reasons[1]) == (FAILED, ("expired", None))
        assert book.states[0] == LEASED

    def test_own_lapse_goes_before_the_policy(self) -> None:
        book = Book.fresh(3, [Spec(lapse=900), Spec(lapse=5000), Spec()])
        assert claim(book, now=1000, rules=replace(RULES, lapse=2000)).members == [1, 2]
        assert book.states[0] == FAILED

    def test_a_message_that_was_claimed_once_does_not_lapse(self) -> None:
        book = Book.fresh(1)
        rules = replace(RULES, lapse=1500)
        claim(book, now=1000, rules=rules)
        book.nack(0, now=1200, due=1200, error=None, reject=False, rules=rules)
        assert claim(book, now=9000, rules=rules).members == [0]


class TestSettlements:
    def test_ack_ends_the_message(self) -> None:
        book = Book.fresh(2)
        claim(book)
        book.ack([0], 1050)
        assert list(book.states) == [SUCCEEDED, LEASED]
        assert book.ended_by(0, "t", "acked")
        assert not book.ended_by(1, "t", "acked")
        assert not book.holds(0, "t")

    def test_nack_retries_until_the_attempts_are_spent(self) -> None:
        book = Book.fresh(1)
        states: list[State] = []
        for attempt in range(3):
            claim(book, now=1000 * (attempt + 1))
            states.append(book.nack(0, now=0, due=0, error="e", reject=False, rules=RULES))
        assert states == [State.READY, State.READY, State.FAILED]
        assert book.reasons[0] == ("failed", "e")

    def test_reject_fails_at_once(self) -> None:
        book = Book.fresh(1)
        claim(book)
        assert book.nack(0, now=0, due=0, error="e", reject=True, rules=LETTERS) is State.FAILED
        assert (book.states[0], book.reasons[0]) == (DEAD, ("rejected", "e"))

    def test_a_retry_waits_until_it_is_due(self) -> None:
        book = Book.fresh(1)
        claim(book)
        book.nack(0, now=1000, due=5000, error=None, reject=False, rules=RULES)
        assert refused(book, now=4999)
        assert book.next_change(1000, RULES) == 5000
        assert claim(book, now=5000).attempts == [2]

    def test_giving_back_does_not_count(self) -> None:
        book = Book.fresh(1)
        for _ in range(5):
            assert claim(book).attempts == [1]
            book.give_back(0, now=1000, due=0)

    def test_extending_a_whole_grant_moves_its_row(self) -> None:
        book = Book.fresh(3)
        claim(book)
        book.extend([0, 1, 2], 9000)
        assert [(row.expires, row.version) for row in book.grants] == [(9000, 1)]
        assert refused(book, now=8999)

    def test_extending_a_part_leaves_the_rest(self) -> None:
        book = Book.fresh(3)
        claim(book, now=1000)
        book.extend([1], 9000)
        assert book.holds(1, "t")
        assert claim(book, now=1100, token="u").members == [0, 2]
        assert book.holds(1, "t")

    def test_extending_a_message_twice_at_once_leaves_the_rest(self) -> None:
        book = Book.fresh(2)
        claim(book, now=1000)
        book.extend([0, 0], 9000)
        assert claim(book, now=1100, token="u").members == [1]

    def test_what_is_left_of_a_grant_is_extended_in_place(self) -> None:
        book = Book.fresh(3)
        claim(book)
        book.ack([0, 2], 1010)
        book.extend([1], 9000)
        assert len(book.grants) == 1

    def test_a_purge_drops_what_is_ready_only(self) -> None:
        book = Book.fresh(4)
        claim(book, 2)
        book.ack([0], 1010)
        assert book.purge() == 2
        assert list(book.states) == [SUCCEEDED, LEASED, PURGED, PURGED]
        assert book.purge() == 0


class TestFinal:
    def test_a_ledger_is_final_when_every_message_has_ended(self) -> None:
        book = Book.fresh(2)
        claim(book)
        book.ack([0], 1010)
        assert not book.finalize()
        book.ack([1], 1020)
        assert book.finalize()
        assert book.next_change(2000, RULES) == FOREVER

    def test_an_undone_move_keeps_it_open(self) -> None:
        book = Book.fresh(1)
        claim(book)
        book.nack(0, now=1000, due=0, error=None, reject=True, rules=LETTERS)
        assert not book.finalize()
        assert book.unmoved() == [0]
        book.moved([0])
        assert book.unmoved() == []
        assert book.finalize()

    def test_failures_decided_in_one_write_move_together_and_later_ones_apart(self) -> None:
        """A stored move is never added to: its copy may have been made already."""
        book = Book.fresh(3)
        claim(book)
        for place in (0, 1):
            book.nack(place, now=1000, due=0, error=None, reject=True, rules=LETTERS)
        assert [move.members for move in book.moves] == [[0, 1]]
        book = Book(book.close("n"))
        book.nack(2, now=1000, due=0, error=None, reject=True, rules=LETTERS)
        assert [move.members for move in book.moves] == [[0, 1], [2]]

    def test_failures_with_another_target_move_apart(self) -> None:
        book = Book.fresh(2)
        claim(book)
        book.nack(0, now=1000, due=0, error=None, reject=True, rules=LETTERS)
        book.nack(1, now=1000, due=0, error=None, reject=True, rules=RULES)
        assert [(move.target, move.members) for move in book.moves] == [("dead", [0]), (None, [1])]


@pytest.mark.parametrize("how", ["release", "takeover", "extend"])
def test_a_ledger_stays_small_however_often_a_message_comes_back(how: str) -> None:
    book = Book.fresh(2)
    rules = replace(RULES, max_attempts=60_000)
    largest = 0
    claim(book, 1, now=0, token="kept", rules=rules)
    book.extend([0], 10**12)
    for turn in range(6_000):
        now = 1000 * (turn + 1)
        if how != "extend" or turn == 0:
            claim(book, now=now, token=f"{turn:032x}", rules=rules)
        if how == "release":
            book.give_back(1, now=now, due=now)
        elif how == "extend":
            book.extend([1], now + 100)
        if turn % 500 == 0:
            book = Book(LEDGER.decode(LEDGER.encode(book.close("n")), key="k"))
            largest = max(largest, len(LEDGER.encode(book.close("n"))))
    assert book.holds(0, "kept")
    assert largest < 1024 * 1024


@dataclass
class Known:
    """What the model knows of a message."""

    state: int = READY
    attempts: int = 0
    token: str = ""
    expires: int = 0
    due: int = 0


class BookAgainstModel(RuleBasedStateMachine):
    """Any sequence of decisions, stored and read back in between, against one record a message."""

    @initialize(count=st.integers(1, 6), lifo=st.booleans(), letters=st.booleans())
    def begin(self, count: int, lifo: bool, letters: bool) -> None:
        self.now = 1000
        self.tokens = 0
        self.rules = Rules(3, "dead" if letters else None, None, lifo)
        self.known = [Known() for _ in range(count)]
        self.book = Book.fresh(count)
        self.version = 0

    def held(self) -> list[int]:
        return [place for place, one in enumerate(self.known) if one.state == LEASED]

    def fail(self, one: Known) -> None:
        one.state = DEAD if self.rules.dead_letter_queue else FAILED

    @rule(by=st.integers(0, 200))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule(limit=st.integers(0, 7), lease=st.integers(1, 150))
    def claims(self, limit: int, lease: int) -> None:
        self.tokens += 1
        token = f"t{self.tokens}"
        won = self.book.claim(
            limit=limit, now=self.now, expires=self.now + lease, token=token, owner="w", rules=self.rules
        )
        expected: list[int] = []
        order = range(len(self.known))
        for place in reversed(order) if self.rules.lifo else order:
            one = self.known[place]
            expired = one.state == LEASED and one.expires <= self.now
            if expired and one.attempts >= 3:
                self.fail(one)
            elif (expired or (one.state == READY and one.due <= self.now)) and len(expected) < limit:
                expected.append(place)
        assert (won.members if won else []) == expected
        if won:
            assert won.row.version > self.version
            self.version = won.row.version
        for place in expected:
            one = self.known[place]
            one.state, one.token, one.expires = LEASED, token, self.now + lease
            one.attempts += 1

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def acks(self, data: st.DataObject) -> None:
        places = data.draw(st.lists(st.sampled_from(self.held()), min_size=1, unique=True))
        self.book.ack(places, self.now)
        for place in places:
            self.known[place].state = SUCCEEDED

    @precondition(lambda self: self.held())
    @rule(data=st.data(), wait=st.integers(0, 100), reject=st.booleans())
    def nacks(self, data: st.DataObject, wait: int, reject: bool) -> None:
        place = data.draw(st.sampled_from(self.held()))
        one = self.known[place]
        state = self.book.nack(place, now=self.now, due=self.now + wait, error="e", reject=reject, rules=self.rules)
        if reject or one.attempts >= 3:
            self.fail(one)
            assert state is State.FAILED
        else:
            one.state, one.due = READY, self.now + wait
            assert state is State.READY

    @precondition(lambda self: self.held())
    @rule(data=st.data(), wait=st.integers(0, 100))
    def gives_back(self, data: st.DataObject, wait: int) -> None:
        place = data.draw(st.sampled_from(self.held()))
        self.book.give_back(place, now=self.now, due=self.now + wait)
        one = self.known[place]
        one.state, one.due = READY, self.now + wait
        one.attempts -= 1

    @precondition(lambda self: self.held())
    @rule(data=st.data(), lease=st.integers(1, 300))
    def extends(self, data: st.DataObject, lease: int) -> None:
        places = data.draw(st.lists(st.sampled_from(self.held()), min_size=1, unique=True))
        self.book.extend(places, self.now + lease)
        for place in places:
            self.known[place].expires = self.now + lease

    @rule()
    def purges(self) -> None:
        ready = [one for one in self.known if one.state == READY]
        assert self.book.purge() == len(ready)
        for one in ready:
            one.state = PURGED

    @rule()
    def moves(self) -> None:
        self.book.moved(self.book.unmoved())

    @rule()
    def is_stored_and_read_back(self) -> None:
        self.book.finalize()
        self.book = Book(LEDGER.decode(LEDGER.encode(self.book.close("n")), key="k"))

    @invariant()
    def both_agree(self) -> None:
        if not hasattr(self, "known"):
            return
        assert list(self.book.states) == [one.state for one in self.known]
        assert list(self.book.attempts) == [one.attempts for one in self.known]
        for place, one in enumerate(self.known):
            assert self.book.holds(place, one.token or "none") == (one.state == LEASED)
            if one.state == LEASED:
                assert self.book.grants[self.book.leases[place]].expires == one.expires
        ended = all(one.state not in (READY, LEASED) for one in self.known)
        assert self.book.settled() == (ended and not self.book.unmoved())
        moved = sorted(place for move in self.book.moves for place in move.members)
        assert moved == [place for place, one in enumerate(self.known) if one.state in (FAILED, DEAD)]


TestBookAgainstModel = BookAgainstModel.TestCase
TestBookAgainstModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
