"""Bad input at the door: URLs, options and names; and nothing is written by anything that is refused."""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade import Ack, ConfigError, Extend, Nack, NewMessage, PayloadTooLarge, QueuePolicy, Release
from brigade.blobs.memory import Bucket
from brigade.policy import decode_policy, encode_policy
from brigade.testing.conformance.bad_input import BAD_NAMES, BAD_OPTIONS, BAD_SECONDS, NAN
from brigade.testing.conformance.harness import claim_one

BAD_URLS: list[tuple[Any, str]] = [
    ("", "memory://"),
    ("jobs", "file://"),
    ("./jobs", "file://"),
    ("memory", "memory://"),
    ("memory:", "memory://"),
    ("redis://localhost", "not a kind of store"),
    ("FILE:///tmp/x", "not a kind of store"),
    ("://x", "kind of store"),
    ("file://", "needs a directory"),
    ("file://?fsync=off", "needs a directory"),
    ("file:///tmp/a\x00b", "NUL"),
    ("file:///tmp/a%00b", "NUL"),
    ("file:///tmp/x?fsync=maybe", "true or false"),
    ("file:///tmp/x?sync=on", "no option 'sync'"),
    ("sqlite://", "needs a file"),
    ("sqlite:///tmp", "is a directory"),
    ("sqlite:///tmp/x.db?fsync=maybe", "true or false"),
    ("sqlite:///tmp/x.db?schema=y", "no option 'schema'"),
    ("memory://x?fsync=on", "no option 'fsync'"),
    (None, "must be a string"),
    (17, "must be a string"),
    (Path("/tmp/x"), "must be a string"),
    (b"memory://x", "must be a string"),
]


@pytest.mark.parametrize("url,said", BAD_URLS, ids=lambda value: repr(value)[:30])
async def test_a_bad_url_is_refused(url: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        brigade.connect(url)
    with pytest.raises(ConfigError, match=said):
        await brigade.connect_async(url).open()


@pytest.mark.parametrize(
    "options,said",
    [({"fsync": 17}, "true or false"), ({"fsync": None}, "true or false"), ({"sync": True}, "fsync, watch")],
)
def test_a_bad_option_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        brigade.connect(f"file://{tmp_path}/jobs", **options)
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize(
    "value,kept", [("on", True), ("0", False), (True, True), (False, False), ("Yes", True), ("off", False)]
)
def test_switches_are_written_in_many_ways(tmp_path: Path, value: Any, kept: bool) -> None:
    from brigade.stores.opening import parse_url

    assert parse_url(f"file://{tmp_path}", {"fsync": value})[2] == {"fsync": kept}
    assert parse_url(f"file://{tmp_path}?fsync={value}", {})[2] == {"fsync": kept}


def test_a_path_may_hold_escapes_spaces_and_question_marks(tmp_path: Path) -> None:
    with brigade.connect(f"file://{tmp_path}/with%20space%3F", fsync=False) as hub:
        hub.queue("x").enqueue("y")
    assert (tmp_path / "with space?" / "q" / "x").is_dir()


def test_a_relative_path_is_below_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with brigade.connect("file://./jobs", fsync=False) as hub:
        hub.queue("x").enqueue("y")
    assert (tmp_path / "jobs" / "q" / "x").is_dir()


def test_a_nameless_memory_store_is_private() -> None:
    with brigade.connect("memory://") as first, brigade.connect("memory://") as second:
        first.queue("x").enqueue("y")
        assert second.queues() == []


async def test_a_hub_that_was_not_opened_says_so() -> None:
    hub = brigade.connect_async("memory://")
    with pytest.raises(ConfigError, match="async with"):
        await hub.queue("x")


async def test_nothing_refused_leaves_a_trace() -> None:
    """The bucket holds the same bytes before and after everything that is refused."""
    place = uuid.uuid4().hex
    bucket = Bucket.named(place)
    async with brigade.connect_async(f"memory://{place}") as hub:
        queue = await hub.queue("tasks", QueuePolicy(max_payload=1000))
        await queue.enqueue("waits", id="mine")
        await queue.enqueue("held", priority=0)
        message = await claim_one(queue)
        before = bucket.snapshot()

        async def refused(work: Any, *kinds: type[Exception]) -> None:
            with pytest.raises(kinds or (ConfigError,)):
                await work
            assert bucket.snapshot() == before

        for name in BAD_NAMES:
            await refused(hub.queue(name))
        for policy in ({"ttl": 5}, "fifo", QueuePolicy(ttl=5)):
            await refused(hub.queue("tasks", policy))  # pyright: ignore[reportArgumentType]
        for option, value in BAD_OPTIONS:
            await refused(queue.enqueue("x", **{option: value}))
            await refused(queue.enqueue_many(["fine", NewMessage(payload="x", **{option: value})]))
        for payload in (object(), {"k": object()}, "\ud800"):
            await refused(queue.enqueue(payload))
            await refused(queue.enqueue_many(["fine", payload]))
        for payload in (b"x" * 1001, io.BytesIO(b"x" * 1001), iter([b"x" * 600_000] * 2)):
            await refused(queue.enqueue(payload), PayloadTooLarge)
        await refused(queue.enqueue(iter(["text", object()])))
        for value in BAD_SECONDS:
            await refused(queue.claim(wait=value))
        for limit in (0, -1, 10_001, 1.5, True, "1"):
            await refused(queue.claim(limit))  # pyright: ignore[reportArgumentType]
        for owner in ("", 17, "x" * 257):
            await refused(queue.claim(owner=owner))  # pyright: ignore[reportArgumentType]
        for settlement in ("x", Nack(message, delay=-1), Extend(message, NAN), Release(message, -1)):
            await refused(queue.settle([Ack(message), settlement]))  # pyright: ignore[reportArgumentType]
        await refused(queue.state(message).save(object()))


async def test_a_large_message_in_a_refused_batch_leaves_no_payload_behind() -> None:
    place = uuid.uuid4().hex
    async with brigade.connect_async(f"memory://{place}") as hub:
        queue = await hub.queue("tasks", QueuePolicy(max_payload=700_000))
        before = Bucket.named(place).snapshot()
        with pytest.raises(PayloadTooLarge):
            await queue.enqueue_many([b"x" * 600_000, b"x" * 800_000])
        assert Bucket.named(place).snapshot() == before


class TestStoredPolicies:
    """A policy that somebody edited by hand is checked like one in code."""

    def test_a_policy_comes_back_from_json(self) -> None:
        policy = QueuePolicy(ttl=5, failure=brigade.Failure("hybrid", 2, "dead"), backoff=brigade.Backoff(1, 2, None))
        assert decode_policy(encode_policy(policy), source="x") == policy

    @pytest.mark.parametrize(
        "changes,named",
        [
            ({"unknown": 1}, "unknown"),
            ({"ordering": "random"}, "ordering"),
            ({"failure": {"mode": "retry", "tries": 3}}, "tries"),
            ({"failure": None}, "failure"),
            ({"backoff": {"base": -1}}, "base"),
            ({"ttl": "soon"}, "ttl"),
        ],
    )
    def test_a_bad_field_is_named_with_its_source(self, changes: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=named) as caught:
            decode_policy({**encode_policy(QueuePolicy()), **changes}, source="q/tasks/policy.json")
        assert "q/tasks/policy.json" in str(caught.value)

    @pytest.mark.parametrize("value", [None, [], "text", 17])
    def test_a_policy_is_an_object(self, value: Any) -> None:
        with pytest.raises(ConfigError, match="JSON object"):
            decode_policy(value, source="x")
