"""A sweeper beside somebody who is slow: what one has just written, or is about to write again, is not a leftover.

Each test stops the sweeper, or who runs into it, before one operation, lets others go on, and looks at the end of it.
Time is the test's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest
from msgspec.structs import replace

from brigade.blobs import UNKNOWN, UNSUPPORTED, Create, Delete, DeleteIf, Get, List, Op, Page, Swap
from brigade.blobs.memory import Bucket
from brigade.ids import Ids
from brigade.machine import State
from brigade.model import Receipt
from brigade.policy import Failure, QueuePolicy
from brigade.stores.bucket import admin
from brigade.stores.bucket.accounts import open_account
from brigade.stores.bucket.claim import claim
from brigade.stores.bucket.enqueue import Draft, enqueue
from brigade.stores.bucket.finish import finish
from brigade.stores.bucket.keys import QueueKeys, SegmentName
from brigade.stores.bucket.load import Loaded, load
from brigade.stores.bucket.moves import complete_moves
from brigade.stores.bucket.redrive import finish_redrive, redrive_parked
from brigade.stores.bucket.settle import Change, settle
from brigade.stores.bucket.state import save_state
from brigade.stores.bucket.steps import Env, Proto, Sleep
from brigade.stores.bucket.sweep import sweep
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import Entry
from brigade.testing.explore.memory import flat
from brigade.testing.sim.storage import VirtualClock

T = TypeVar("T")
HOUR = 3_600_000
DAY = 24 * HOUR
JOBS, LETTERS = "jobs", "letters"
PARKING = QueuePolicy(failure=Failure(max_retries=0))
BURYING = QueuePolicy(failure=Failure("dead-letter", max_retries=0, dead_letter_queue=LETTERS))


class Underway(Generic[T]):
    """A protocol function that can be stopped before an operation, for as long as the test likes."""

    def __init__(self, world: World, proto: Proto[T]) -> None:
        self._world = world
        self._steps = flat(proto, lambda: None)
        self._asked: Any = Sleep(0)

    def until(self, wanted: Callable[[Op], bool]) -> Underway[T]:
        while isinstance(self._asked, Sleep) or not wanted(self._asked):
            self._go_on()
        return self

    def after_that(self) -> Underway[T]:
        self._go_on()
        return self

    def in_doubt(self) -> Underway[T]:
        """The operation is applied, and its answer lost."""
        self._world.apply(self._asked)
        self._asked = self._steps.send(UNKNOWN)
        return self

    def end(self) -> T:
        try:
            while True:
                self._go_on()
        except StopIteration as stop:
            return stop.value

    def _go_on(self) -> None:
        self._asked = self._steps.send(None if isinstance(self._asked, Sleep) else self._world.apply(self._asked))


class Somebody:
    """A process: what it knows of the queues is its own."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self.env = Env(world.clock, Ids(seed))
        self.views = {name: QueueView(name, policy) for name, policy in world.queues.items()}

    def begin(self, proto: Proto[T]) -> Underway[T]:
        return Underway(self._world, proto)

    def enqueue(self, entry: Entry, planned: SegmentName | None = None) -> Receipt:
        [receipt] = self.begin(enqueue(self.env, self.views[JOBS], [Draft(entry, planned)])).end()
        return receipt

    def take(self, queue: str) -> list[Loaded]:
        view = self.views[queue]
        view.stale()
        grants = self.begin(claim(self.env, view, limit=9, owner="me", visibility=30, listing_ttl=0)).end()
        return self.begin(load(self.env, view, grants)).end()

    def settled(self, queue: str, kind: str, held: Loaded) -> Underway[Any]:
        grant = held.grant
        change = Change(kind, list(grant.members), grant.token, grant.version, error="no luck")
        return self.begin(settle(self.env, self.views[queue], held.name, [change]))

    def work_off(self, queue: str) -> int:
        """Ack all there is, and see it through to history."""
        taken = self.take(queue)
        for held in taken:
            self.settled(queue, "ack", held).end()
        self.finish(queue)
        return len(taken)

    def finish(self, queue: str) -> None:
        view = self.views[queue]
        finals, view.finished = view.finished, {}
        self.begin(finish(self.env, view, finals)).end()

    def redrive(self) -> Underway[int]:
        return self.begin(redrive_parked(self.env, self.views[JOBS], None, 10))

    def sweeping(self, queue: str) -> Underway[Any]:
        return self.begin(sweep(self.env, self.views[queue]))


