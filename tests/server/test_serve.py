"""`brigade serve` as a process: its flags, its end, and what clients see of a server that dies."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_helpers import connected, held, take
from msgspec.structs import replace
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

import brigade
from brigade import NewMessage, StaleLease, StoreUnavailable, Worker
from brigade.server.serve import ServerConfig, Serving, listen
from brigade.testing.chaos.crew import recording
from brigade.testing.chaos.journal import wall_ms
from brigade.testing.conformance.harness import eventually
from brigade.testing.sim import records as r
from brigade.testing.sim.checker import check
from leftovers import nothing_left_open
from served import served, server_process

KEY = "Idempotency-Key"
Done = subprocess.CompletedProcess[bytes]


def test_the_command_line_works_through_a_server(run: Callable[..., Done], tmp_path: Path) -> None:
    with server_process(f"file://{tmp_path}/jobs") as (process, address):
        run("enqueue", "tasks", '{"n": 1}', "--url", address)
        assert b"tasks" in run("queues", BRIGADE_URL=address).stdout
        with brigade.connect(address) as hub:
            seen: list[Any] = []
            Worker(hub.queue("tasks"), lambda message: seen.append(message.data)).run(until_empty=True)
            assert seen == [{"n": 1}]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with brigade.connect(f"file://{tmp_path}/jobs") as hub:
        assert hub.queue("tasks").stats().succeeded == 1


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_it_runs_with_uvloop_and_without(loop: str) -> None:
    program = """
import sys
if sys.argv.pop(1) == "asyncio":
    sys.modules["uvloop"] = None
