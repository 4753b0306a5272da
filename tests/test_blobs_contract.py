"""Each sentence of the contract in `brigade.blobs`, on every kind of blobs that this machine can hold."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brigade.blobs import CONFLICT, Blob, Blobs, Copy, Create, Delete, DeleteIf, Get, List, Op, Page, Swap
from brigade.blobs.cloud import CloudBlobs
from brigade.blobs.cloud_connect import connect_bucket
from brigade.blobs.disk import DiskBlobs
from brigade.blobs.memory import MemoryBlobs
from brigade.blobs.sqlite import SqliteBlobs
from brigade.errors import MessageNotFound, StoreUnavailable
from brigade.stores.opening import parse_url
from brigade.testing.servers.azurite import az_url
from brigade.testing.servers.fixtures import azurite_server, moto_server, seaweedfs_server
from brigade.testing.servers.s3 import s3_url

__all__ = ["azurite_server", "moto_server", "seaweedfs_server"]

Connect = Callable[[], Blobs]


SERVERS: dict[str, Callable[[str, str], str]] = {"seaweedfs": s3_url, "moto": s3_url, "azurite": az_url}


@pytest.fixture(params=["memory", "disk", "disk with fsync", "sqlite", "sqlite with fsync", *SERVERS])
async def connect(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Connect]:
    """Connections to one store, each as another process would have it."""
    name = uuid.uuid4().hex
    made: list[Blobs] = []
    kind: str = request.param
    url = SERVERS[kind](request.getfixturevalue(f"{kind}_server"), f"contract/{name}") if kind in SERVERS else ""

    def connected() -> Blobs:
        if url:
            made.append(CloudBlobs(connect_bucket(*parse_url(url, {}))))
        elif kind == "memory":
            made.append(MemoryBlobs(name))
        elif kind.startswith("sqlite"):
            made.append(SqliteBlobs(str(tmp_path / "store.db"), fsync="fsync" in kind))
        else:
            made.append(DiskBlobs(str(tmp_path / "store"), fsync="fsync" in kind))
        return made[-1]

    yield connected
    for blobs in made:
        await blobs.close()


@pytest.fixture
def blobs(connect: Connect) -> Blobs:
    return connect()


async def test_what_is_asked_of_closed_blobs_is_refused_with_a_clear_error(connect: Connect) -> None:
    """Calls that were under way when a hub was closed end up here. Memory needs nothing that could be gone."""
    blobs = connect()
    await blobs.close()
    if isinstance(blobs, MemoryBlobs):
        assert await get(blobs, "a") is None
        return
    for op in (Get("a"), List("", "", 10), Create("a", b"x")):
        with pytest.raises(StoreUnavailable, match="hub was closed"):
            await blobs.perform(op)


async def get(blobs: Blobs, key: str) -> Blob | None:
    found: Any = await blobs.perform(Get(key))
    return found


async def keys(blobs: Blobs, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
    page: Any = await blobs.perform(List(prefix, after, limit))
    assert isinstance(page, Page)
    return [item.key for item in page.items]


async def write(blobs: Blobs, op: Create | Swap) -> Any:
    return await blobs.perform(op)


def at_once(connections: list[Blobs], op: Callable[[int], Op]) -> list[Any]:
    """Perform operations from as many threads, released together."""
    barrier = threading.Barrier(len(connections))

    def one(number: int) -> Any:
        barrier.wait()
        return asyncio.run(connections[number].perform(op(number)))  # pyright: ignore[reportArgumentType]

    with ThreadPoolExecutor(len(connections)) as threads:
        return list(threads.map(one, range(len(connections))))


class TestAtomicVisibility:
    async def test_what_was_written_is_read_back_with_its_etag(self, blobs: Blobs) -> None:
        for key, body in (("q/a", b"one"), ("q/empty", b""), ("q/big", bytes(range(256)) * 8192)):
            etag = await write(blobs, Create(key, body))
            found = await get(blobs, key)
            assert found is not None
            assert (found.body, found.etag) == (body, etag)
            assert abs(found.modified - time.time() * 1000) < 60_000

    async def test_what_is_not_there_reads_as_none(self, blobs: Blobs) -> None:
        assert await get(blobs, "q/nothing") is None
        await write(blobs, Create("q/file", b"x"))
        assert await get(blobs, "q/file/below") is None

    async def test_a_read_returns_the_bytes_of_one_write(self, connect: Connect) -> None:
        """While writers swap, readers see one letter only, in full length."""
        writer, reader = connect(), connect()
        etag = await write(writer, Create("q/a", b"a" * 50_000))
        stop = False

        async def swap() -> None:
            nonlocal etag, stop
            for n in range(60):
                etag = await write(writer, Swap("q/a", bytes([97 + n % 26]) * 50_000, etag))
            stop = True

        async def look() -> None:
            while not stop:
                found = await get(reader, "q/a")
                assert found is not None
                assert len(found.body) == 50_000
                assert len(set(found.body)) == 1
                await asyncio.sleep(0)

        await asyncio.gather(swap(), look())

    async def test_a_stream_is_invisible_until_it_has_ended(self, connect: Connect) -> None:
        blobs, other = connect(), connect()

        async def chunks() -> AsyncIterator[bytes]:
            for n in range(3):
                assert await get(other, "q/blob") is None
                assert await keys(other) == []
                yield bytes([n]) * 100_000

        assert await blobs.put_stream("q/blob", chunks()) == 300_000
        found = await get(other, "q/blob")
        assert found is not None
        assert found.body == b"\0" * 100_000 + b"\1" * 100_000 + b"\2" * 100_000

    async def test_a_stream_that_breaks_leaves_nothing(self, blobs: Blobs) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"x" * 100_000
            raise RuntimeError("broken")

        with pytest.raises(RuntimeError, match="broken"):
            await blobs.put_stream("q/blob", chunks())
        assert await keys(blobs) == []


class TestMutualExclusion:
    async def test_a_second_create_is_a_conflict_and_changes_nothing(self, connect: Connect) -> None:
        blobs, other = connect(), connect()
        etag = await write(blobs, Create("q/a", b"first"))
        assert await write(other, Create("q/a", b"second")) is CONFLICT
        found = await get(other, "q/a")
        assert found is not None
        assert (found.body, found.etag) == (b"first", etag)

    async def test_of_many_creates_one_is_applied(self, connect: Connect) -> None:
        connections, turns = [connect() for _ in range(8)], 20
        if isinstance(connections[0], CloudBlobs):
            connections, turns = connections[:4], 6  # SeaweedFS makes the losers of a race wait for seconds
        for turn in range(turns):
            key = f"q/{turn}"
            answers = await asyncio.to_thread(
                at_once, connections, lambda n, key=key: Create(key, f"writer {n}".encode())
            )
            won = [n for n, answer in enumerate(answers) if answer is not CONFLICT]
            assert len(won) == 1
            found = await get(connections[0], key)
            assert found is not None
            assert (found.body, found.etag) == (f"writer {won[0]}".encode(), answers[won[0]])

    async def test_of_many_swaps_one_is_applied(self, connect: Connect) -> None:
        connections, turns = [connect() for _ in range(8)], 20
        if isinstance(connections[0], CloudBlobs):
            connections, turns = connections[:4], 6
        etag = await write(connections[0], Create("q/a", b"start"))
        for turn in range(turns):
            answers = await asyncio.to_thread(
                at_once,
                connections,
                lambda n, etag=etag, turn=turn: Swap("q/a", f"writer {n}, turn {turn}".encode(), etag),
            )
            won = [n for n, answer in enumerate(answers) if answer is not CONFLICT]
            assert len(won) == 1
            etag = answers[won[0]]
            found = await get(connections[0], "q/a")
            assert found is not None
            assert (found.body, found.etag) == (f"writer {won[0]}, turn {turn}".encode(), etag)

    async def test_a_swap_needs_the_current_etag(self, blobs: Blobs) -> None:
        first = await write(blobs, Create("q/a", b"1"))
        second = await write(blobs, Swap("q/a", b"2", first))
        for stale in (first, "", "nonsense", second + "0"):
            assert await write(blobs, Swap("q/a", b"3", stale)) is CONFLICT
        assert await write(blobs, Swap("q/nothing", b"3", first)) is CONFLICT
        found = await get(blobs, "q/a")
        assert found is not None
        assert found.body == b"2"
        assert await get(blobs, "q/nothing") is None

    async def test_a_deleted_key_cannot_be_swapped_and_can_be_created(self, blobs: Blobs) -> None:
        etag = await write(blobs, Create("q/a", b"1"))
        await blobs.perform(Delete(("q/a",)))
        assert await write(blobs, Swap("q/a", b"2", etag)) is CONFLICT
        assert isinstance(await write(blobs, Create("q/a", b"2")), str)

    @pytest.mark.parametrize("nonce", [False, True], ids=["same bytes", "new bytes"])
    async def test_an_etag_never_comes_back(self, blobs: Blobs, nonce: bool) -> None:
        """What is swapped and deleted and created anew in quick succession has new etags each time."""
        if not nonce and isinstance(blobs, CloudBlobs):
            pytest.skip("the etag of S3 is a hash of the content")
        bodies = (str(n).encode() if nonce else b"same" for n in itertools.count())
        seen: set[str] = set()
        for _ in range(30):
            etag = await write(blobs, Create("q/a", next(bodies)))
            assert etag not in seen
            seen.add(etag)
            for _ in range(3):
                etag = await write(blobs, Swap("q/a", next(bodies), etag))
                assert etag not in seen
                seen.add(etag)
            await blobs.perform(Delete(("q/a",)))

    async def test_counting_from_many_threads_misses_nothing(self, connect: Connect) -> None:
        connections = [connect() for _ in range(4)]
        await write(connections[0], Create("q/n", b"0"))

        def count(number: int) -> None:
            async def up() -> None:
                done = 0
                while done < 25:
                    found = await get(connections[number], "q/n")
                    assert found is not None
                    swap = Swap("q/n", str(int(found.body) + 1).encode(), found.etag)
                    done += await write(connections[number], swap) is not CONFLICT

            asyncio.run(up())

        with ThreadPoolExecutor(4) as threads:
            await asyncio.gather(*(asyncio.wrap_future(threads.submit(count, n)) for n in range(4)))
        found = await get(connections[0], "q/n")
        assert found is not None
        assert found.body == b"100"


class TestConsistentReads:
    async def test_every_write_is_seen_by_the_next_look_of_another_connection(self, connect: Connect) -> None:
        blobs, other = connect(), connect()
        for n in range(40):
            if n % 8 == 0:
                await asyncio.sleep(0.06)
                assert await keys(other, "q/") == ([] if n == 0 else ["q/stays"])
            etag = await write(blobs, Create(f"q/{n:03}", b"x"))
            assert f"q/{n:03}" in await keys(other, "q/")
            etag = await write(other, Swap(f"q/{n:03}", b"yy", etag))
            page: Any = await blobs.perform(List("q/"))
            assert [(item.etag, item.size) for item in page.items if item.key == f"q/{n:03}"] == [(etag, 2)]
            await other.perform(Delete((f"q/{n:03}",)))
            assert f"q/{n:03}" not in await keys(blobs, "q/")
            assert await get(blobs, f"q/{n:03}") is None
            if n == 0:
                await write(blobs, Create("q/stays", b"x"))

    async def test_a_listing_tells_size_etag_and_time(self, blobs: Blobs) -> None:
        etag = await write(blobs, Create("q/a", b"12345"))
        page: Any = await blobs.perform(List("q/"))
        found = await get(blobs, "q/a")
        assert found is not None
        (item,) = page.items
        assert (item.key, item.etag, item.size, item.modified) == ("q/a", etag, 5, found.modified)


Order = Callable[[str], Any]


@pytest.fixture
def order(request: pytest.FixtureRequest) -> Order:
    """How keys are sorted: SeaweedFS keeps folders, and sorts by the parts of a key."""
    parts = request.node.callspec.params["connect"] == "seaweedfs"
    return (lambda key: key.split("/")) if parts else (lambda key: key)


NAMES = ["q/a-b/1", "q/a.b", "q/a/1", "q/a/2/x", "q/a/b", "q/a0", "q/a_", "q/aa", "q/b", "q/~", "r/1", "s"]


class TestOrderedListing:
    async def test_keys_come_in_order_across_folders(self, blobs: Blobs, order: Order) -> None:
        for key in reversed(NAMES):
            await write(blobs, Create(key, b"x"))
        assert await keys(blobs) == sorted(NAMES, key=order)

    @pytest.mark.parametrize(
        "prefix", ["", "q", "q/", "q/a", "q/a/", "q/a/2", "q/a-", "q/a0", "r/", "nothing/", "q/zz", "s", "s/"]
    )
    async def test_a_prefix_selects_by_text_not_by_folder(self, blobs: Blobs, prefix: str, order: Order) -> None:
        for key in NAMES:
            await write(blobs, Create(key, b"x"))
        assert await keys(blobs, prefix) == [key for key in sorted(NAMES, key=order) if key.startswith(prefix)]

    async def test_a_listing_starts_strictly_after(self, blobs: Blobs, order: Order) -> None:
        for key in NAMES:
            await write(blobs, Create(key, b"x"))
        for after in [*NAMES, "q/a", "q/a/", "q/a/2", "q/a/2/", "q/a/~", "q/0", "p", "z", "q/a-", "q/a~"]:
            for prefix in ("", "q/", "q/a/", "r/"):
                in_folder = after.startswith(prefix) and not any(key.startswith(f"{after}/") for key in NAMES)
                if order("") != "" and not in_folder:
                    continue
                expected = [
                    key for key in sorted(NAMES, key=order) if key.startswith(prefix) and order(key) > order(after)
                ]
                assert await keys(blobs, prefix, after) == expected, (prefix, after)

    async def test_pages_join_to_the_whole(self, blobs: Blobs, order: Order) -> None:
        for key in NAMES:
            await write(blobs, Create(key, b"x"))
        for limit in (1, 2, 5, 11, 12, 13):
            found: list[str] = []
            after, more = "", True
            while more:
                page: Any = await blobs.perform(List("", after, limit))
                assert len(page.items) <= limit
                found += [item.key for item in page.items]
                more = page.more
                after = found[-1]
            assert found == sorted(NAMES, key=order)

    async def test_more_says_whether_the_listing_goes_on(self, blobs: Blobs) -> None:
        for n in range(3):
            await write(blobs, Create(f"q/{n}", b"x"))
        for limit, more in ((2, True), (3, False), (4, False)):
            page: Any = await blobs.perform(List("q/", "", limit))
            assert page.more is more
        page = await blobs.perform(List("nothing/"))
        assert (list(page.items), page.more) == ([], False)


PART = st.text(alphabet="a-./0_~!b", min_size=1, max_size=4).filter(
    lambda part: all(piece not in ("", ".", "..") for piece in part.split("/"))
)
PREFIX = st.text("a-./0_~qb", max_size=4).filter(
    lambda prefix: all(piece not in ("", ".", "..") for piece in prefix.split("/")[:-1])
)
KEYS = st.sets(st.lists(PART, min_size=1, max_size=3).map("/".join).map(lambda key: "q/" + key), max_size=12)


def without_files_as_folders(names: set[str]) -> list[str]:
    """A key that is another one's folder cannot be a file: the protocol never makes such."""
    return sorted(key for key in names if not any(other.startswith(key + "/") for other in names))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=KEYS, prefix=PREFIX, after=st.text("a-./0_~qb", max_size=6), limit=st.integers(1, 5))
