"""Stores with encryption on: nothing of a message lies there in the clear, and nothing is lost to a missing key."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

import brigade
from brigade import Backoff, CannotDecrypt, ConfigError, Failure, Hub, Nack, QueuePolicy
from brigade.crypto.keys import Keys, KeySource, new_key, write_keys
from brigade.testing.conformance.harness import eventually
from postgres_server import database, postgres
from served import served

__all__ = ["database", "postgres"]

CANARY = "canary-7c1f"
LARGE = (CANARY * 40_000).encode()
POLICY = QueuePolicy(failure=Failure("hybrid", 1, "dead"), backoff=Backoff(base=0, maximum=0, jitter=None))


@pytest.fixture
def keys(tmp_path: Path) -> str:
    return key_file(tmp_path / "keys", "first")


def key_file(path: Path, name: str) -> str:
    made, key = new_key(0, name)
    write_keys(path, Keys(made, {made: key}), replace=False)
    return f"file:{path}"


def store_of(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store?fsync=false"


def stored(tmp_path: Path) -> dict[str, bytes]:
    """Everything in the store, by path."""
    root = tmp_path / "store"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def live_a_life(hub: Hub) -> None:
    """Every way in which contents of messages get into a store."""
    tasks = hub.queue("tasks", POLICY)
    lanes = hub.queue("lanes", QueuePolicy(ordering_guarantee=True))
    parked = hub.queue("parked", QueuePolicy(failure=Failure("retry", 0)))
    hub.queue("dead")
    for queue in (tasks, lanes, parked):
        queue.enqueue({"text": CANARY}, attributes={"who": CANARY})
        queue.enqueue(LARGE, attributes={"who": CANARY})
        queue.enqueue({"text": CANARY}, id="an id of my own")
    (first,) = tasks.claim(1)
    tasks.state(first).save({"step": CANARY})
    tasks.ack(first, result={"told": CANARY})
    for message in tasks.claim(10):
        tasks.settle([Nack(message, error=f"it broke: {CANARY}")])
    for message in tasks.claim(10):
        tasks.state(message).save({"step": CANARY})
        tasks.settle([Nack(message, error=f"it broke: {CANARY}")])
    (head,) = lanes.claim(1)
    lanes.ack(head, result={"told": CANARY * 1000})
    for message in parked.claim(10):
        parked.state(message).save({"step": CANARY})
        parked.settle([Nack(message, error=f"it broke: {CANARY}")])
    tasks.enqueue_many([{"text": CANARY}] * 50)
    for queue in (tasks, lanes, parked):
        queue.sweep()


def check_the_life(hub: Hub) -> None:
    """What `live_a_life` left is all there to be read."""
    dead, parked, lanes = hub.queue("dead"), hub.queue("parked"), hub.queue("lanes")
    letters = dead.claim(10)
    assert len(letters) == 2
    for letter in letters:
        assert letter.failure is not None
        assert letter.failure.error == f"it broke: {CANARY}"
        assert dead.state(letter).load() == {"step": CANARY}
        content = letter.open().read() if letter.body is None else letter.payload
        assert CANARY in content.decode()
    failures = parked.failed()
    assert len(failures) == 3
    assert {failure.error for failure in failures} == {f"it broke: {CANARY}"}
    assert parked.redrive() == 3
    again = parked.claim(10)
    assert len(again) == 3
    for message in again:
        assert CANARY in (message.open().read() if message.body is None else message.payload).decode()
        assert parked.state(message).load() == {"step": CANARY}
    assert any(message.attributes == {"who": CANARY} for message in again)
    (second,) = lanes.claim(1)
    assert second.open().read() == LARGE


def test_nothing_of_a_message_lies_in_a_bucket_in_the_clear(tmp_path: Path, keys: str) -> None:
    with brigade.connect(store_of(tmp_path), encryption=keys, encryption_strict=True) as hub:
        live_a_life(hub)
    found = stored(tmp_path)
    kinds = {path.split("/")[2] for path in found if path.startswith("q/")}
    assert {"seg", "lane", "lseg", "failed", "blob", "state", "ids", "hist"} <= kinds
    for path, body in found.items():
        clear = gzip.decompress(body) if path.endswith(".gz") else body
        assert CANARY.encode() not in clear, path
    history = b"".join(gzip.decompress(body) for path, body in found.items() if path.endswith(".gz"))
    assert b'"outcome":"processed"' in history
    with brigade.connect(store_of(tmp_path), encryption=keys, encryption_strict=True) as hub:
        check_the_life(hub)


def test_the_canary_would_be_found_without_encryption(tmp_path: Path) -> None:
    with brigade.connect(store_of(tmp_path)) as hub:
        live_a_life(hub)
    assert any(CANARY.encode() in body for body in stored(tmp_path).values())


def test_nothing_of_a_message_lies_in_a_database_in_the_clear(database: str, keys: str) -> None:
    with brigade.connect(database, encryption=keys, encryption_strict=True) as hub:
        live_a_life(hub)
        assert CANARY not in everything_in(database)
        check_the_life(hub)
    assert CANARY not in everything_in(database)


def everything_in(database: str) -> str:
    """Every row of every table, bytes shown as text where they are text."""
    with psycopg.connect(database) as conn:
        tables = conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'brigade'").fetchall()
        texts: list[str] = []
        for (name,) in tables:
            rows = conn.cursor(binary=True).execute(
                psycopg.sql.SQL("SELECT * FROM brigade.{}").format(psycopg.sql.Identifier(name))
            )
            texts += [
                value.decode("latin-1") if isinstance(value, bytes) else str(value) for row in rows for value in row
            ]
    assert len(texts) > 100
    return "\n".join(texts)


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_a_server_seals_what_its_clients_send(
    kind: str, tmp_path: Path, keys: str, request: pytest.FixtureRequest
) -> None:
    """Clients need no key, and see everything."""
    url = store_of(tmp_path) if kind == "file" else request.getfixturevalue("database")
    options = {"encryption": keys, "encryption_strict": True}
    with served(url, options=options) as serving, brigade.connect(serving.address) as hub:
        live_a_life(hub)
        assert hub.queue("lanes").get("an id of my own").data == {"text": CANARY}
        check_the_life(hub)
    if kind == "postgres":
        assert CANARY not in everything_in(url)
    else:
        assert not any(CANARY.encode() in body for body in stored(tmp_path).values())


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_a_key_that_is_missing_or_wrong_loses_nothing(
    kind: str, tmp_path: Path, keys: str, request: pytest.FixtureRequest
) -> None:
    """Whoever has none of a queue's keys is stopped before they write anything that others can't read."""
    url = store_of(tmp_path) if kind == "file" else request.getfixturevalue("database")
    with brigade.connect(url, encryption=keys) as hub:
        queue = hub.queue("tasks", QueuePolicy(failure=Failure("retry", 0)))
        queue.enqueue({"n": 1}, attributes={"a": 1})
        queue.enqueue(LARGE)
    (tmp_path / "wrong").mkdir()
    others: list[dict[str, Any]] = [
        {},
        {"encryption": key_file(tmp_path / "wrong" / "keys", "first")},
        {"encryption": key_file(tmp_path / "other", "second")},
    ]
    for other in others:
        with (
            brigade.connect(url, **other) as hub,
            pytest.raises(CannotDecrypt, match=r"connect with|put the right key"),
        ):
            hub.queue("tasks")
    with brigade.connect(url, encryption=keys) as hub:
        queue = hub.queue("tasks")
        assert [info.attempts for info in queue.peek(10)] == [0, 0]
        assert len(queue.claim(10)) == 2


@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("kind", ["file", "postgres", "sqlite"])
def test_what_can_be_opened_is_delivered_past_what_can_not(
    kind: str, urgent: bool, tmp_path: Path, keys: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """A message under a key that is missing stays, uncounted, and doesn't stop those behind it."""
    local = {"file": store_of(tmp_path), "sqlite": f"sqlite://{tmp_path}/store.db?fsync=false"}
    url = local.get(kind) or request.getfixturevalue("database")
    with brigade.connect(url, encryption=keys) as hub:
        sealed = hub.queue("tasks", QueuePolicy(failure=Failure("retry", 0))).enqueue("under the first key")
    shutil.copy(tmp_path / "keys", tmp_path / "both")
    both, second = f"file:{tmp_path}/both", f"file:{tmp_path}/second"
    write_keys(tmp_path / "both", KeySource(keys).read().with_primary("second", bytes(32)), replace=True)
    write_keys(tmp_path / "second", Keys("second", {"second": bytes(32)}), replace=False)
    with brigade.connect(url, encryption=both) as hub:
        hub.queue("tasks").enqueue("under the second key", priority=0 if urgent else 5)
    with brigade.connect(url, encryption=second) as hub:
        queue = hub.queue("tasks")
        found: list[Any] = []
        for _ in range(3):
            with contextlib.suppress(CannotDecrypt):
                found += [message.data for message in queue.claim(1)]
        assert found == ["under the second key"]
        with pytest.raises(CannotDecrypt, match=r"'first'.*add that key"):
            queue.get(sealed.id)
        queue.sweep()
    assert any("given back" in record.message and "'first'" in record.message for record in caplog.records)
    with brigade.connect(url, encryption=both) as hub:
        info = hub.queue("tasks").get(sealed.id)
        assert (info.data, info.attempts, info.state) == ("under the first key", 0, brigade.State.READY)


