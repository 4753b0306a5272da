"""Bulk jobs, tables, notes and cursors against clients that lie, break off, lose answers or want too much."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest

import brigade
from brigade import AsyncHub, ConfigError, NewMessage, PayloadTooLarge, StoreUnavailable
from brigade.blobs import List, Page
from brigade.blobs.memory import Bucket
from brigade.operator import Operator
from brigade.payload import outgoing
from brigade.server.sealing import KEY_ID, Seal
from brigade.server.serve import Serving
from brigade.server.service import Limits
from brigade.stores import Block, Outgoing, Staged
from brigade.stores.history import HistoryPart
from brigade.stores.remote import wire
from brigade.stores.remote.frames import frame, last_frame, read_frames
from brigade.stores.remote.store import RemoteStore
from brigade.stores.remote.wire_ports import Row
from brigade.testing.conformance.harness import claim_all, drain, eventually, values
from postgres_server import postgres, postgres_url
from served import served, server_process

__all__ = ["postgres", "postgres_url"]


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with served(f"memory://{uuid.uuid4().hex}") as serving:
        yield serving


@pytest.fixture
async def hub(server: Serving) -> AsyncIterator[AsyncHub]:
    async with brigade.connect_async(server.address) as opened:
        yield opened


def remote(hub: AsyncHub) -> RemoteStore:
    assert isinstance(hub.store, RemoteStore)
    return hub.store


def name() -> str:
    return f"q-{uuid.uuid4().hex[:12]}"


def some(*payloads: Any) -> list[Outgoing]:
    return [outgoing(NewMessage(payload=one)) for one in payloads]


async def staged_keys(serving: Serving, queue: str) -> list[str]:
    """What lies staged in the store behind the server."""
    bucket = Bucket.named(serving.config.url.removeprefix("memory://"))
    return [item.key for item in cast(Page, bucket.apply(List(f"q/{queue}/bulk/", "", 100))).items]


def altered(sealed: bytes, place: int) -> bytes:
    return sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]


async def test_parts_of_one_queue_or_job_are_nothing_to_another(hub: AsyncHub) -> None:
    mine, others = await hub.queue(name()), await hub.queue(name())
    store = remote(hub)
    part = await store.stage(mine.name, "job", some(1, 2))
    (sealed,) = msgspec.msgpack.decode(part.detail, type=list[bytes])
    forged = [
        *(msgspec.msgpack.encode([altered(sealed, place)]) for place in (0, 15, 16, len(sealed) - 1)),
        msgspec.msgpack.encode([sealed[16:]]),
        msgspec.msgpack.encode([b""]),
        msgspec.msgpack.encode([sealed + b"\0"]),
    ]
    for queue, job, detail in [
        (others.name, "job", part.detail),
        (mine.name, "another", part.detail),
        *((mine.name, "job", one) for one in forged),
    ]:
        staged = Staged(2, part.at_ms, detail)
        with pytest.raises(ConfigError, match="parts is not what this server gave"):
            await store.publish(queue, job, [staged])
        with pytest.raises(ConfigError, match="parts is not what this server gave"):
            await store.discard(queue, job, [staged])
    assert await store.publish(mine.name, "job", [part]) == 2
    assert (await others.stats()).total == 0
    assert values(await drain(mine, 2)) == [1, 2]


async def test_pieces_keys_and_cursors_of_one_queue_are_nothing_to_another(hub: AsyncHub) -> None:
    """Nor of one table to another: a piece names objects."""
    mine, others = await hub.queue(name()), await hub.queue(name())
    for queue in (mine, others):
        await queue.enqueue("done")
        await queue.ack_many(await claim_all(queue, 1))
        await queue.clear_queue_cache()
        await queue.enqueue_many(range(4))
    store = remote(hub)

    async def scanned(table: Any, piece: bytes) -> None:
        async for _ in store.scan(mine.name, table, piece):
            pass

    (theirs,) = await store.pieces(others.name, "history", 1)
    (own,) = await store.pieces(mine.name, "history", 1)
    made_up = msgspec.msgpack.encode([[], [], [f"q/{others.name}/policy.json"]])
    await scanned("history", own)
    for table, piece in [
        ("history", theirs),
        ("messages", own),
        ("failed", own),
        ("history", altered(own, len(own) - 1)),
        ("history", made_up),
        ("history", bytes(16) + made_up),
        ("history", b""),
    ]:
        with pytest.raises(ConfigError, match="piece is not what this server gave"):
            await scanned(table, piece)

    (part,) = await store.history_parts(mine.name, 0)
    (other,) = await store.history_parts(others.name, 0)
    assert len(await store.read_history(part)) == 1
    _, _, path = other.key.partition("!")
    for key in (other.key, path, f"!{path}", f"{'0' * 32}!{path}", f"zz!{path}", part.key + "x", "\u00e4!x"):
        with pytest.raises(ConfigError, match="key is not what this server gave"):
            await store.read_history(HistoryPart(mine.name, key, 0, 0))

    page = await Operator(others).browse(limit=1)
    tail = await Operator(others).tail()
    for after in (page.after, tail.after, "x", f"q/{others.name}/seg/|1"):
        with pytest.raises(ConfigError, match="after is not what this server gave"):
            await Operator(mine).browse(after=after)
    with pytest.raises(ConfigError, match="after is not what this server gave"):
        await Operator(mine).tail(page.after)


async def test_stores_themselves_keep_to_the_queue_that_is_named(postgres_url: str) -> None:
    """Should a seal ever be forged, what it is on still leads nowhere else."""
    async with brigade.connect_async("memory://") as bucket:
        mine, others = await bucket.queue("mine"), await bucket.queue("others")
        await others.enqueue("x")
        await others.ack_many(await claim_all(others, 1))
        store: Any = bucket.store
        await store.forget("others")
        (part,) = await store.history_parts("others", 0)
        for key in (part.key, "q/mine/hist/../../others/policy.json", f"q/mine/hist/date=2026-01-01/../{part.key}"):
            with pytest.raises(ConfigError, match="no history of queue 'mine'"):
                await store.read_history(HistoryPart("mine", key, 0, 0))
            for table, lanes in (("history", []), ("failed", []), ("messages", [f"../../others/{key}"])):
                piece = msgspec.msgpack.encode([[], lanes, [] if lanes else [key]])
                with pytest.raises(ConfigError, match="not of"):
                    await anext(store.scan(mine.name, table, piece))
    async with brigade.connect_async(postgres_url) as base:
        mine, others = await base.queue(name()), await base.queue(name())
        store = base.store
        part = await store.stage(others.name, "job", some("theirs"))
        await store.discard(mine.name, "job", [part])
        with pytest.raises(StoreUnavailable, match="are gone"):
            await store.publish(mine.name, "job", [part])
        assert await store.publish(others.name, "job", [part]) == 1
        assert (await mine.stats()).total == 0


async def test_seals_are_known_to_every_server_of_a_store(hub: AsyncHub, server: Serving) -> None:
    """Also to the next one: whoever staged before a restart publishes after it."""
    queue = await hub.queue(name())
    part = await remote(hub).stage(queue.name, "job", some("x"))
    pieces = await remote(hub).pieces(queue.name, "messages", 1)
    with served(server.config.url) as second:
        async with brigade.connect_async(second.address) as other:
            assert await remote(other).pieces(queue.name, "messages", 1) == pieces == []
            assert await remote(other).publish(queue.name, "job", [part]) == 1
    stored = dict(await cast(Any, server.service.hub.store).tokens())
    assert len(stored[KEY_ID]) == 32


def test_a_seal_is_bound_to_every_word_about_it() -> None:
    seal = Seal(b"k" * 32)
    sealed = seal.close(b"value", "a", "bc")
    assert seal.open(sealed, "a", "bc", field="x") == b"value"
    for about in (("ab", "c"), ("a", "b", "c"), ("a",), ()):
        with pytest.raises(ConfigError, match="x is not"):
            seal.open(sealed, *about, field="x")
    with pytest.raises(ConfigError, match="x is not"):
        Seal(b"l" * 32).open(sealed, "a", "bc", field="x")


async def test_a_body_that_breaks_off_or_is_refused_leaves_nothing_staged(
    server: Serving, hub: AsyncHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brigade.server.staging.MOST_ROWS", 2)
    queue = await hub.queue(name())
    rows = [frame(msgspec.msgpack.encode([Row(b"x", "text/plain")] * 2)) for _ in range(3)]
    bad = frame(msgspec.msgpack.encode([Row(b"x", "text/plain", 77)]))
    url = f"{server.address}/v1/queue/stage"

    async def sent(*pieces: bytes, breaks: bool = False) -> httpx.Response:
        async def body() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece
            if breaks:
                await eventually(lambda: staged_keys(server, queue.name))
                raise OSError("the client dies")

        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            return await http.post(url, params={"queue": queue.name, "job": "j"}, content=body())

    async def nothing_left() -> bool:
        return not await staged_keys(server, queue.name)

    with pytest.raises(OSError, match="the client dies"):
        await sent(*rows, breaks=True)
    await eventually(nothing_left)
    for pieces, said in [
        ((*rows, bad, last_frame()), "priority is 77"),
        (rows, "in the middle of a frame"),
        ((*rows, frame(b"\xc1"), last_frame()), "no list of messages"),
        ((*rows, b"\xff\xff\xff\xff"), "frame has 4294967295 bytes"),
    ]:
        answer = await sent(*pieces)
        assert (answer.status_code, said in answer.text) == (400, True), answer.text
        await eventually(nothing_left)
    answer = await sent(*rows, last_frame())
    assert len(answer.json()["parts"]) == 3


async def test_limits_hold_for_what_is_streamed_in() -> None:
    limits = Limits(most_body=64 * 1024, most_stream=256 * 1024)
    with served(f"memory://{uuid.uuid4().hex}", limits=limits) as serving:
        async with brigade.connect_async(serving.address) as hub:
            queue, store = await hub.queue(name()), remote(hub)
            with pytest.raises(PayloadTooLarge, match="raise its --max-body"):
                await store.stage(queue.name, "job", some(b"x" * 100_000))
            bulky = [outgoing(NewMessage(payload=1, attributes={"a": "x" * 50_000})) for _ in range(10)]
            assert (await store.stage(queue.name, "other", bulky)).count == 10
            fitting = await store.stage(queue.name, "job", some(*[b"x" * 40_000] * 20))
            assert len(msgspec.msgpack.decode(fitting.detail)) > 5
            assert await store.publish(queue.name, "job", [fitting]) == 20
            async with httpx.AsyncClient(base_url=serving.address, trust_env=False, timeout=60) as http:
                where = {"queue": queue.name, "job": "job"}
                large = frame(msgspec.msgpack.encode([Row(b"x" * 100_000, "text/plain")]))
                answer = await http.post(wire_path("stage"), params=where, content=large + last_frame())
                assert (answer.status_code, "a frame has" in answer.text) == (400, True)
                many = frame(msgspec.msgpack.encode([Row(b"x" * 40_000, "text/plain")])) * 20
                answer = await http.post(wire_path("stage"), params=where, content=many + last_frame())
                assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
            with pytest.raises(PayloadTooLarge, match="more than 262144 bytes"):
                await store.write_note(queue.name, "n", bytes(300_000))
            with pytest.raises(ConfigError, match="parts has one of them twice"):
                await store.publish(queue.name, "job", [fitting, fitting])
            for bad in ("", "two words", "\u00e4", "x" * 301):
                with pytest.raises(ConfigError, match="not valid"):
                    await store.read_note(queue.name, bad)


Lose = Callable[[str, Sequence[RemoteStore]], None]


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Lose:
    """Have the answers of a path get lost on the way, once: what was asked for is carried out."""

    def arm(path: str, stores: Sequence[RemoteStore]) -> None:
        first, last = stores[0]._client, stores[-1]._client  # pyright: ignore[reportPrivateUsage]
        ask, ask_other, lost = first._request, last._request, False  # pyright: ignore[reportPrivateUsage]

        async def request(method: str, where: str, *rest: Any, **what: Any) -> httpx.Response:
            nonlocal lost
            if where != wire_path(path):
                return await ask(method, where, *rest, **what)
            if lost:
                return await ask_other(method, where, *rest, **what)
            assert (await ask(method, where, *rest, **what)).status_code == 200
            lost = True
            raise httpx.ReadError("lost")

        monkeypatch.setattr(first, "_request", request)

    return arm


def wire_path(path: str) -> str:
    return f"/v1/queue/{path}"


@pytest.mark.parametrize("path", ["stage", "publish", "unstage", "note", "override", "reprioritize"])
async def test_an_answer_that_is_lost_is_asked_for_again(hub: AsyncHub, server: Serving, lose: Lose, path: str) -> None:
    """[G1] The second try goes to another server, which knows nothing of the first; nothing is there twice."""
    queue = await hub.queue(name())
    store = remote(hub)
    receipt = await queue.enqueue("there", priority=9)
    with served(server.config.url) as second:
        async with brigade.connect_async(second.address) as other:
            lose(path, [store, remote(other)])
            part = await store.stage(queue.name, "job", some(1, 2, 3))
            dropped = await store.stage(queue.name, "dropped", some("never"))
            await store.discard(queue.name, "dropped", [dropped])
            assert await store.publish(queue.name, "job", [part]) == (0 if path == "publish" else 3)
            assert await store.write_note(queue.name, "n", b"mine") == b"mine"
            assert await store.write_note(queue.name, "n", b"other") == b"mine"
            assert await store.reprioritize(queue.name, [receipt.ref], 0) == (0 if path == "reprioritize" else 1)
            await store.override(queue.name, [receipt.id], "hasten")
            assert values(await drain(queue, 4)) == ["there", 1, 2, 3]
            assert await queue.claim() == []


async def test_chosen_leases_are_given_back_where_nobody_reads_the_answer(hub: AsyncHub) -> None:
    queue = await hub.queue(name())
    receipts = await queue.enqueue_many(range(50))
    store = remote(hub)
    refs = [receipt.ref for receipt in receipts]
    asking = asyncio.ensure_future(store.claim_these(queue.name, refs, owner="me", visibility=600))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking

    async def all_back() -> bool:
        return (await queue.stats()).ready == 50

    await eventually(all_back)


async def test_leases_are_loaded_elsewhere_in_portions_that_the_server_takes() -> None:
    """Messages don't come along with a lease, and a grant with more than a request may have is cut."""
    with served(f"memory://{uuid.uuid4().hex}", limits=Limits(most_messages=3)) as serving:
        async with brigade.connect_async(serving.address) as hub, brigade.connect_async(serving.address) as other:
            queue = await hub.queue(name())
            await queue.enqueue_many(range(3))
            await queue.enqueue_many(range(3, 6), priority=6)
            await queue.enqueue_many(range(6, 8), priority=7)
            grants = await remote(hub).lease(queue.name, limit=7, owner="me", visibility=60)
            assert sum(map(len, grants)) == 7
            messages = await remote(other).load(grants)
            assert [int(message.payload) for message in messages] == list(range(7))
            assert {message.lease.owner for message in messages} == {"me"}
            assert not [one for one in await queue.ack_many(messages) if isinstance(one, Exception)]
            with pytest.raises(ConfigError, match="more than 3 messages"):
                await remote(hub)._post("load", wire.Load(grants=grants), wire.Loaded)  # pyright: ignore[reportPrivateUsage]