@pytest.mark.parametrize("kind", [DiskBlobs, SqliteBlobs])
def test_a_disk_lists_as_a_sorted_list_would(
    tmp_path_factory: pytest.TempPathFactory,
    kind: type[DiskBlobs | SqliteBlobs],
    names: set[str],
    prefix: str,
    after: str,
    limit: int,
) -> None:
    stored = without_files_as_folders(names)

    async def run() -> None:
        blobs = kind(str(tmp_path_factory.mktemp("listing") / "store"), fsync=False, watch=False)
        for key in stored:
            await write(blobs, Create(key, b"x"))
        expected = [key for key in stored if key.startswith("q/" + prefix) and key > after]
        page: Any = await blobs.perform(List("q/" + prefix, after, limit))
        assert [item.key for item in page.items] == expected[:limit]
        assert page.more == (len(expected) > limit)
        await blobs.close()

    asyncio.run(run())


class TestDeletes:
    async def test_deletes_may_be_repeated(self, blobs: Blobs) -> None:
        for key in ("q/a", "q/b", "q/c"):
            await write(blobs, Create(key, b"x"))
        for _ in range(2):
            await blobs.perform(Delete(("q/a", "q/c", "q/never", "never/either")))
        assert await keys(blobs) == ["q/b"]
        await blobs.perform(Delete(()))

    async def test_a_conditional_delete_needs_the_current_etag(self, connect: Connect) -> None:
        blobs, other = connect(), connect()
        first = await write(blobs, Create("q/a", b"1"))
        second = await write(other, Swap("q/a", b"2", first))
        assert await blobs.perform(DeleteIf("q/a", first)) is CONFLICT
        assert await get(blobs, "q/a") is not None
        assert await blobs.perform(DeleteIf("q/a", second)) == second
        assert await get(other, "q/a") is None
        assert await blobs.perform(DeleteIf("q/a", second)) is CONFLICT

    async def test_of_a_swap_and_a_conditional_delete_one_is_applied(self, connect: Connect) -> None:
        connections = [connect() for _ in range(4)]
        for turn in range(15):
            key = f"q/{turn}"
            etag = await write(connections[0], Create(key, b"x"))

            def op(n: int, key: str = key, etag: str = etag) -> Op:
                return DeleteIf(key, etag) if n % 2 else Swap(key, b"y", etag)

            answers = await asyncio.to_thread(at_once, connections, op)
            won = [n for n, answer in enumerate(answers) if answer is not CONFLICT]
            assert len(won) == 1
            assert (await get(connections[0], key) is None) == bool(won[0] % 2)


