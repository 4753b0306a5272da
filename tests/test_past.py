"""What is over in a ledger is packed away: nothing that it tells changes, and it stays small and quick to swap."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace

import pytest

from brigade.errors import CorruptObject
from brigade.stores.bucket import book as book_module
from brigade.stores.bucket.book import LEASED, Book, Rules, from_runs
from brigade.stores.bucket.past import LONGEST, log_of
from brigade.stores.bucket.wire import LANE, LEDGER, Lane, LaneEntry, Ledger
from brigade.testing.explore import CASTS, explore
from brigade.testing.sim import run

RULES = Rules(max_attempts=4, dead_letter_queue=None, lapse=None, lifo=False)
TOKEN = "{:032x}-w"


def take(book: Book, number: int, *, limit: int = 1) -> list[int]:
    won = book.claim(
        limit=limit, now=1000 + number, expires=61_000, token=TOKEN.format(number), owner="host-1", rules=RULES
    )
    return won.members if won else []


def stored(book: Book) -> Book:
    return Book(LEDGER.decode(LEDGER.encode(book.close("n")), key="k"))


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is over is packed at once."""
    monkeypatch.setattr(book_module, "PACK", 1)


def one_at_a_time(count: int) -> Book:
    book = Book.fresh(count)
    for number in range(count):
        places = take(book, number)
        book = stored(book)
        book.ack(places, 2000 + number)
        book = stored(book)
    return book


def test_a_ledger_from_which_one_is_taken_at_a_time_stays_small() -> None:
    book = one_at_a_time(1000)
    assert len(book.grants) + len(book.ends) < book_module.PACK
    assert len(LEDGER.encode(book.close("n"))) < 50_000
    log = log_of(book)
    assert [grant.token for grant in log.grants] == [TOKEN.format(number) for number in range(1000)]
    assert [(end.how, end.at, end.runs) for end in log.ends] == [("acked", 2000 + n, [n, 1]) for n in range(1000)]


def test_and_one_that_was_taken_whole_and_is_acked_one_at_a_time() -> None:
    book = Book.fresh(1000)
    take(book, 1, limit=1000)
    for place in range(1000):
        book = stored(book)
        book.ack([place], 2000 + place)
    book = stored(book)
    assert len(book.grants) + len(book.ends) < book_module.PACK
    assert [(end.version, end.at, end.runs) for end in log_of(book).ends] == [
        (1, 2000 + n, [n, 1]) for n in range(1000)
    ]
    assert book.ended_by(0, TOKEN.format(1), "acked")
    assert book.ended_by(999, TOKEN.format(1), "acked")


def test_a_lost_answer_is_told_from_a_lost_race_however_long_ago() -> None:
    book = one_at_a_time(300)
    for number in (0, 100, 299):
        assert book.ended_by(number, TOKEN.format(number), "acked")
        assert not book.ended_by(number, TOKEN.format(number), "nacked")
        assert not book.ended_by(number, TOKEN.format(number + 1), "acked")


def test_acks_are_kept_when_a_message_comes_back_over_and_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "MOST_CHUNKS", 4)
    book = Book.fresh(2)
    take(book, 0)
    book.ack([0], 1500)
    for number in range(1, 3 * LONGEST):
        (place,) = take(book, number)
        book.give_back(place, now=1000 + number, due=0)
        if number % 50 == 0:
            book = stored(book)
    log = log_of(book)
    assert LONGEST // 2 < len(log.ends) < LONGEST
    assert log.ends[0].how == "acked"
    assert book.ended_by(0, TOKEN.format(0), "acked")
    assert book.ended_by(1, TOKEN.format(3 * LONGEST - 1), "released")
    assert {end.version for end in log.ends} <= {grant.version for grant in log.grants}


