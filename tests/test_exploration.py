"""Every order of events of a few actors: no path breaks a promise, and a broken protocol is found out."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from brigade.blobs import Blob, Copy, Create, Delete, DeleteIf, Get, List, Op, Page, Swap
from brigade.blobs.memory import Bucket
from brigade.stores.bucket.book import LEASED, Book
from brigade.testing.explore import CASTS, Cast, explore
from brigade.testing.explore.__main__ import main
from brigade.testing.explore.history import History
from brigade.testing.explore.judge import Judge
from brigade.testing.explore.search import TELL_EVERY
from brigade.testing.explore.shelf import EMPTY, Shelf
from brigade.testing.sim.checker import Violation
from brigade.testing.sim.records import Delivered, Granted, Intent, Record, Returned, Told, Unsure

Plant = Callable[[pytest.MonkeyPatch], None]
SMALL = ("enqueue-claim", "two-claim", "share", "finish-sweep", "retry")
"""With less going wrong than in `brigade-explore`, which takes minutes."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SMALL)
def test_no_path_breaks_a_promise(name: str) -> None:
    report = explore(replace(CASTS[name], faults=0))
    assert not report.broken, report.broken
    assert report.complete
    assert report.ends
    assert report.judged > 50


@pytest.mark.parametrize("name", ["own-ids", "lane", "dead-letter"])
def test_no_path_of_two_actors_breaks_a_promise(name: str) -> None:
    """The third one of the cast comes when the others are done: to `brigade-explore` it comes at any time."""
    cast = CASTS[name]
    report = explore(replace(cast, actors=cast.actors[:2], faults=0, ticks=()))
    assert not report.broken, report.broken
    assert report.complete


def test_a_write_in_doubt_is_explored_too() -> None:
    report = explore(replace(CASTS["enqueue-claim"], crashes=0, ticks=()))
    assert report.complete
    assert not report.broken, report.broken


@pytest.mark.parametrize("name", CASTS)
def test_the_first_states_of_every_cast(name: str) -> None:
    report = explore(CASTS[name], most_states=400)
    assert not report.broken, report.broken


def _blind_swaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that takes every swap."""
    write = Shelf.write

    def blind(self: Shelf, key: str, body: bytes, etag: str | None, now: int) -> tuple[object, Shelf]:
        found = self.objects.get(key)
        return write(self, key, body, found.etag if found and etag is not None else etag, now)

    monkeypatch.setattr(Shelf, "write", blind)


def _ignore_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A settlement that changes whatever lease there is."""

    def holds(self: Book, place: int, token: str) -> bool:
        return self.states[place] == LEASED

    monkeypatch.setattr(Book, "holds", holds)


