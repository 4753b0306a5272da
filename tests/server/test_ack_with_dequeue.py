"""An ack that rides with the dequeue of the next message: one request a message, and nothing in doubt."""

from __future__ import annotations

import asyncio
import socket
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_helpers import connected, held, take

import brigade
from brigade.server.serve import Serving
from brigade.server.service import Limits
from brigade.stores.remote.faults import Throttled
from brigade.testing.conformance.harness import eventually
from served import served


def fill(http: httpx.Client, count: int) -> None:
    sent = http.post("enqueue", json={"queue": "tasks", "messages": [{"payload": n} for n in range(count)]})
    assert sent.status_code == 200


def following(http: httpx.Client, message: dict[str, Any], headers: dict[str, str] | None = None, **more: Any) -> Any:
    """Ack a message and ask for the next."""
    return http.post("dequeue", json={"queue": "tasks", "ack": held(message), **more}, headers=headers)


def state_of(http: httpx.Client, message: dict[str, Any]) -> str:
    return http.get("get", params={"queue": "tasks", "id": message["id"]}).json()["state"]


def test_one_request_acks_a_message_and_takes_the_next(http: httpx.Client) -> None:
    fill(http, 3)
    first = take(http)
    answer = following(http, first).json()
    assert answer["acked"]["state"] == "succeeded"
    (second,) = answer["messages"]
    assert second["payload"] == 1
    (third,) = http.post("dequeueWithState", json={"queue": "tasks", "ack": held(second)}).json()["messages"]
    assert (third["payload"], third["state"]) == (2, None)
    assert following(http, third, ack=held(third, result={"ok": 1})).json()["messages"] == []
    stats = http.get("stats", params={"queue": "tasks"}).json()
    assert (stats["succeeded"], stats["ready"], stats["in_flight"]) == (3, 0, 0)
    assert http.get("get", params={"queue": "tasks", "id": third["id"]}).json()["result"] == {"ok": 1}


def test_who_lost_the_lease_takes_nothing(http: httpx.Client) -> None:
    fill(http, 2)
    message = take(http)
    http.post("release", json=held(message))
    refused = following(http, message, wait=30)
    assert (refused.status_code, refused.json()["code"]) == (409, "queue_message_lease_mismatch")
    assert http.get("stats", params={"queue": "tasks"}).json()["in_flight"] == 0


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"ack": {"queue": "others"}}, "ack"),
        ({"ack": {"op": "nack"}}, "op"),
        ({"ack": {"token": 7}}, "ack.token"),
        ({"ack": {"unknown": 7}}, "ack"),
        ({"limit": 0}, "limit"),
        ({"wait": -1}, "wait"),
        ({"visibility": 0}, "visibility"),
        ({"owner": ""}, "owner"),
    ],
)
def test_what_is_refused_acks_nothing(http: httpx.Client, changes: dict[str, Any], field: str) -> None:
    fill(http, 1)
    message = take(http)
    ack = {**held(message), **changes.get("ack", {})}
    refused = http.post("dequeue", json={"queue": "tasks", **changes, "ack": ack})
    assert (refused.status_code, refused.json()["code"], refused.json()["field"]) == (400, "invalid_request", field)
    assert state_of(http, message) == "in_flight"


def test_a_request_that_is_repeated_acks_once(http: httpx.Client) -> None:
    fill(http, 2)
    first = take(http)
    key = {"Idempotency-Key": uuid.uuid4().hex}
    answers = [following(http, first, headers=key).json() for _ in range(2)]
    assert answers[0] == answers[1]
    assert answers[0]["messages"][0]["payload"] == 1


def test_an_ack_whose_answer_died_with_its_server_counts(tmp_path: Path) -> None:
    """The server that carried it out is gone: the next one finds the message acked, and hands out another."""
    url = f"file://{tmp_path}"
    key = {"Idempotency-Key": uuid.uuid4().hex}
    with served(url) as one, connected(one) as http:
        fill(http, 3)
        first = take(http)
        lost = following(http, first, headers=key)
        http.post("release", json=held(lost.json()["messages"][0]))
        name = lost.headers["Brigade-Server"]
    with served(url) as other, connected(other) as http:
        answer = following(http, first, headers={**key, "Brigade-Retry-Of": name})
        assert answer.json()["acked"]["state"] == "succeeded"
        assert len(answer.json()["messages"]) == 1
        assert following(http, first).status_code == 409