class TestCopies:
    async def test_a_copy_has_the_bytes_of_its_source(self, blobs: Blobs) -> None:
        body = bytes(range(256)) * 5000
        await write(blobs, Create("q/a/source", body))
        assert await blobs.perform(Copy("q/a/source", "r/b/target")) is True
        found = await get(blobs, "r/b/target")
        assert found is not None
        assert found.body == body

    async def test_a_copy_of_nothing_is_false_and_makes_nothing(self, blobs: Blobs) -> None:
        assert await blobs.perform(Copy("q/nothing", "q/target")) is False
        assert await keys(blobs) == []

    async def test_a_copy_writes_anew_what_is_there(self, blobs: Blobs) -> None:
        """A sweeper that has listed it takes it for a leftover no more, where it can tell."""
        await blobs.perform(Create("q/a", b"bytes"))
        await blobs.perform(Copy("q/a", "q/b"))
        before: Any = await blobs.perform(List("q/b"))
        await asyncio.sleep(1.1 if isinstance(blobs, CloudBlobs) else 0.002)
        await blobs.perform(Copy("q/a", "q/b"))
        after: Any = await blobs.perform(List("q/b"))
        assert after.items != before.items
        assert [item.size for item in after.items] == [5]

    async def test_a_copy_may_be_repeated(self, blobs: Blobs) -> None:
        await write(blobs, Create("q/a", b"x"))
        for _ in range(2):
            assert await blobs.perform(Copy("q/a", "q/b")) is True
        assert await keys(blobs) == ["q/a", "q/b"]