class World:
    """A bucket that may lack conditional deletes, its time, and who works on it."""

    def __init__(self, policy: QueuePolicy, *, conditional_delete: bool = True) -> None:
        self.clock = VirtualClock()
        self.queues = {JOBS: policy, LETTERS: QueuePolicy()}
        self._bucket = Bucket(self.clock)
        self._conditional_delete = conditional_delete
        self.shy = False
        """Whether listings tell an etag only of what the latest process has read before, as Google's do."""
        self._read: set[str] = set()
        self._seed = 0
        maker = self.somebody()
        for name in self.queues:
            maker.begin(admin.ensure_queue(maker.env, QueueKeys(name), self.queues[name], replace=False)).end()

    def apply(self, op: Op) -> object:
        if isinstance(op, DeleteIf) and not self._conditional_delete:
            return UNSUPPORTED
        self.clock.ms += 1
        answer = self._bucket.apply(op)
        if isinstance(op, Get):
            self._read.add(op.key)
        if self.shy and isinstance(answer, Page):
            items = [one if one.key in self._read else replace(one, etag="unknown") for one in answer.items]
            return Page(items, answer.more)
        return answer

    def somebody(self) -> Somebody:
        self._read.clear()
        self._seed += 1
        return Somebody(self, self._seed)

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self._bucket.snapshot() if key.startswith(prefix))

    def only(self, prefix: str) -> str:
        [key] = self.keys(prefix)
        return key

    def fail(self, entry: Entry, stop: Callable[[Op], bool], planned: SegmentName | None = None) -> None:
        """Enqueue a message and let it fail; whoever moves it dies before that operation."""
        worker = self.somebody()
        worker.enqueue(entry, planned)
        [held] = worker.take(JOBS)
        worker.settled(JOBS, "nack", held).until(stop)

    def apart(self, payload: bytes) -> SegmentName:
        """Where a message with a large payload, and with workflow state, is going to lie."""
        maker = self.somebody()
        keys, now = QueueKeys(JOBS), maker.env.now()
        name = SegmentName.make(maker.env.ids, now=now, due=0, priority=5, lane="", size=1, lifo=False, special=False)
        self.apply(Create(keys.blob(f"{name}-0"), payload))
        maker.begin(save_state(maker.env, maker.views[JOBS], f"{name}-0", b"1", None, "m")).end()
        return name

    def mover(self) -> Underway[None]:
        """Somebody who is about to move what has failed."""
        mover, name = self.somebody(), self.source()
        view = mover.views[JOBS]
        view.unmoved[name] = None
        return mover.begin(complete_moves(mover.env, view))

    def source(self) -> SegmentName:
        """The segment with the message that has failed."""
        name = QueueKeys(JOBS).parse(self.only(f"q/{JOBS}/led/"))
        assert name is not None
        return name

    def end_the_source(self) -> None:
        """The move is done, and what was moved is history."""
        self.mover().end()
        other, name = self.somebody(), self.source()
        view = other.views[JOBS]
        account = other.begin(open_account(other.env, view, name)).end()
        assert account is not None
        assert account.ledger.final
        other.begin(finish(other.env, view, {name: account.ledger})).end()

    def sweep_all(self) -> None:
        sweeper = self.somebody()
        for queue in self.queues:
            sweeper.sweeping(queue).end()

    def nothing_is_left(self) -> None:
        """Sweeps take all away in the end but policies, flags and history."""
        for wait in (2 * HOUR, 2 * HOUR, 8 * DAY, 2 * HOUR):
            self.clock.ms += wait
            self.sweep_all()
        assert [key for key in self.keys() if not key.endswith(("/policy.json", "/seg/!lanes"))] == []


def creates(prefix: str) -> Callable[[Op], bool]:
    return lambda op: isinstance(op, Create) and op.key.startswith(prefix)


def lists(prefix: str) -> Callable[[Op], bool]:
    return lambda op: isinstance(op, List) and op.prefix == prefix