def claimed(queue: brigade.Queue) -> list[brigade.Message]:
    try:
        return queue.claim(1)
    except CannotDecrypt:
        return []


@pytest.mark.parametrize("kind", ["seg", "led", "state", "failed", "lane", "lseg", "ids"])
def test_tampered_objects_are_refused_and_kept(tmp_path: Path, keys: str, kind: str) -> None:
    url = store_of(tmp_path)
    with brigade.connect(url, encryption=keys) as hub:
        live_a_life(hub)
        hub.queue("tasks").claim(1)
    target = next(
        path
        for path in sorted(stored(tmp_path))
        if f"/{kind}/" in path and "!" not in path and len(stored(tmp_path)[path]) > 60
    )
    file = tmp_path / "store" / target
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.write_bytes(damaged)
    name = target.split("/")[1]
    with brigade.connect(url, encryption=keys) as hub:
        queue = hub.queue(name)
        work: list[Callable[[], Any]] = [
            lambda: queue.claim(100),
            queue.failed,
            queue.stats,
            queue.sweep,
            lambda: queue.enqueue("again", id="an id of my own"),
        ]
        for one in work:
            with contextlib.suppress(CannotDecrypt):
                one()
    assert file.read_bytes() == bytes(damaged)
    assert not any(path.startswith("corrupt/") for path in stored(tmp_path))