@pytest.mark.parametrize("reduced", [True, False], ids=["reduced", "unreduced"])
@pytest.mark.parametrize("plant", [_blind_swaps, _ignore_tokens])
def test_a_broken_protocol_is_found_out(plant: Plant, reduced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    report = explore(replace(CASTS["two-claim"], faults=0, crashes=0), reduced=reduced)
    (told, violations), *_ = report.broken
    assert told
    assert violations
    assert not report.complete


TOLD = (Delivered, Intent, Returned, Told, Unsure)
"""What clients were told. What the store saw is in the other records."""
Judged = dict[tuple[int, int], set[tuple[Record, ...]]]
"""The histories that were judged, for each store and each time."""


def _judged(cast: Cast, monkeypatch: pytest.MonkeyPatch, *, reduced: bool) -> Judged:
    """All that a search judges: in which order actors were told of things, and when, is left out."""
    found: Judged = defaultdict(set)
    known: dict[bytes, tuple[Record, ...]] = {}
    judge = Judge.judge

    def noted(self: Judge, history: History, shelf: Shelf, ticks: int) -> list[Violation]:
        if history.digest not in known:
            records = [one if isinstance(one, Granted) else structs.replace(one, at=0) for one in history.records()]
            known[history.digest] = tuple(sorted(records, key=repr))
        found[shelf.mark, ticks].add(known[history.digest])
        return judge(self, history, shelf, ticks)

    with monkeypatch.context() as patched:
        patched.setattr(Judge, "judge", noted)
        report = explore(cast, reduced=reduced)
    assert report.complete
    assert not report.broken
    return found


def _tells_as_much(history: tuple[Record, ...], other: tuple[Record, ...]) -> bool:
    """Whether nothing of the other is missing, and what is added was told to clients: it promises more."""
    mine, theirs = Counter(map(repr, history)), Counter(map(repr, other))
    told = Counter(repr(one) for one in history if isinstance(one, TOLD))
    return theirs <= mine and mine - theirs <= told


@pytest.mark.parametrize(
    "name, faults, ticks",
    [("enqueue-claim", 1, 1), ("two-claim", 0, 1), ("share", 0, 1), ("late", 1, 1), ("retry", 0, 0), ("lane", 0, 0)],
)
def test_the_reduced_search_judges_what_the_unreduced_one_does(
    name: str, faults: int, ticks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it leaves out is judged all the same, with more that clients were told and may rely on."""
    cast = CASTS[name]
    small = replace(cast, faults=faults, ticks=cast.ticks[:ticks], actors=cast.actors[:2])
    reduced, all_of_them = (_judged(small, monkeypatch, reduced=reduced) for reduced in (True, False))
    assert reduced.keys() == all_of_them.keys()
    for where, histories in all_of_them.items():
        assert reduced[where] <= histories
        for left_out in histories - reduced[where]:
            assert any(_tells_as_much(history, left_out) for history in reduced[where])


KEYS = st.sampled_from(["a/1", "a/2", "a/3", "b/1"])
BODIES = st.sampled_from([b"x", b"yy"])
RIGHT, WRONG = "right", "wrong"
ETAGS = st.sampled_from([RIGHT, WRONG])
OPS: st.SearchStrategy[list[Op]] = st.lists(
    st.one_of(
        st.builds(Get, KEYS),
        st.builds(Create, KEYS, BODIES),
        st.builds(Swap, KEYS, BODIES, ETAGS),
        st.builds(DeleteIf, KEYS, ETAGS),
        st.builds(Delete, st.lists(KEYS, max_size=3).map(tuple)),
        st.builds(Copy, KEYS, KEYS),
        st.builds(List, st.sampled_from(["", "a/", "b/"]), st.sampled_from(["", "a/1", "a/2"]), st.integers(1, 3)),
    ),
    max_size=25,
)


def _with_etag(op: Op, found: object) -> Op:
    if isinstance(op, Swap | DeleteIf) and op.etag == RIGHT and isinstance(found, Blob):
        return structs.replace(op, etag=found.etag)
    return op


@given(OPS)
def test_the_shelf_answers_like_the_memory_bucket(ops: list[Op]) -> None:
    shelf, bucket = EMPTY, Bucket()
    for op in ops:
        key = op.key if isinstance(op, Swap | DeleteIf) else ""
        answer, shelf = shelf.apply(_with_etag(op, shelf.objects.get(key)), 0)
        assert _alike(answer) == _alike(bucket.apply(_with_etag(op, bucket.apply(Get(key)))))
    assert {key: blob.body for key, blob in shelf.objects.items()} == bucket.snapshot()


def _alike(answer: object) -> object:
    """Without etags and times, which are each store's own."""
    if isinstance(answer, Blob):
        return answer.body
    if isinstance(answer, Page):
        return [(item.key, item.size) for item in answer.items], answer.more
    return "etag" if isinstance(answer, str) else answer


def test_the_command_tells_machines(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["enqueue-claim", "--most", "50", "--jobs", "1", "--json", "--packed"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["cast"], told["states"], told["complete"]) == ("enqueue-claim", 50, False)


def test_an_exploration_tells_how_far_it_has_come() -> None:
    told: list[int] = []
    report = explore(CASTS["enqueue-claim"], most_states=2 * TELL_EVERY + 1, tell=told.append)
    assert told == [TELL_EVERY, 2 * TELL_EVERY]
    assert report.states == 2 * TELL_EVERY + 1


def test_the_command_shows_progress_at_a_terminal() -> None:
    """Until a cast is done, a line on standard error says how many states it has; what it prints stays apart."""
    ours, theirs = pty.openpty()
    command = [
        Path(sys.executable).parent / "brigade-explore",
        "takeover",
        "--jobs",
        "1",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        shown = b""
        while b"takeover " not in shown:
            shown += os.read(ours, 65536)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        assert process.stdout.read() == b""
    os.close(ours)
    assert b"0 of 1 casts done; states so far: takeover " in shown


def test_the_command_can_tell_everything_apart(capfd: pytest.CaptureFixture[str]) -> None:
    """Without the reductions there are more states, and as much is found."""
    told: list[dict[str, Any]] = []
    for flags in ([], ["--unreduced", "--shortest"]):
        assert main(["late", "--most", "3000", "--jobs", "1", "--json", *flags]) == 0
        told.append(json.loads(capfd.readouterr().out))
    assert [one["complete"] for one in told] == [True, False]
    assert told[0]["judged"] > told[0]["ends"] > 0


def test_the_command_knows_its_casts(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nobody"])
    assert "there is no cast 'nobody'; choose from enqueue-claim" in capfd.readouterr().err