@pytest.mark.parametrize("chunk", [b"", b"not packed", zlib.compress(b"not a log")])
def test_a_chunk_that_cannot_be_read_is_said_so(chunk: bytes) -> None:
    book = Book.fresh(1)
    book.past = [chunk]
    with pytest.raises(CorruptObject, match="leases that are over"):
        log_of(book)


def attempts(book: Book) -> list[list[tuple[object, ...]]]:
    """What history will tell of each message."""
    log = log_of(book)
    grants = {grant.version: grant for grant in reversed(log.grants)}
    told: list[list[tuple[object, ...]]] = [[] for _ in book.states]
    for end in log.ends:
        grant = grants[end.version]
        for place in from_runs(end.runs):
            told[place].append((end.version, end.how, end.at, end.error, grant.token, grant.owner, grant.claimed))
    return told


def held(book: Book) -> list[object]:
    rows = [book.grants[book.leases[place]] if state == LEASED else None for place, state in enumerate(book.states)]
    return [row and (row.version, row.token, row.expires) for row in rows]


@pytest.mark.parametrize("seed", range(60))
def test_a_packed_book_tells_the_same_as_one_that_is_not(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 12)
    books = [Book.fresh(count), Book.fresh(count)]
    now = 1000
    for number in range(rng.randint(10, 80)):
        now += rng.randint(1, 40)
        choice, limit, lease = rng.random(), rng.randint(1, 4), rng.randint(20, 300)
        leased = [place for place, state in enumerate(books[0].states) if state == LEASED]
        some = rng.sample(leased, rng.randint(1, len(leased))) if leased else []
        for book in books:
            if choice < 0.45 or not some:
                book.claim(
                    limit=limit, now=now, expires=now + lease, token=f"t{number}", owner=f"o{number % 3}", rules=RULES
                )
            elif choice < 0.65:
                book.ack(some, now)
            elif choice < 0.75:
                book.nack(some[0], now=now, due=now, error=f"e{number}", reject=choice > 0.73, rules=RULES)
            elif choice < 0.85:
                book.give_back(some[0], now=now, due=now)
            else:
                book.extend(some, now + lease)
        for index, pack in enumerate((rng.choice((1, 1, 3)), 10**9)):
            monkeypatch.setattr(book_module, "PACK", pack)
            books[index] = stored(books[index])
        packed, plain = books
        assert packed.states == plain.states
        assert held(packed) == held(plain)
        assert [sorted(told, key=str) for told in attempts(packed)] == [
            sorted(told, key=str) for told in attempts(plain)
        ]
        for told in attempts(packed):
            assert [one[0] for one in told] == sorted({one[0] for one in told}), "in the order of time"
        for token in (f"t{number}", f"t{number // 2}"):
            assert packed.held_by(token) == plain.held_by(token)
            for place in range(count):
                assert packed.ended_by(place, token, "acked") == plain.ended_by(place, token, "acked")
    assert not books[1].past


def test_only_what_has_a_past_needs_a_reader_that_knows_of_it(little: None) -> None:
    fresh = Book.fresh(2).close("n")
    book = Book.fresh(2)
    book.ack(take(book, 1), 2000)
    past = book.close("n")
    assert past.past
    for ledger, version in ((fresh, 1), (past, 2)):
        lane = Lane("n", None, False, [LaneEntry("s", 5, None, ledger), LaneEntry("t", 5)])
        assert (LEDGER.encode(ledger)[3], LANE.encode(lane)[3]) == (version, version)
    assert Ledger.__struct_fields__[-1] == "past"


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("chunk", range(4))
def test_no_seed_breaks_a_promise_where_everything_is_packed(chunk: int) -> None:
    for seed in range(2000 + chunk, 2040, 4):
        report = run(seed)
        assert not report.violations, (seed, report.violations[:5])


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("name", ["two-claim", "retry"])
def test_no_path_breaks_a_promise_where_everything_is_packed(name: str) -> None:
    report = explore(replace(CASTS[name], faults=0))
    assert not report.broken, report.broken
    assert report.complete
