"""Streams of messages: credit, heartbeats of leases, and consumers that go away in the middle."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any, Self

import httpx
import pytest
from http_helpers import held

from brigade.server.serve import Serving
from brigade.testing.conformance.harness import eventually
from served import served


def client(serving: Serving) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=f"{serving.address}/v1/queue/", trust_env=False, timeout=60, limits=limits)


class Stream:
    """One subscription as a client sees it."""

    def __init__(self, http: httpx.AsyncClient, path: str = "subscribe", **wanted: Any) -> None:
        self._opening = http.stream("POST", path, json={"queue": "tasks", **wanted})

    async def __aenter__(self) -> Self:
        self.response = await self._opening.__aenter__()
        assert self.response.status_code == 200, await self.response.aread()
        self._lines: AsyncIterator[str] = self.response.aiter_lines()
        first = await self.line()
        assert first["type"] == "subscribed"
        self.id = first["subscription"]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opening.__aexit__(None, None, None)

    async def line(self) -> dict[str, Any]:
        async with asyncio.timeout(50):
            while True:
                line = json.loads(await anext(self._lines))
                if line["type"] != "heartbeat":
                    return line

    async def message(self) -> dict[str, Any]:
        line = await self.line()
        assert line["type"] == "message", line
        return line["message"]


async def enqueue(http: httpx.AsyncClient, count: int) -> None:
    answer = await http.post("enqueue", json={"queue": "tasks", "messages": [{"payload": n} for n in range(count)]})
    assert answer.status_code == 200


async def stats(http: httpx.AsyncClient) -> dict[str, Any]:
    return (await http.get("stats", params={"queue": "tasks"})).json()


async def test_messages_come_as_they_are_enqueued(serving: Serving) -> None:
    async with client(serving) as http:
        await http.post("open", json={"queue": "tasks"})
        async with Stream(http, owner="me", limit=3) as stream:
            for n in range(3):
                await http.post("enqueue", json={"queue": "tasks", "payload": n})
                message = await stream.message()
                assert (message["payload"], message["lease"]["owner"]) == (n, "me")
                await http.post("ack", json=held(message))
            assert await stream.line() == {"type": "end", "reason": "limit"}
        assert (await stats(http))["succeeded"] == 3
        await eventually(lambda: serving.service.dispatcher.consumers == 0)


async def test_no_more_is_sent_than_there_is_credit_for(serving: Serving) -> None:
    async with client(serving) as http:
        await enqueue(http, 10)
        async with Stream(http, prefetch=2, visibility=600) as stream:
            first, second = await stream.message(), await stream.message()
            assert (await stats(http))["in_flight"] == 2
            await http.post("ack", json=held(first))
            third = await stream.message()
            await http.post("extend", json=held(second, seconds=700))
            await http.post("nack", json=held(third, error="no", delay=600))
            fourth = await stream.message()
            assert [m["payload"] for m in (first, second, third, fourth)] == [0, 1, 2, 3]
            assert (await stats(http))["in_flight"] == 2
            more = {"queue": "tasks", "subscription": stream.id, "prefetch": 4}
            assert (await http.post("credit", json=more)).json() == {"prefetch": 4, "unsettled": 2}
            assert [(await stream.message())["payload"] for _ in range(2)] == [4, 5]
        gone = await http.post("credit", json={"queue": "tasks", "subscription": "none", "prefetch": 4})
        assert (gone.status_code, gone.json()["code"]) == (404, "not_found")


async def test_credit_comes_back_when_a_lease_runs_out(serving: Serving) -> None:
    async with client(serving) as http:
        await enqueue(http, 2)
        async with Stream(http, prefetch=1, visibility=0.2) as stream:
            seen = {(await stream.message())["payload"] for _ in range(2)}
            assert seen <= {0, 1}


async def test_state_comes_along(serving: Serving) -> None:
    async with client(serving) as http:
        await enqueue(http, 1)
        async with Stream(http, "subscribeWithState") as stream:
            message = await stream.message()
            assert (message["state"], message["state_etag"]) == (None, None)
            save = {"queue": "tasks", "ref": message["ref"], "value": {"step": 1}}
            etag = (await http.post("state", json=save)).json()["etag"]
            await http.post("release", json=held(message))
            again = await stream.message()
            assert (again["state"], again["state_etag"]) == ({"step": 1}, etag)


async def test_a_consumer_that_leaves_holds_only_what_it_was_sent(serving: Serving) -> None:
    """The rest is at once there for others; what was sent may still be settled by its token."""
    async with client(serving) as http:
        await http.post("open", json={"queue": "tasks"})
        async with Stream(http, prefetch=1, visibility=600) as stream:
            await enqueue(http, 5)
            message = await stream.message()
        await eventually(lambda: serving.service.dispatcher.consumers == 0)
        assert len(serving.service.subscriptions) == 0
        assert (await stats(http))["ready"] == 4
        assert (await http.post("ack", json=held(message))).json()["state"] == "succeeded"


async def test_streams_of_one_queue_take_turns(serving: Serving) -> None:
    async with client(serving) as http:
        await http.post("open", json={"queue": "tasks"})
        async with Stream(http, prefetch=1) as one, Stream(http, prefetch=1) as two:
            await eventually(lambda: serving.service.dispatcher.waiting() == {"tasks": 2})
            await enqueue(http, 2)
            assert {(await stream.message())["payload"] for stream in (one, two)} == {0, 1}


async def test_a_server_that_stops_ends_its_streams() -> None:
    with served(f"memory://{uuid.uuid4().hex}") as serving:
        async with client(serving) as http:
            await http.post("open", json={"queue": "tasks"})
            async with Stream(http) as stream:
                serving.stop()
                line = await stream.line()
                assert (line["type"], "shutting down" in line["reason"]) == ("end", True)


WRONG = [
    ({"prefetch": 0}, "prefetch"),
    ({"prefetch": 10**6}, "prefetch"),
    ({"limit": 0}, "limit"),
    ({"visibility": 0}, "visibility"),
    ({"x": 1}, "x"),
]


@pytest.mark.parametrize("wanted, field", WRONG)
async def test_a_wrong_subscription_is_refused(serving: Serving, wanted: Any, field: str) -> None:
    async with client(serving) as http:
        await http.post("open", json={"queue": "tasks"})
        answer = await http.post("subscribe", json={"queue": "tasks", **wanted})
        assert (answer.status_code, answer.json()["field"]) == (400, field)