class TestStreams:
    async def test_a_stream_is_read_in_chunks(self, blobs: Blobs) -> None:
        body = bytes(range(256)) * 1000
        await write(blobs, Create("q/a", body))
        chunks = [chunk async for chunk in blobs.get_stream("q/a", chunk=100_000)]
        assert [len(chunk) for chunk in chunks] == [100_000, 100_000, 56_000]
        assert b"".join(chunks) == body

    async def test_a_stream_of_nothing_says_that_it_is_gone(self, blobs: Blobs) -> None:
        with pytest.raises(MessageNotFound, match="q/nothing"):
            _ = [chunk async for chunk in blobs.get_stream("q/nothing")]

    async def test_a_stream_does_not_replace_what_is_there(self, blobs: Blobs) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"second"

        await write(blobs, Create("q/a", b"first"))
        await blobs.put_stream("q/a", chunks())
        found = await get(blobs, "q/a")
        assert found is not None
        assert found.body == b"first"

    async def test_an_empty_stream_is_an_empty_object(self, blobs: Blobs) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in ():
                yield b""

        assert await blobs.put_stream("q/a", chunks()) == 0
        found = await get(blobs, "q/a")
        assert found is not None
        assert found.body == b""


class TestWatch:
    @pytest.fixture(autouse=True)
    def _tells(self, connect: Connect) -> None:
        if isinstance(connect(), CloudBlobs):
            pytest.skip("object stores don't tell of writes")

    async def test_a_write_by_another_connection_wakes(self, connect: Connect) -> None:
        blobs, other = connect(), connect()
        woken: set[str] = set()
        stop = blobs.watch("q/a/", woken.add)
        assert stop is not None
        await self.until_it_wakes(other, woken, "q/a/{}")
        stop()

    async def test_other_prefixes_do_not_wake_and_stopping_stops(self, connect: Connect) -> None:
        blobs, other = connect(), connect()
        mine: set[str] = set()
        all_of_it: set[str] = set()
        stop, stop_all = blobs.watch("q/a/", mine.add), blobs.watch("q/", all_of_it.add)
        assert stop is not None
        assert stop_all is not None
        await self.until_it_wakes(other, all_of_it, "q/b/{}")
        assert [key for key in mine if key.startswith("q/b")] == []
        stop()
        mine.clear()
        await self.until_it_wakes(other, all_of_it, "q/a/again-{}")
        assert mine == set()
        stop_all()

    async def until_it_wakes(self, blobs: Blobs, woken: set[str], key: str) -> None:
        """Watching begins a moment after it was asked for: write until one of the writes is told."""
        written: set[str] = set()
        end = time.monotonic() + 15
        while not written & woken:
            assert time.monotonic() < end, "nothing was told of"
            written.add(key.format(len(written)))
            await write(blobs, Create(key.format(len(written) - 1), b"x"))
            for _ in range(25):
                await asyncio.sleep(0.002)
                if written & woken:
                    break