def test_what_was_acked_is_told_where_nothing_can_be_claimed() -> None:
    with served("memory://", limits=Limits(most_consumers=1)) as serving, connected(serving) as http:
        fill(http, 2)
        with brigade.connect(serving.address) as hub:
            queue = hub.queue("tasks")
            done: list[str] = []
            hub.on("message-completed", lambda event: done.append(event.id))
            held_here, second = queue.claim(2)
            with serving.service.dispatcher.seat():
                refused = following(http, {**_wire(second), "queue": "tasks"}).json()
                assert (refused["acked"]["state"], refused["error"]["code"]) == ("succeeded", "throttled")
                assert refused["messages"] == []
                with pytest.raises(Throttled):
                    queue.claim(ack=held_here)
            assert done == [held_here.id]
            assert queue.stats().succeeded == 2


def _wire(message: brigade.Message) -> dict[str, Any]:
    return {"id": message.id, "ref": message.ref, "lease": {"token": message.lease.token}}


async def test_who_leaves_while_it_waits_has_acked(serving: Serving, http: httpx.Client) -> None:
    fill(http, 1)
    message = take(http)
    body = httpx.Request("POST", "http://localhost", json={"queue": "tasks", "wait": 60, "ack": held(message)}).read()
    with socket.create_connection(("127.0.0.1", int(serving.address.rpartition(":")[2]))) as gone:
        gone.sendall(
            b"POST /v1/queue/dequeue HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        await eventually(lambda: serving.service.dispatcher.consumers == 1)
    await eventually(lambda: serving.service.dispatcher.consumers == 0)
    fill(http, 1)
    stats = http.get("stats", params={"queue": "tasks"}).json()
    assert (stats["succeeded"], stats["ready"], stats["in_flight"]) == (1, 1, 0)


def test_a_stream_gets_its_credit_back(serving: Serving, http: httpx.Client) -> None:
    fill(http, 3)
    with http.stream("POST", "subscribe", json={"queue": "tasks", "prefetch": 1}) as stream:
        lines = stream.iter_lines()
        next(lines)
        first = httpx.Response(200, content=next(lines)).json()["message"]
        with connected(serving) as other:
            assert following(other, first).json()["messages"][0]["payload"] == 1
        assert httpx.Response(200, content=next(lines)).json()["message"]["payload"] == 2


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_client_makes_one_request_a_message(scheme: str, tmp_path: Path) -> None:
    url = "memory://" if scheme == "memory" else f"file://{tmp_path}"
    with served(url) as serving, brigade.connect(serving.address) as hub:
        queue = hub.queue("tasks")
        queue.enqueue_many(range(10))
        (message,) = queue.claim(wait=30)
        before = hub.requests()["http_post"]
        for n in range(1, 10):
            (message,) = queue.claim(wait=30, ack=message)
            assert message.data == n
        assert hub.requests()["http_post"] - before == 9
        assert queue.claim(ack=message) == []
        assert queue.stats().succeeded == 10


async def test_a_claim_that_is_called_off_gives_back_what_it_won(serving: Serving) -> None:
    async with brigade.connect_async(serving.address) as hub:
        queue = await hub.queue("tasks")
        await queue.enqueue("a")
        (message,) = await queue.claim()
        waiting = asyncio.create_task(queue.claim(wait=60, ack=message))
        await eventually(lambda: serving.service.dispatcher.consumers == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await eventually(lambda: serving.service.dispatcher.consumers == 0)
        await queue.enqueue("b")
        stats = await queue.stats()
        assert (stats.succeeded, stats.ready, stats.in_flight) == (1, 1, 0)
