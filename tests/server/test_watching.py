"""Server-sent events: what goes through the server, how the queue stands, and coming back after a break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from http_helpers import held

from brigade.server.feed import Feed, Reader
from brigade.server.serve import Serving


def client(serving: Serving) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"{serving.address}/v1/queue/", trust_env=False, timeout=60)


@asynccontextmanager
async def watching(http: httpx.AsyncClient, last: str | None = None, **query: str) -> AsyncIterator[Any]:
    headers = {} if last is None else {"Last-Event-ID": last}
    async with http.stream("GET", "watch", params={"queue": "tasks", **query}, headers=headers) as response:
        assert response.headers["content-type"] == "text/event-stream"
        lines = response.aiter_lines()

        async def event() -> dict[str, Any]:
            got: dict[str, Any] = {}
            async with asyncio.timeout(50):
                while True:
                    line = await anext(lines)
                    if not line and "event" in got:
                        return {**got, "data": json.loads(got["data"])}
                    name, _, value = line.partition(": ")
                    got[name] = value

        yield event


async def test_what_happens_is_told(serving: Serving) -> None:
    async with client(serving) as http:
        await http.post("open", json={"queue": "tasks"})
        async with watching(http) as event:
            first = await event()
            assert first["event"] == "stats"
            receipt = (await http.post("enqueue", json={"queue": "tasks", "payload": 1})).json()
            message = (await http.post("dequeue", json={"queue": "tasks", "owner": "me"})).json()["messages"][0]
            await http.post("ack", json=held(message))
            seen: dict[str, Any] = {}
            while not {"message-enqueued", "message-claimed", "message-completed"} <= set(seen):
                got = await event()
                seen[got["event"]] = got["data"]
            assert seen["message-claimed"]["id"] == receipt["id"]


async def test_whoever_comes_back_gets_what_it_missed(serving: Serving) -> None:
    async with client(serving) as http:
        await http.post("open", json={"queue": "tasks"})
        only = {"events": "message-enqueued"}
        async with watching(http, **only) as event:
            await http.post("enqueue", json={"queue": "tasks", "payload": 1})
            last = (await event())["id"]
        missed = [(await http.post("enqueue", json={"queue": "tasks", "payload": n})).json()["id"] for n in range(2)]
        async with watching(http, last, **only) as event:
            assert [(await event())["data"]["id"] for _ in range(2)] == missed
        async with watching(http, "another-7", **only) as event:
            assert (await event())["event"] == "reset"


async def test_an_unknown_event_is_refused(serving: Serving) -> None:
    async with client(serving) as http:
        await http.post("open", json={"queue": "tasks"})
        answer = await http.get("watch", params={"queue": "tasks", "events": "message-lost"})
        assert (answer.status_code, answer.json()["field"]) == (400, "events")


async def test_a_reader_that_falls_behind_is_told_so() -> None:
    reader = Reader("tasks", frozenset({"stats"}))
    for _ in range(1001):
        reader.put(None, "stats", {})
    sent = reader.take()
    assert sent.startswith(b"event: reset\n")
    assert sent.count(b"event: stats\n") == 1


async def test_what_is_no_longer_remembered_is_not_made_up() -> None:
    from brigade.events import Event

    feed = Feed("server:x", most=3)
    for n in range(10):
        feed.tell([Event("message-enqueued", "tasks", str(n), {})])
    for last, expected in (("x-7", 3), ("x-6", -1), ("x-10", 0), ("x-11", -1), ("y-9", -1), ("x-nine", -1)):
        reader = Reader("tasks", frozenset({"message-enqueued"}))
        feed.join(reader, last)
        sent = reader.take()
        assert (-1 if b"reset" in sent else sent.count(b"event: ")) == expected, last