async def test_requests_are_counted_by_kind(blobs: Blobs) -> None:
    if isinstance(blobs, CloudBlobs):
        pytest.skip("here requests are counted, retries among them: see test_cloud_budgets")
    assert blobs.requests() == {}
    etag = await write(blobs, Create("q/a", b"x"))
    await write(blobs, Swap("q/a", b"y", etag))
    await get(blobs, "q/a")
    blobs.try_now(Get("q/a"))
    await keys(blobs)
    await blobs.perform(Copy("q/a", "q/b"))
    await blobs.perform(DeleteIf("q/b", "no"))
    await blobs.perform(Delete(("q/a", "q/b")))
    assert blobs.requests() == {
        "create": 1,
        "swap": 1,
        "get": 2,
        "list": 1,
        "copy": 1,
        "deleteif": 1,
        "delete": 1,
    }


COUNTER = """
import asyncio, sys
from brigade.blobs import CONFLICT, Create, Get, Swap
from brigade.blobs.disk import DiskBlobs

async def main(root, times, name):
    blobs = DiskBlobs(root, fsync=False, watch=False)
    wins = 0
    for n in range(times):
        wins += await blobs.perform(Create(f"q/create/{n}", name.encode())) is not CONFLICT
    done = 0
    while done < times:
        found = await blobs.perform(Get("q/n"))
        done += await blobs.perform(Swap("q/n", str(int(found.body) + 1).encode(), found.etag)) is not CONFLICT
    print(wins)
    await blobs.close()

asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
"""


def spawn(script: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    yield subprocess.Popen([sys.executable, "-c", script, *map(str, args)], stdout=subprocess.PIPE, text=True)


async def test_exclusion_holds_between_processes(tmp_path: Path) -> None:
    """Four processes create the same keys and count in the same object: one winner each, no count missed."""
    blobs = DiskBlobs(str(tmp_path / "store"), fsync=False, watch=False)
    await write(blobs, Create("q/n", b"0"))
    running = [process for n in range(4) for process in spawn(COUNTER, tmp_path / "store", 60, f"p{n}")]
    said = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0] * 4
    found = await get(blobs, "q/n")
    assert found is not None
    assert found.body == b"240"
    assert sum(map(int, said)) == 60
    await blobs.close()
