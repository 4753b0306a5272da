"""Generators in lockstep: the results of running one after the other, with writes that share a commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brigade
from brigade.blobs import Create, Gathering, Get, Op, Swap
from brigade.blobs.memory import MemoryBlobs
from brigade.blobs.sqlite import SqliteBlobs
from brigade.errors import StoreUnavailable
from brigade.stores.bucket.driver import Unfinished, perform, perform_now
from brigade.stores.bucket.steps import Parallel, Proto, Sleep
from brigade.stores.bucket.store import BucketStore

Tree = list[Any]
"""What a generator does, step by step: an operation, a sleep, several others side by side; or it fails."""

trees = st.recursive(
    st.lists(st.sampled_from(["write", "read", "refused", "sleep", "fail"]), max_size=4),
    lambda inner: st.lists(
        st.one_of(st.sampled_from(["write", "read", "sleep"]), st.lists(inner, max_size=4)), max_size=4
    ),
    max_leaves=12,
)


class Moody(MemoryBlobs):
    """Answers at once only when it likes to, and refuses one key."""

    def __init__(self, moods: Iterator[bool]) -> None:
        super().__init__()
        self._moods = moods

    def try_now(self, op: Op) -> object:
        return self._answer(op) if next(self._moods, True) else NotImplemented

    async def perform(self, op: Op) -> object:
        await asyncio.sleep(0)
        return self._answer(op)

    def _answer(self, op: Op) -> object:
        if isinstance(op, Get) and op.key == "refused":
            raise StoreUnavailable("refused")
        return super().try_now(op)


def played(tree: Tree, path: str, width: int) -> Proto[list[Any]]:
    results: list[Any] = []
    for number, item in enumerate(tree):
        here = f"{path}/{number}"
        if item == "write":
            results.append(isinstance((yield Create(here, b"x")), str))
        elif item == "read":
            results.append((yield Get("nothing")))
        elif item == "refused":
            try:
                yield Get("refused")
            except StoreUnavailable:
                results.append("refused")
        elif item == "sleep":
            yield Sleep(0)
        elif item == "fail":
            raise LookupError(here)
        else:
            parts = [played(part, f"{here}.{place}", width) for place, part in enumerate(item)]
            results.append((yield Parallel(parts, width)))
    return results


def expected(tree: Tree, path: str, keys: set[str]) -> list[Any] | LookupError:
    results: list[Any] = []
    for number, item in enumerate(tree):
        here = f"{path}/{number}"
        if item == "fail":
            return LookupError(here)
        if isinstance(item, list):
            inner = [expected(part, f"{here}.{place}", keys) for place, part in enumerate(item)]
            failed = [one for one in inner if isinstance(one, LookupError)]
            if failed:
                return failed[0]
            results.append(inner)
        elif item == "write":
            keys.add(here)
            results.append(True)
        elif item != "sleep":
            results.append({"read": None, "refused": "refused"}[item])
    return results


def carried_out(tree: Tree, blobs: MemoryBlobs, width: int, *, now: bool) -> list[Any]:
    async def run() -> list[Any]:
        proto = played(tree, "", width)
        if not now:
            return await perform(proto, blobs)
        done = perform_now(proto, blobs)
        return await perform(done.proto, blobs, done.step) if isinstance(done, Unfinished) else done

    return asyncio.run(run())


@given(tree=trees, moods=st.lists(st.booleans(), max_size=40), width=st.integers(1, 4), now=st.booleans())
def test_whatever_has_to_wait_the_results_are_the_same(tree: Tree, moods: list[bool], width: int, now: bool) -> None:
    blobs = Moody(iter(moods))
    keys: set[str] = set()
    wanted = expected(tree, "", keys)
    if isinstance(wanted, LookupError):
        with pytest.raises(LookupError, match=str(wanted.args[0])):
            carried_out(tree, blobs, width, now=now)
    else:
        assert carried_out(tree, blobs, width, now=now) == wanted
    page: Any = MemoryBlobs.try_now(blobs, brigade.blobs.List("", "", 1000))
    assert {item.key for item in page.items} == keys


def test_no_more_than_its_width_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = Gathering.try_all

    def counted(blobs: Gathering, ops: Sequence[Op]) -> Sequence[object]:
        asked.append(len(ops))
        return real(blobs, ops)

    monkeypatch.setattr(MemoryBlobs, "try_all", counted)
    carried_out([[["write", "read"]] * 10], MemoryBlobs(), 4, now=True)
    assert asked == [4, 4, 4, 4, 2, 2]
    asked.clear()
    carried_out([[[[["write"]] * 10], [[["write"]] * 10]]], MemoryBlobs(), 4, now=True)
    assert asked == [8, 8, 4], "four of each of the two"


def test_parts_that_ask_for_nothing_may_be_many() -> None:
    assert carried_out([[[], []]] * 5000, MemoryBlobs(), 4, now=True) == [[[], []]] * 5000
    assert carried_out([[[]] * 5000], MemoryBlobs(), 4, now=True) == [[[]] * 5000]


def test_a_claim_of_many_segments_is_one_commit(tmp_path: Path) -> None:
    with brigade.connect(f"sqlite://{tmp_path}/jobs.db") as hub:
        queue = hub.queue("tasks")
        bucket = queue.asynchronous.hub.store
        assert isinstance(bucket, BucketStore)
        assert isinstance(bucket.blobs, SqliteBlobs)
        for number in range(8):
            queue.enqueue(number)
        before = bucket.blobs.commits
        messages = queue.claim(8)
        assert [message.data for message in messages] == list(range(8))
        assert bucket.blobs.commits == before + 1
        queue.ack_many(messages)
        assert queue.stats().succeeded == 8


class TestSqlite:
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> Iterator[SqliteBlobs]:
        blobs = SqliteBlobs(str(tmp_path / "jobs.db"), fsync=False)
        yield blobs
        asyncio.run(blobs.close())

    def test_several_writes_and_reads_are_answered_each_for_itself(self, blobs: SqliteBlobs) -> None:
        assert isinstance(blobs.try_now(Create("there", b"1")), str)
        before = blobs.commits
        ops: list[Op] = [Create("a", b"a"), Create("there", b"2"), Get("there"), Swap("a", b"b", "0"), Get("nothing")]
        first, second, third, fourth, fifth = blobs.try_all(ops)
        assert isinstance(first, str)
        assert (second, fourth, fifth) == (brigade.blobs.CONFLICT, brigade.blobs.CONFLICT, None)
        assert isinstance(third, brigade.blobs.Blob)
        assert third.body == b"1"
        assert blobs.commits == before + 1
        assert blobs.requests() == {"create": 3, "swap": 1, "get": 2}

    def test_what_is_large_is_left_to_others(self, blobs: SqliteBlobs) -> None:
        small, large = blobs.try_all([Create("a", b"a"), Create("b", bytes(1024 * 1024))])
        assert isinstance(small, str)
        assert large is NotImplemented
        assert blobs.requests() == {"create": 1}

    def test_a_file_that_was_removed_takes_nothing(self, blobs: SqliteBlobs, tmp_path: Path) -> None:
        assert isinstance(blobs.try_now(Create("there", b"1")), str)
        for path in tmp_path.iterdir():
            path.unlink()
        time.sleep(0.05)
        assert list(blobs.try_all([Create("a", b"a"), Create("b", b"b")])) == [NotImplemented] * 2

    def test_when_it_is_closed_it_answers_nothing(self, blobs: SqliteBlobs) -> None:
        asyncio.run(blobs.close())
        assert list(blobs.try_all([Create("a", b"a"), Get("a")])) == [NotImplemented] * 2
