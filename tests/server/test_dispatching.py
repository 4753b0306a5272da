"""Many consumers on one server: in line, sparing of storage, and losing nothing when they go away."""

from __future__ import annotations

import asyncio
import socket
import uuid
from typing import Any

import httpx
import pytest
from http_helpers import held

import brigade
from brigade import AsyncHub
from brigade.inline import Begun
from brigade.server.dispatcher import COMPANY, Dispatcher, Held
from brigade.server.serve import Serving
from brigade.server.service import Limits
from brigade.testing.conformance.harness import eventually
from served import served

CROWD = 200
HUNDREDS = 500


def client(serving: Serving) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=f"{serving.address}/v1/queue/", trust_env=False, timeout=100, limits=limits)


async def dequeue(http: httpx.AsyncClient, **more: Any) -> list[Any]:
    answer = await http.post("dequeue", json={"queue": "tasks", "wait": 60, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()["messages"]


async def ready(http: httpx.AsyncClient, count: int) -> None:
    """Wait until so many messages may be claimed."""

    async def look() -> bool:
        return (await http.get("stats", params={"queue": "tasks"})).json()["ready"] == count

    await eventually(look)


async def in_line(serving: Serving, count: int) -> None:
    await eventually(lambda: serving.service.dispatcher.consumers == count)


async def test_five_hundred_consumers_are_served_in_order_of_waiting(serving: Serving) -> None:
    """Each line of sockets is one long poll; they are answered first come, first served."""
    async with client(serving) as http:
        await http.post("open", json={"queue": "tasks"})
        waiting: list[asyncio.Task[list[Any]]] = []
        for start in range(0, HUNDREDS, 50):
            waiting += [
                asyncio.create_task(dequeue(http, owner=f"consumer-{n}", visibility=600))
                for n in range(start, start + 50)
            ]
            await in_line(serving, start + 50)
        order = [waiter.owner for waiter in serving.service.dispatcher.line("tasks")]
        places = {owner: place for place, owner in enumerate(order)}
        by_place = sorted(range(HUNDREDS), key=lambda n: places[f"consumer-{n}"])
        for half in (range(HUNDREDS // 2), range(HUNDREDS // 2, HUNDREDS)):
            await http.post("enqueue", json={"queue": "tasks", "messages": [{"payload": n} for n in half]})
            answers = await asyncio.gather(*(waiting[by_place[n]] for n in half))
            assert [[message["payload"] for message in answer] for answer in answers] == [[n] for n in half]
            assert not any(waiting[by_place[n]].done() for n in range(half.stop, HUNDREDS))
        owners = [message["lease"]["owner"] for task in waiting for message in task.result()]
        assert owners == [f"consumer-{n}" for n in range(HUNDREDS)]


async def test_who_is_alone_for_a_while_waits_for_nobody_to_come_along() -> None:
    async with brigade.connect_async("memory://") as hub:
        queue = await hub.queue("tasks")
        await queue.enqueue_many(list(range(COMPANY + 3)))
        dispatcher = Dispatcher(hub.store, name="server", most_consumers=10)

        def take(*, alone: bool) -> Begun[list[Held]]:
            taking = dispatcher.take("tasks", limit=1, owner="me", visibility=60, wait=1, alone=alone)
            return Begun(taking)

        for _ in range(COMPANY):
            begun = take(alone=True)
            lone = begun.ended
            if not lone:
                await asyncio.create_task(begun)
        assert lone
        assert take(alone=True).ended
        with_others = [take(alone=False), take(alone=True)]
        assert not any(one.ended for one in with_others)
        claims = dispatcher.claims
        await asyncio.gather(*map(asyncio.create_task, with_others))
        assert dispatcher.claims == claims + 1
        assert dispatcher.handed_out == COMPANY + 3
        await dispatcher.close()


async def test_the_store_knows_each_consumer_by_name(serving: Serving) -> None:
    async with client(serving) as http:
        await http.post("open", json={"queue": "tasks"})
        waiting = [asyncio.create_task(dequeue(http, owner=f"consumer-{n}", limit=2)) for n in range(20)]
        await in_line(serving, 20)
        await http.post("enqueue", json={"queue": "tasks", "messages": [{"payload": n} for n in range(30)]})
        messages = [message for answer in await asyncio.gather(*waiting) for message in answer]
        assert len(messages) == 30
        for message in messages:
            found = (await http.get("get", params={"queue": "tasks", "id": message["id"]})).json()
            assert found["owner"] == message["lease"]["owner"]
        stems = {message["lease"]["owner"]: message["lease"]["token"].rpartition(".")[0] for message in messages}
        assert len(set(stems.values())) == 20


async def test_a_crowd_costs_what_a_few_claims_cost(serving: Serving) -> None:
    """A message for each of two hundred consumers is not two hundred claims, and their acks together are few writes."""
    async with client(serving) as http:
        await http.post("open", json={"queue": "tasks"})
        waiting = [asyncio.create_task(dequeue(http, visibility=600)) for _ in range(CROWD)]
        await in_line(serving, CROWD)
        store = serving.service.hub.store
        before = sum(store.requests().values())
        await http.post("enqueue", json={"queue": "tasks", "messages": [{"payload": n} for n in range(CROWD)]})
        messages = [message for answer in await asyncio.gather(*waiting) for message in answer]
        assert sum(store.requests().values()) - before < CROWD / 10
        keys = [{key: value for key, value in held(one).items() if key != "queue"} for one in messages]
        await http.post("ack", json={"queue": "tasks", "settlements": keys})
        assert sum(store.requests().values()) - before < CROWD / 5


async def test_more_consumers_than_allowed_are_sent_away() -> None:
    with served(f"memory://{uuid.uuid4().hex}", limits=Limits(most_consumers=2)) as serving:
        async with client(serving) as http:
            await http.post("policy", json={"queue": "tasks"})
            waiting = [asyncio.create_task(dequeue(http)) for _ in range(2)]
            await in_line(serving, 2)
            refused = await http.post("dequeue", json={"queue": "tasks"})
            assert (refused.status_code, refused.json()["code"]) == (429, "throttled")
            assert int(refused.headers["Retry-After"]) >= 1
            await http.post("enqueue", json={"queue": "tasks", "messages": [{"payload": 1}, {"payload": 2}]})
            answers = await asyncio.gather(*waiting)
            assert sorted(message["payload"] for answer in answers for message in answer) == [1, 2]


async def test_a_consumer_that_leaves_the_line_costs_nobody_a_message(serving: Serving) -> None:
    async with client(serving) as http:
        await http.post("policy", json={"queue": "tasks"})
        leaving = asyncio.create_task(dequeue(http))
        await in_line(serving, 1)
        staying = asyncio.create_task(dequeue(http))
        await in_line(serving, 2)
        leaving.cancel()
        await in_line(serving, 1)
        await http.post("enqueue", json={"queue": "tasks", "payload": "x"})
        (message,) = await staying
        assert (message["payload"], message["attempt"]) == ("x", 1)


@pytest.mark.parametrize("sent", [10, 60, 10_000], ids=["in the head", "in the body", "whole"])
async def test_a_client_that_goes_away_while_it_asks_holds_nothing(serving: Serving, sent: int) -> None:
    async with client(serving) as http:
        await http.post("policy", json={"queue": "tasks"})
        await http.post("enqueue", json={"queue": "tasks", "messages": [{"payload": n} for n in range(3)]})
        await http.post("pause", json={"queue": "tasks"})
        body = b'{"queue": "tasks", "wait": 60, "visibility": 600}'
        head = b"POST /v1/queue/dequeue HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        place = httpx.URL(serving.address)
        _, writer = await asyncio.open_connection(place.host, place.port)
        writer.write((head + body)[:sent])
        await writer.drain()
        if sent > len(head + body):
            await in_line(serving, 1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.close()
        await in_line(serving, 0)
        await http.post("resume", json={"queue": "tasks"})
        await ready(http, 3)
        assert [message["attempt"] for message in await dequeue(http, limit=3)] == [1, 1, 1]


async def test_a_cancelled_claim_of_our_client_holds_nothing(serving: Serving) -> None:
    async with brigade.connect_async(serving.address) as hub, client(serving) as http:
        queue = await hub.queue("tasks")
        for _ in range(20):
            claiming = asyncio.ensure_future(queue.claim(wait=60, visibility=600))
            await in_line(serving, 1)
            sending = asyncio.ensure_future(queue.enqueue("x"))
            await asyncio.sleep(0)
            claiming.cancel()
            await asyncio.gather(claiming, sending, return_exceptions=True)
            messages = [] if claiming.cancelled() else claiming.result()
            await queue.ack_many(messages)
            if not messages:
                await ready(http, 1)
                await queue.ack_many(await queue.claim(wait=30))


async def test_a_server_that_stops_gives_back_what_nobody_got() -> None:
    name = uuid.uuid4().hex
    async with AsyncHub(f"memory://{name}") as hub:
        queue = await hub.queue("tasks")
        with served(f"memory://{name}") as serving:
            async with client(serving) as http:
                waiting = [asyncio.create_task(dequeue(http)) for _ in range(20)]
                await in_line(serving, 20)
                await http.post("enqueue", json={"queue": "tasks", "messages": [{"payload": n} for n in range(40)]})
                got = [message for answer in await asyncio.gather(*waiting) for message in answer]
                assert len(got) == 20
        assert (await queue.stats()).ready == 20