def test_objects_that_were_swapped_are_refused(tmp_path: Path, keys: str) -> None:
    """Between messages of a queue, and between queues."""
    url = store_of(tmp_path)
    with brigade.connect(url, encryption=keys) as hub:
        for name in ("a", "a", "b"):
            hub.queue(name).enqueue(f"for {name}")
    files = [tmp_path / "store" / path for path in sorted(stored(tmp_path)) if "/seg/" in path]
    assert len(files) == 3
    before = [file.read_bytes() for file in files]
    for order in ([1, 0, 2], [2, 1, 0]):
        for file, place in zip(files, order, strict=True):
            file.write_bytes(before[place])
        with brigade.connect(url, encryption=keys) as hub:
            for name in ("a", "b"):
                for _ in range(2):
                    assert {message.data for message in claimed(hub.queue(name))} <= {f"for {name}"}
            with pytest.raises(CannotDecrypt, match="swapped"):
                hub.queue("a").peek(5)
        for path in stored(tmp_path):
            if "/led/" in path:
                (tmp_path / "store" / path).unlink()


@pytest.mark.parametrize("column", ["payload", "attributes"])
@pytest.mark.parametrize("one, other", [(0, 1), (1, 2)], ids=["between messages", "between queues"])
def test_values_that_were_swapped_in_a_database_are_refused(
    database: str, keys: str, column: str, one: int, other: int
) -> None:
    with brigade.connect(database, encryption=keys) as hub:
        for name in ("a", "a", "b"):
            hub.queue(name).enqueue({"for": name}, attributes={"for": name})
        with psycopg.connect(database) as conn:
            ids = [row[0] for row in conn.execute("SELECT id FROM brigade.messages ORDER BY id")]
            swap = "UPDATE brigade.messages m SET {0} = o.{0} FROM brigade.messages o WHERE m.id = %s AND o.id = %s"
            conn.execute(psycopg.sql.SQL(swap).format(psycopg.sql.Identifier(column)), (ids[one], ids[other]))
        with pytest.raises(CannotDecrypt, match="sealed for"):
            hub.queue("a").peek(5)
        assert len(claimed(hub.queue("a"))) <= 1
        assert hub.queue("a").stats().total == 2