def reads(key: str) -> Callable[[Op], bool]:
    return lambda op: isinstance(op, Get) and op.key == key


def removes(key: str) -> Callable[[Op], bool]:
    return lambda op: (isinstance(op, DeleteIf) and op.key == key) or (isinstance(op, Delete) and key in op.keys)


def message(*, apart: bool = False, **options: Any) -> Entry:
    return Entry(None if apart else b"payload", 7, 0, "text/plain", "m", **options)


LETTER, PARKED = f"q/{LETTERS}/seg/", f"q/{JOBS}/failed/"


def copied(copy: str) -> World:
    """A message that has failed, whose copy was made two hours ago by one who died before it could say so."""
    world = World(BURYING if copy == LETTER else PARKING)
    world.fail(message(), lambda op: isinstance(op, Swap) and bool(world.keys(copy)))
    world.clock.ms += 2 * HOUR
    return world


class TestLetters:
    """An acked dead letter that is copied again would come back."""

    def test_a_void_that_has_just_replaced_an_old_letter_stays(self) -> None:
        world = copied(LETTER)
        letter = world.only(LETTER)
        slow = world.mover().until(creates(LETTER))
        sweeper = world.somebody().sweeping(LETTERS).until(reads(letter))
        assert world.somebody().work_off(LETTERS) == 1
        world.end_the_source()
        sweeper.end()
        assert world.keys(LETTER) == [letter]
        slow.end()
        assert world.somebody().work_off(LETTERS) == 0
        world.nothing_is_left()

    def test_an_old_void_stays_for_an_hour_after_its_source_has_gone(self) -> None:
        world = copied(LETTER)
        letter = world.only(LETTER)
        assert world.somebody().work_off(LETTERS) == 1
        world.clock.ms += 2 * HOUR
        slow = world.mover().until(creates(LETTER))
        world.end_the_source()
        world.sweep_all()
        assert world.keys(LETTER) == [letter]
        slow.end()
        assert world.somebody().work_off(LETTERS) == 0
        world.clock.ms += HOUR
        world.sweep_all()
        assert world.keys(LETTER) == []
        world.nothing_is_left()


class TestParkedFailures:
    """A redriven failure that is parked again would be redriven twice."""

    def test_one_that_was_emptied_since_it_was_listed_stays(self) -> None:
        world = copied(PARKED)
        parked = world.only(PARKED)
        slow = world.mover().until(creates(PARKED))
        sweeper = world.somebody().sweeping(JOBS).until(lists(PARKED)).after_that()
        assert world.somebody().redrive().end() == 1
        world.end_the_source()
        sweeper.end()
        assert world.keys(PARKED) == [parked]
        slow.end()
        assert world.somebody().redrive().end() == 0
        assert world.somebody().work_off(JOBS) == 1
        world.nothing_is_left()

    def test_an_old_one_stays_for_an_hour_after_its_source_has_gone(self) -> None:
        world = copied(PARKED)
        parked = world.only(PARKED)
        assert world.somebody().redrive().end() == 1
        world.clock.ms += 2 * HOUR
        slow = world.mover().until(creates(PARKED))
        world.end_the_source()
        world.sweep_all()
        assert world.keys(PARKED) == [parked]
        slow.end()
        assert world.somebody().redrive().end() == 0
        assert world.somebody().work_off(JOBS) == 1
        world.clock.ms += HOUR
        world.sweep_all()
        assert world.keys(PARKED) == []
        world.nothing_is_left()


def parked_long_ago(entry: Entry, wait: int) -> World:
    """A message that has failed, was parked, and is history."""
    world = World(PARKING)
    worker = world.somebody()
    worker.enqueue(entry)
    [held] = worker.take(JOBS)
    worker.settled(JOBS, "nack", held).end()
    worker.finish(JOBS)
    world.clock.ms += wait
    return world


def test_a_marker_that_was_pointed_elsewhere_since_it_was_listed_stays() -> None:
    """Else the same id could be enqueued a second time, beside the message that is on its way back."""
    world = parked_long_ago(message(own_id="same"), 8 * DAY)
    marker = world.only(f"q/{JOBS}/ids/")
    sweeper = world.somebody().sweeping(JOBS).until(reads(marker))
    redriving = world.somebody().redrive().until(creates(f"q/{JOBS}/seg/"))
    sweeper.end()
    assert world.keys(f"q/{JOBS}/ids/") == [marker]
    redriving.end()
    assert world.somebody().enqueue(message(own_id="same")).duplicate
    assert world.somebody().work_off(JOBS) == 1
    world.nothing_is_left()