async def test_an_error_half_way_through_an_answer_is_raised_as_what_it_is() -> None:
    async def chunks(*pieces: bytes) -> AsyncIterator[bytes]:
        for one in b"".join(pieces):
            yield bytes([one])

    async def read(*pieces: bytes) -> list[bytes]:
        return [piece async for piece in read_frames(chunks(*pieces))]

    assert await read(frame(b"one"), frame(b"two"), last_frame()) == [b"one", b"two"]
    with pytest.raises(brigade.CannotDecrypt, match="no key"):
        await read(frame(b"one"), last_frame(wire.Fault(code="cannot_decrypt", message="no key")))
    for cut in (frame(b"one"), frame(b"one")[:-1], frame(b"one") + b"\0\0\0"):
        with pytest.raises(StoreUnavailable, match="broke off"):
            await read(cut)


async def test_a_scan_that_fails_half_way_tells_why(
    hub: AsyncHub, server: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await hub.queue(name())
    await queue.enqueue("x")
    (piece,) = await remote(hub).pieces(queue.name, "messages", 1)

    async def breaks(*_: Any) -> AsyncIterator[Block]:
        yield Block(1, {"id": ["x"]})
        raise brigade.CannotDecrypt("the key is gone")

    monkeypatch.setattr(server.service.hub.store, "scan", breaks)
    with pytest.raises(brigade.CannotDecrypt, match="the key is gone"):
        async for _ in remote(hub).scan(queue.name, "messages", piece):
            pass


async def test_a_scan_ends_with_its_client(hub: AsyncHub, server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await hub.queue(name())
    await queue.enqueue("x")
    (piece,) = await remote(hub).pieces(queue.name, "messages", 1)
    made, ended = 0, threading.Event()

    async def endless(*_: Any) -> AsyncIterator[Block]:
        nonlocal made
        try:
            while True:
                made += 1
                yield Block(1, {"payload": [bytes(100_000)]})
        finally:
            ended.set()

    monkeypatch.setattr(server.service.hub.store, "scan", endless)
    blocks = cast("AsyncGenerator[Block]", remote(hub).scan(queue.name, "messages", piece))
    await anext(blocks)
    await blocks.aclose()
    assert await asyncio.to_thread(ended.wait, 30)
    assert made < 1000


async def test_what_was_staged_before_a_server_was_killed_is_published_after_it(tmp_path: Path) -> None:
    """[G1] By the same client, through the server's successor."""
    url = f"file://{tmp_path}/store?fsync=off"
    with contextlib.ExitStack() as stack:
        process, address = stack.enter_context(server_process(url))
        async with brigade.connect_async(address) as hub:
            queue = await hub.queue("tasks")
            part = await remote(hub).stage("tasks", "job", some(1, 2, 3))
            await asyncio.to_thread(process.kill)
            await asyncio.to_thread(process.wait)
            publishing = asyncio.ensure_future(remote(hub).publish("tasks", "job", [part]))
            port = int(address.rpartition(":")[2])
            await asyncio.to_thread(stack.enter_context, server_process(url, port=port))
            assert await publishing == 3
            assert values(await drain(queue, 3)) == [1, 2, 3]


async def test_large_blocks_come_in_portions_and_arrive_whole(hub: AsyncHub) -> None:
    queue = await hub.queue(name())
    for start in range(0, 2500, 500):
        await queue.enqueue_many(range(start, start + 500))
    store = remote(hub)
    seen = [
        int(payload)
        for piece in await store.pieces(queue.name, "messages", 2)
        async for block in store.scan(queue.name, "messages", piece)
        for payload in cast("list[bytes]", block.columns["payload"])
    ]
    assert sorted(seen) == list(range(2500))


async def test_an_operator_may_judge_by_anything(hub: AsyncHub) -> None:
    """What only the client can tell comes to it by pages, and the cursor goes on behind the last that fits."""
    queue = await hub.queue(name())
    await queue.enqueue_many(range(40))
    operator = Operator(queue)
    seen, after = list[int](), None
    while True:
        page = await operator.browse(match=lambda info: info.data % 7 == 0, limit=2, after=after)
        seen += values(page.messages)
        after = page.after
        if after is None:
            break
    assert sorted(seen) == [0, 7, 14, 21, 28, 35]
    assert remote(hub).upkeep().swept.keys() == set()
    await queue.sweep()
    assert remote(hub).upkeep().swept.keys() == {queue.name}