def test_a_large_payload_that_was_altered_is_refused_and_kept(tmp_path: Path, keys: str) -> None:
    url = store_of(tmp_path)
    with brigade.connect(url, encryption=keys) as hub:
        queue = hub.queue("tasks")
        queue.enqueue(LARGE)
        queue.enqueue(LARGE[::-1])
        messages = queue.claim(2)
        assert messages[0].open().read() == LARGE
        one, other = (tmp_path / "store" / path for path in sorted(stored(tmp_path)) if "/blob/" in path)
        whole = one.read_bytes()
        for damage in (
            whole[:-1],
            whole[: len(whole) // 2],
            other.read_bytes(),
            b"",
            whole[:300_000] + whole[365_552:],
        ):
            one.write_bytes(damage)
            with pytest.raises(CannotDecrypt, match=r"altered|cut short"):
                messages[0].open().read()
        one.write_bytes(whole)
        assert messages[0].open().read() == LARGE


def test_turning_encryption_on_keeps_what_was_there_before(tmp_path: Path, keys: str) -> None:
    url = store_of(tmp_path)
    with brigade.connect(url) as hub:
        hub.queue("tasks").enqueue_many(["clear"] * 3)
        hub.queue("tasks").enqueue(LARGE)
    with brigade.connect(url, encryption=keys) as hub:
        hub.queue("tasks").enqueue("sealed")
    with brigade.connect(url) as hub, pytest.raises(CannotDecrypt, match="is sealed, and encryption is off"):
        hub.queue("tasks")
    with brigade.connect(url, encryption=keys, encryption_strict=True) as hub:
        queue = hub.queue("tasks")
        with pytest.raises(CannotDecrypt, match="encryption_strict"):
            queue.peek(10)
    with brigade.connect(url, encryption=keys) as hub:
        queue = hub.queue("tasks")
        found = [message for _ in range(5) for message in queue.claim(1)]
        assert sorted(m.data if m.body is not None else "large" for m in found) == ["clear"] * 3 + ["large", "sealed"]


@pytest.mark.parametrize("kind", ["file", "postgres"])
def test_a_rotated_key_still_opens_and_status_tells_when_it_is_no_longer_needed(
    kind: str, tmp_path: Path, keys: str, request: pytest.FixtureRequest, run: Any
) -> None:
    url = store_of(tmp_path) if kind == "file" else request.getfixturevalue("database")
    with brigade.connect(url, encryption=keys) as hub:
        hub.queue("tasks").enqueue({"n": 1})
    run("key", "rotate", "--file", "keys", "--id", "second")
    assert KeySource(keys).read().primary == "second"
    with brigade.connect(url, encryption=keys) as hub:
        queue = hub.queue("tasks")
        queue.enqueue({"n": 2})
        assert usage(run, url, keys) == {"second": ("seals", 1), "first": ("opens", 1)}
        (message,) = queue.claim(1)
        assert message.data == {"n": 1}
        queue.ack(message, result={"ok": True})
    assert usage(run, url, keys)["first"] == ("opens", 0)


def usage(run: Any, url: str, keys: str) -> dict[str, tuple[str, int]]:
    told = json.loads(run("key", "status", "--json", "--url", url, BRIGADE_ENCRYPTION=keys).stdout)
    return {one["id"]: (one["role"], one["sealed"]) for one in told["keys"]}


def test_commands_make_keys_that_work(run: Any, tmp_path: Path) -> None:
    made = run("key", "create").stdout.decode().strip()
    run("enqueue", "tasks", CANARY, BRIGADE_KEYS=made, BRIGADE_ENCRYPTION="env:BRIGADE_KEYS")
    shown = run("peek", "tasks", "--json", BRIGADE_KEYS=made, BRIGADE_ENCRYPTION="env:BRIGADE_KEYS")
    assert CANARY.encode() in shown.stdout
    refused = run("peek", "tasks", code=1)
    assert b"connect with encryption=" in refused.stderr
    failed = run("peek", "tasks", code=2, BRIGADE_ENCRYPTION="command:false")
    assert b"exit code 1" in failed.stderr
    assert made.encode() not in refused.stderr + failed.stderr
    run("key", "create", "--file", "keys")
    run("key", "create", "--file", "keys", code=2)
    assert (tmp_path / "keys").read_text().count(":") == 1


def test_a_worker_and_its_processes_get_the_keys_without_a_url_that_holds_them(tmp_path: Path, keys: str) -> None:
    url = f"{store_of(tmp_path)}&encryption={keys}"
    with brigade.connect(url) as hub:
        queue = hub.queue("tasks")
        queue.enqueue_many([{"n": number} for number in range(20)])
        with brigade.Worker(queue, len_of, concurrency=2, executor="process"):
            asyncio.run(eventually(lambda: queue.stats().succeeded == 20, within=60))
    assert KeySource(keys).read().text().strip().partition(":")[2] not in url


def len_of(message: brigade.Message) -> int:
    return len(message.payload)


def test_encryption_that_cannot_work_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in ("env:NO_SUCH_VARIABLE", "file:/no/such", "command:false"):
        with pytest.raises(ConfigError), brigade.connect(store_of(tmp_path), encryption=wrong):
            pass
    with (
        pytest.raises(ConfigError, match="encryption_strict"),
        brigade.connect(f"memory://{uuid.uuid4().hex}", encryption_strict=True),
    ):
        pass
    with pytest.raises(ConfigError, match="has no option 'encryption'"):
        brigade.connect("http://localhost:1", encryption="env:X")
    monkeypatch.setenv("BRIGADE_ENCRYPTION", "not a reference")
    with pytest.raises(ConfigError, match="must say where keys are"), brigade.connect(store_of(tmp_path)):
        pass
    assert not list(tmp_path.glob("store/q/*"))


def test_secrets_of_encryption_are_in_no_log(tmp_path: Path, keys: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), brigade.connect(store_of(tmp_path), encryption=keys) as hub:
        queue = hub.queue("tasks")
        queue.enqueue({"text": CANARY}, attributes={"who": CANARY})
        (message,) = queue.claim(1)
        queue.state(message).save(CANARY)
        queue.ack(message, result=CANARY)
    text = KeySource(keys).read().text().strip().partition(":")[2]
    for record in caplog.records:
        assert text not in record.getMessage()
        assert CANARY not in record.getMessage()