from brigade.cli import main
from brigade.server import serve
print(type(serve.new_loop()).__module__.split(".")[0], flush=True)
main()
"""
    with server_process("memory://", command=(sys.executable, "-c", program, loop)) as (process, address):
        assert process.stdout is not None
        assert process.stdout.readline().strip() == loop
        answer = httpx.post(f"{address}/v1/queue/enqueue", json={"queue": "tasks", "payload": 1}, trust_env=False)
        assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    "arguments, why",
    [
        (("--host", "0.0.0.0"), b"listen on 127.0.0.1"),
        (("--host", "example.org"), b"listen on 127.0.0.1"),
        (("--port", "70000"), b"--port is 70000"),
        (("--max-wait", "0"), b"--max-wait is 0"),
        (("--url", "http://localhost:1"), b"another server"),
    ],
)
def test_a_server_that_would_be_open_or_wrong_is_refused(
    run: Callable[..., Done], arguments: tuple[str, ...], why: bytes
) -> None:
    assert why in run("serve", *arguments, code=2).stderr


def test_no_server_is_said_so() -> None:
    with pytest.raises(StoreUnavailable, match="brigade serve"):
        brigade.connect("http://127.0.0.1:9")


async def test_one_of_two_servers_is_killed_under_load(tmp_path: Path) -> None:
    """[G1] [G2] [G3] Whoever was on the dead server goes to the other one; the simulation's checker finds no fault."""
    url, total = f"file://{tmp_path}/jobs", 300
    policy = brigade.QueuePolicy(visibility_timeout=3, failure=brigade.Failure("retry", max_retries=50))
    history: list[r.Record] = []
    asked: set[tuple[str, str]] = set()
    """Acks that got no answer: carried out or not."""
    with server_process(url) as (doomed, first), server_process(url) as (_, second):
        async with brigade.connect_async(second) as hub:
            queue = await hub.queue("tasks", policy)
            producing = asyncio.gather(*(_produce(address, history, total // 2) for address in (first, second)))
            consumers = [
                asyncio.ensure_future(_consume(address, second, history, asked))
                for address in (first, second)
                for _ in "123"
            ]
            await eventually(lambda: sum(isinstance(one, r.Told) for one in history) > total // 4, within=100)
            doomed.kill()
            await producing
            await asyncio.gather(*consumers)
            stats = await queue.stats()
    returned = {one.uid for one in history if isinstance(one, r.Returned)}
    unsure = {one.uid for one in history if isinstance(one, r.Unsure)}
    acked = [(one.ref, one.token) for one in history if isinstance(one, r.Told) and one.answer == "ok"]
    delivered = {(one.ref, one.token): one.uid for one in history if isinstance(one, r.Delivered)}
    assert check(history, r.Limits({"tasks": 51}, skew_ms=100), r.Final([], [])) == []
    ended, unanswered = {delivered[key] for key in acked}, {delivered[key] for key in asked}
    assert returned <= ended | unanswered
    assert ended <= returned | unsure
    assert len(set(acked)) == len(acked) <= stats.succeeded <= len(acked) + len(asked)
    assert (stats.ready, stats.in_flight, stats.failed) == (0, 0, 0)


async def _produce(address: str, history: list[r.Record], count: int) -> None:
    async with brigade.connect_async(address) as hub:
        queue = await hub.queue("tasks", create=False)
        for call in range(count // 10):
            uids = [f"{address}/{call}/{n}" for n in range(10)]
            history.extend(
                r.Intent(at=wall_ms(), queue="tasks", uid=uid, call=call, payload=uid.encode()) for uid in uids
            )
            try:
                made = await queue.enqueue_many([NewMessage(payload=uid, correlation_id=uid) for uid in uids])
            except StoreUnavailable:
                history.extend(r.Unsure(at=wall_ms(), queue="tasks", uid=uid) for uid in uids)
                return
            for uid, one in zip(uids, made, strict=True):
                history.append(recording.returned("tasks", uid, one))


async def _consume(address: str, other: str, history: list[r.Record], asked: set[tuple[str, str]]) -> None:
    """Claim and ack until there is nothing left; from a server that has died, go on to the other one."""
    async with brigade.connect_async(address) as hub:
        queue = await hub.queue("tasks", create=False)
        try:
            while True:
                since = len(history)
                messages = await queue.claim(5, wait=8)
                if not messages and address == other:
                    return
                history.extend(replace(recording.delivered(message), since=since) for message in messages)
                for message in messages:
                    lease = message.ref, recording.token_of(message)
                    asked.add(lease)
                    (answer,) = await queue.settle([brigade.Ack(message)])
                    asked.remove(lease)
                    word = "stale" if isinstance(answer, StaleLease) else "ok"
                    history.append(recording.told(message, "ack", word))
        except StoreUnavailable:
            pass
    await _consume(other, other, history, asked)


def test_a_settlement_is_repeated_at_another_server_when_the_first_has_died(tmp_path: Path) -> None:
    """[G3] The store tells what was settled: a lost answer is not a lost lease."""
    url, options = f"file://{tmp_path}/jobs", {"fsync": False}
    with served(url, options=options) as first:
        name = first.service.name
        with connected(first) as http:
            http.post("enqueue", json={"queue": "tasks", "messages": [{"payload": n} for n in range(3)]})
            messages = http.post("dequeue", json={"queue": "tasks", "limit": 3}).json()["messages"]
            acks = [held(one, version=one["lease"]["version"]) for one in messages]
            assert http.post("ack", json=acks[0], headers={"Idempotency-Key": "a"}).status_code == 200
    again = {"Idempotency-Key": "a", "Brigade-Retry-Of": name}
    with served(url, options=options) as second, connected(second) as http:
        assert http.post("ack", json=acks[0]).json()["code"] == "queue_message_lease_mismatch"
        answer = http.post("ack", json=acks[0], headers=again)
        assert (answer.status_code, answer.json()["state"]) == (200, "succeeded")
        bodies = [{**{key: value for key, value in ack.items() if key != "queue"}, "op": "ack"} for ack in acks]
        answer = http.post("settle", json={"queue": "tasks", "settlements": bodies}, headers={**again, KEY: "b"})
        assert [one["state"] for one in answer.json()["results"]] == ["succeeded"] * 3
        wrong = {**acks[0], "version": 99, "token": f"{'0' * 32}.0"}
        assert http.post("ack", json=wrong, headers={**again, KEY: "c"}).status_code == 409
        assert http.get("stats", params={"queue": "tasks"}).json()["succeeded"] == 3


def test_a_client_goes_on_through_a_restart(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/jobs"
    with server_process(url) as (process, address), brigade.connect(address) as hub:
        queue = hub.queue("tasks")
        queue.enqueue("x")
        (message,) = queue.claim()
        process.kill()
        process.wait()
        with server_process(url, port=int(address.rpartition(":")[2])):
            queue.ack(message)
            assert queue.stats().succeeded == 1


def test_answers_are_not_held_back_by_the_kernel() -> None:
    """Connections inherit what the listening socket is: only where it says TCP do event loops switch the delay off."""
    made = listen("127.0.0.1", 0)
    try:
        assert made.proto == socket.IPPROTO_TCP
    finally:
        made.close()


def test_whoever_does_not_read_does_not_keep_a_server_from_ending() -> None:
    """Beyond its grace it hangs up, and leaves no open socket behind."""
    with nothing_left_open():
        with served(f"memory://{uuid.uuid4().hex}", grace=1) as serving, connected(serving) as http:
            http.post("enqueue", params={"queue": "films"}, content=bytes(32 * 1024 * 1024))
            ref = take(http, "films")["ref"]
            place = httpx.URL(serving.address)
            client = socket.create_connection((place.host, place.port))
            client.sendall(f"GET /v1/queue/payload?queue=films&ref={ref} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert client.recv(4) == b"HTTP"
        client.close()


async def test_a_connection_that_comes_with_the_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken in, and becomes a connection only when all others have been told to end."""
    serving = await Serving(ServerConfig(url=f"memory://{uuid.uuid4().hex}", port=0, grace=600)).__aenter__()
    await eventually(lambda: serving._server is not None and serving._server.started)
    assert serving._server is not None
    (server,) = serving._server.servers
    taken: list[Callable[[], None]] = []
    made, close = HttpToolsProtocol.connection_made, server.close

    def late(protocol: HttpToolsProtocol, transport: asyncio.Transport) -> None:
        taken.append(partial(made, protocol, transport))

    def end() -> None:
        while taken:
            asyncio.get_running_loop().call_soon(taken.pop())
        close()

    monkeypatch.setattr(HttpToolsProtocol, "connection_made", late)
    place = httpx.URL(serving.address)
    with socket.create_connection((place.host, place.port)):
        await eventually(lambda: bool(taken))
        monkeypatch.setattr(server, "close", end)
        await asyncio.wait_for(serving.__aexit__(), 60)