def test_a_segment_that_was_appended_since_its_lane_was_looked_at_stays() -> None:
    """Who made it died before that, and who went on used up what it was made from: it is in no lane, and yet it is."""
    world = parked_long_ago(message(group="g"), 0)
    world.somebody().redrive().until(creates(f"q/{JOBS}/lane/"))
    segment, parked = world.only(f"q/{JOBS}/lseg/"), world.only(PARKED)
    world.clock.ms += 2 * HOUR
    sweeper = world.somebody().sweeping(JOBS).until(reads(segment))
    other = world.somebody()
    other.begin(finish_redrive(other.env, other.views[JOBS], parked)).end()
    sweeper.end()
    assert world.keys(f"q/{JOBS}/lseg/") == [segment]
    assert world.somebody().work_off(JOBS) == 1
    world.nothing_is_left()


@pytest.mark.parametrize("conditional_delete", [True, False], ids=["conditional", "unconditional"])
@pytest.mark.parametrize("kind", ["blob", "state"])
def test_what_goes_along_with_a_letter_stays_if_it_was_written_anew(kind: str, conditional_delete: bool) -> None:
    """One mover left it and died, an hour later another one makes the copy, and a sweeper has seen it in between."""
    world = World(BURYING, conditional_delete=conditional_delete)
    planned = world.apart(b"payload")
    world.fail(message(apart=True), creates(LETTER), planned)
    world.clock.ms += 2 * HOUR
    beside = world.only(f"q/{LETTERS}/{kind}/")
    sweeper = world.somebody().sweeping(LETTERS).until(removes(beside))
    world.mover().end()
    sweeper.end()
    assert world.keys(f"q/{LETTERS}/{kind}/") == [beside]
    assert world.somebody().work_off(LETTERS) == 1
    if conditional_delete:
        world.nothing_is_left()


@pytest.mark.parametrize("copy", [LETTER, PARKED], ids=["letters", "parked"])
def test_where_listings_tell_no_etags_nothing_is_left_either(copy: str) -> None:
    world = copied(copy)
    world.shy = True
    if copy == PARKED:
        assert world.somebody().redrive().end() == 1
    world.end_the_source()
    assert world.somebody().work_off(LETTERS if copy == LETTER else JOBS) == 1
    world.nothing_is_left()


def test_where_listings_tell_no_etags_payloads_and_states_are_swept() -> None:
    world = World(BURYING)
    world.apart(b"payload")
    world.shy = True
    world.nothing_is_left()


@pytest.mark.parametrize("again", [False, True], ids=["settle", "settle_again"])
def test_a_late_ledger_does_not_hide_an_ack_in_doubt(again: bool) -> None:
    """The segment is over when a claimer with an old listing begins a ledger for it: history knows of the ack."""
    world = World(QueuePolicy())
    worker, late = world.somebody(), world.somebody()
    worker.enqueue(Entry(b"x", 1, worker.env.now(), "text/plain", "m"))
    [held] = worker.take(JOBS)
    acking = worker.settled(JOBS, "ack", held).until(lambda op: isinstance(op, Swap)).in_doubt()
    view = late.views[JOBS]
    claiming = late.begin(claim(late.env, view, limit=1, owner="late", visibility=30, listing_ttl=0))
    claiming.until(lists(view.keys.ledgers))
    other = world.somebody()
    account = other.begin(open_account(other.env, other.views[JOBS], held.name)).end()
    assert account is not None
    other.begin(finish(other.env, other.views[JOBS], {held.name: account.ledger})).end()
    claiming.end()
    assert world.keys(view.keys.ledgers) == [view.keys.ledger(held.name)]
    if again:
        grant = held.grant
        change = Change("ack", list(grant.members), grant.token, grant.version)
        acking = other.begin(settle(other.env, other.views[JOBS], held.name, [change], tried=True))
    [[answer]] = acking.end()
    assert answer.status is State.SUCCEEDED
