"""Every endpoint as another language sees it: plain HTTP and JSON."""

from __future__ import annotations

import base64
import json
import re
import socket
from typing import Any

import httpx
import pytest
from http_helpers import held, take
from prometheus_client.parser import text_string_to_metric_families

from brigade.server.routes import ROUTES
from brigade.server.serve import Serving


def test_a_message_goes_in_and_out_and_is_acked(http: httpx.Client) -> None:
    receipt = http.post("enqueue", json={"queue": "tasks", "payload": {"n": 1}}).json()
    message = take(http, owner="me")
    assert (message["id"], message["payload"], message["attempt"]) == (receipt["id"], {"n": 1}, 1)
    assert message["lease"]["owner"] == "me"
    assert http.post("ack", json=held(message, result={"ok": True})).json()["state"] == "succeeded"
    stale = http.post("ack", json=held(message))
    assert (stale.status_code, stale.json()["code"]) == (409, "queue_message_lease_mismatch")
    assert http.get("stats", params={"queue": "tasks"}).json()["succeeded"] == 1
    assert http.get("get", params={"queue": "tasks", "id": receipt["id"]}).json()["result"] == {"ok": True}


def test_json_is_json_text_is_text_and_the_rest_is_base64(http: httpx.Client) -> None:
    values: list[Any] = [{"a": [1, None]}, "text", 7, None]
    answer = http.post("enqueue", json={"queue": "tasks", "messages": [{"payload": value} for value in values]})
    assert len(answer.json()["receipts"]) == 4
    encoded = base64.b64encode(b"\0\xff").decode()
    http.post("enqueue", json={"queue": "tasks", "payload_base64": encoded})
    http.post("enqueue", json={"queue": "tasks", "payload_base64": encoded, "content_type": "application/json"})
    messages = http.post("dequeue", json={"queue": "tasks", "limit": 10}).json()["messages"]
    messages += http.post("dequeue", json={"queue": "tasks", "limit": 10}).json()["messages"]
    assert [message.get("payload", message.get("payload_base64")) for message in messages] == [
        *values,
        encoded,
        encoded,
    ]


def test_a_body_is_a_payload_of_any_size(http: httpx.Client) -> None:
    large = bytes(range(256)) * 4096
    query = {"queue": "films", "priority": "3", "attributes": '{"a": 1}'}
    headers = {"Content-Type": "video/mp4"}
    assert http.post("enqueue", params=query, headers=headers, content=large).status_code == 200
    message = take(http, "films")
    assert (message["size"], message["content_type"], message["priority"]) == (len(large), "video/mp4", 3)
    assert message["attributes"] == {"a": 1}
    assert "payload" not in message
    got = http.get("payload", params={"queue": "films", "ref": message["ref"]})
    assert (got.content, got.headers["content-type"]) == (large, "video/mp4")


def test_a_nack_retries_or_defers(http: httpx.Client) -> None:
    http.post("enqueue", json={"queue": "tasks", "payload": 1})
    assert http.post("nack", json=held(take(http), delay=0, error="no")).json()["state"] == "ready"
    message = take(http)
    assert message["attempt"] == 2
    http.post("nack", json=held(message, delay=0, intent="defer"))
    assert take(http)["attempt"] == 2


def test_extend_and_release(http: httpx.Client) -> None:
    http.post("enqueue", json={"queue": "tasks", "payload": 1})
    message = take(http)
    lease = http.post("extend", json=held(message, seconds=600)).json()["lease"]
    assert lease["expires_at_ms"] > message["lease"]["expires_at_ms"]
    assert http.post("release", json=held(message)).json()["state"] == "ready"
    assert take(http)["attempt"] == 1


def test_a_mixed_batch_has_a_result_each(http: httpx.Client) -> None:
    http.post("enqueue", json={"queue": "tasks", "messages": [{"payload": n} for n in range(3)]})
    messages = http.post("dequeue", json={"queue": "tasks", "limit": 3}).json()["messages"]
    bodies = [{**held(message), "op": op} for message, op in zip(messages, ("ack", "release", "ack"), strict=True)]
    bodies[2]["token"] = "wrong"
    results = http.post("settle", json={"queue": "tasks", "settlements": bodies}).json()["results"]
    assert [result.get("state") for result in results] == ["succeeded", "ready", None]
    assert results[2]["error"]["code"] == "queue_message_lease_mismatch"


def test_workflow_state_is_swapped_and_comes_with_the_message(http: httpx.Client) -> None:
    http.post("enqueue", json={"queue": "tasks", "payload": 1})
    first = http.post("dequeueWithState", json={"queue": "tasks"}).json()["messages"][0]
    assert (first["state"], first["state_etag"]) == (None, None)
    save = {"queue": "tasks", "ref": first["ref"], "value": {"step": 1}}
    etag = http.post("state", json=save).json()["etag"]
    assert http.post("state", json=save).json()["code"] == "queue_message_lease_mismatch"
    assert http.get("state", params={"queue": "tasks", "ref": first["ref"]}).json() == {
        "value": {"step": 1},
        "etag": etag,
    }
    http.post("release", json=held(first))
    again = http.post("dequeueWithState", json={"queue": "tasks", "wait": 30}).json()["messages"][0]
    assert (again["state"], again["state_etag"]) == ({"step": 1}, etag)


def test_queues_are_administered(http: httpx.Client) -> None:
    policy = {"visibility_timeout": 5, "failure": {"mode": "retry", "max_retries": 0}}
    made = http.post("policy", json={"queue": "tasks", "policy": policy}).json()["policy"]
    assert made["visibility_timeout"] == 5
    other = http.post("policy", json={"queue": "tasks", "policy": {"visibility_timeout": 6}})
    assert (other.status_code, other.json()["code"]) == (400, "invalid_request")
    assert http.get("policy", params={"queue": "tasks"}).json()["policy"] == made
    assert http.get("list").json() == {"queues": ["tasks"]}
    http.post("enqueue", json={"queue": "tasks", "payload": "x"})
    assert http.get("peek", params={"queue": "tasks"}).json()["messages"][0]["state"] == "ready"
    http.post("nack", json=held(take(http), error="boom"))
    (failed,) = http.get("failed", params={"queue": "tasks"}).json()["messages"]
    assert failed["failure"]["error"] == "boom"
    assert http.post("redrive", json={"queue": "tasks"}).json() == {"count": 1}
    http.post("pause", json={"queue": "tasks"})
    assert http.post("dequeue", json={"queue": "tasks"}).json() == {"messages": [], "paused": True}
    http.post("resume", json={"queue": "tasks"})
    assert http.post("purge", json={"queue": "tasks"}).json() == {"count": 1}
    assert http.post("delete", json={"queue": "tasks"}).status_code == 200
    gone = http.post("dequeue", json={"queue": "tasks"})
    assert (gone.status_code, gone.json()["code"], gone.json()["kind"]) == (404, "not_found", "queue")


def test_a_correlation_id_is_taken_made_echoed_and_carried(http: httpx.Client) -> None:
    sent = http.post("enqueue", json={"queue": "tasks", "payload": 1}, headers={"X-Correlation-Id": "order-7"})
    assert sent.headers["X-Correlation-Id"] == sent.json()["correlation_id"] == "order-7"
    got = http.post("dequeue", json={"queue": "tasks"})
    assert got.headers["X-Correlation-Id"] == got.json()["messages"][0]["correlation_id"] == "order-7"
    assert http.get("list").headers["X-Correlation-Id"]
    wrong = http.post("ack", json={}, headers={"X-Correlation-Id": "order-8"})
    assert wrong.headers["X-Correlation-Id"] == wrong.json()["correlation_id"] == "order-8"


def test_a_repeated_request_is_carried_out_once(http: httpx.Client) -> None:
    again = {"Idempotency-Key": "one"}
    first = http.post("enqueue", json={"queue": "tasks", "payload": 1}, headers=again).json()
    assert http.post("enqueue", json={"queue": "tasks", "payload": 1}, headers=again).json() == first
    assert http.get("stats", params={"queue": "tasks"}).json()["total"] == 1
    again = {"Idempotency-Key": "two"}
    got = http.post("dequeue", json={"queue": "tasks"}, headers=again).json()
    assert http.post("dequeue", json={"queue": "tasks"}, headers=again).json() == got != {"messages": []}
    assert http.post("abandon", json={"key": "two"}).json() == {"abandoned": True}
    assert take(http)["attempt"] == 1
    elsewhere = {"Idempotency-Key": "three", "Brigade-Retry-Of": "another server"}
    unknown = http.post("enqueue", json={"queue": "tasks", "payload": 1}, headers=elsewhere)
    assert (unknown.status_code, unknown.json()["code"]) == (409, "outcome_unknown")


def test_health_and_readiness(http: httpx.Client, serving: Serving) -> None:
    assert http.get(f"{serving.address}/healthz").json() == {"status": "ok"}
    assert http.get(f"{serving.address}/readyz").json() == {"status": "ready"}


def test_metrics_are_told_in_the_words_of_prometheus(http: httpx.Client, serving: Serving) -> None:
    http.post("enqueue", json={"queue": "tasks", "payload": 1})
    http.post("ack", json=held(take(http)))
    answer = http.get(f"{serving.address}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {family.name for family in text_string_to_metric_families(answer.text)}
    assert {"brigade_server_consumers", "brigade_server_handed_out", "brigade_http_requests"} <= found
    assert {"brigade_storage_requests", "brigade_messages_completed", "brigade_queue_messages"} <= found
    assert 'brigade_http_requests_total{method="POST",path="/v1/queue/ack",status="200"}' in answer.text


def test_the_api_describes_itself(http: httpx.Client, serving: Serving) -> None:
    described = http.get(f"{serving.address}/openapi.json").json()
    assert described["openapi"] == "3.1.0"
    assert {(path, method.upper()) for path, methods in described["paths"].items() for method in methods} == {
        (route.path, route.method) for route in ROUTES
    }
    text = json.dumps(described)
    for ref in set(re.findall(r"#/components/schemas/(\w+)", text)):
        assert ref in described["components"]["schemas"]


def test_too_much_of_anything_is_refused(http: httpx.Client) -> None:
    answer = http.get("list", headers={"X-Long": "x" * 40_000})
    assert (answer.status_code, answer.json()["code"]) == (431, "headers_too_large")
    answer = http.post("enqueue", content=b" " * (16 * 1024 * 1024 + 1))
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


def test_a_head_without_an_end_is_cut_off(serving: Serving) -> None:
    place = httpx.URL(serving.address)
    with socket.create_connection((place.host, place.port), timeout=50) as sock:
        sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        with pytest.raises(OSError):  # noqa: PT011 - reset or broken, as it happens
            _send_on(sock, 10_000)


def _send_on(sock: socket.socket, times: int) -> None:
    for _ in range(times):
        sock.sendall(b"x" * 65536)


@pytest.mark.parametrize(
    "path, body, field",
    [
        ("enqueue", {"queue": "tasks"}, "payload"),
        ("enqueue", {"payload": 1}, "queue"),
        ("enqueue", {"queue": "tasks", "payload": 1, "priority": 17}, "priority"),
        ("enqueue", {"queue": "tasks", "payload": 1, "delay": "soon"}, "delay"),
        ("enqueue", {"queue": "tasks", "payload": 1, "colour": "red"}, "colour"),
        ("enqueue", {"queue": "tasks", "messages": []}, "messages"),
        ("enqueue", {"queue": "tasks", "messages": [{"payload": n} for n in range(1001)]}, "messages"),
        ("dequeue", {"queue": "tasks", "limit": 0}, "limit"),
        ("dequeue", {"queue": "tasks", "wait": 301}, "wait"),
        ("dequeue", {"queue": "tasks", "visibility": -1}, "visibility"),
        ("dequeue", {"queue": "tasks", "owner": ""}, "owner"),
        ("ack", {"id": "x", "token": "y"}, "queue"),
        ("nack", {"queue": "tasks", "id": "x", "token": "y", "intent": "maybe"}, "intent"),
        ("settle", {"queue": "tasks", "settlements": [{"id": "x", "token": "y"}]}, "op"),
        ("state", {"queue": "tasks", "ref": "../../policy.json", "value": 1}, "ref"),
        ("policy", {"queue": "tasks", "policy": {"failure": {"mode": "never"}}, "replace": True}, "policy"),
    ],
)
def test_a_wrong_field_is_named(http: httpx.Client, path: str, body: Any, field: str) -> None:
    http.post("policy", json={"queue": "tasks"})
    answer = http.post(path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text
    assert answer.json()["field"] == field


HOSTILE = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b'{"queue": "../../etc", "payload": 1}',
    b'{"queue": "tasks", "payload": "\\ud800"}',
    b'{"queue": "tasks", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"queue": "tasks", "payload": 1e999}',
    b'{"queue": "tasks", "id": "x", "token": "y", "ref": "../x-0", "version": 99999999999999999999999}',
    b'{"queue": "tasks", "id": "' + b"x" * 5000 + b'", "token": "y"}',
    b'{"queue": "tasks", "limit": 1e300}',
    b'{"queue": "tasks", "ids": ["' + b"y" * 1024 + b'"]}',
    b'{"queue": "tasks", "ref": "a/../../b", "value": 1}',
    b'{"queue": "tasks", "policy": {"max_payload": 1e300, "failure": {"mode": []}}}',
    b'{"queue": "tasks", "policy": {"\\u0000": {}}, "replace": true}',
    (
        b'{"grants": [{"queue": "tasks", "segment": "5-00000000000000-0000000000000000fp-1", "token": "t", '
        b'"version": 1, "owner": "o", "expires_at_ms": 1, "members": [99], "attempts": [], "max_attempts": [1]}]}'
    ),
    b'{"queue": "tasks", "settlements": [{"op": "extend", "id": "x", "token": "y", "seconds": 1e308}]}',
]
POSTS = [
    *(
        "enqueue",
        "dequeue",
        "dequeueWithState",
        "abandon",
        "load",
        "wait",
        "ack",
        "nack",
        "extend",
        "release",
        "settle",
    ),
    *(
        "subscribe",
        "subscribeWithState",
        "credit",
        "open",
        "policy",
        "redrive",
        "purge",
        "pause",
        "resume",
        "delete",
        "sweep",
        "forget",
        "state",
    ),
]


@pytest.mark.parametrize("path", POSTS)
def test_hostile_bodies_never_break_the_server(http: httpx.Client, path: str) -> None:
    for body in HOSTILE:
        http.post("policy", json={"queue": "tasks"})
        with http.stream("POST", path, content=body) as answer:
            if answer.headers["content-type"] == "application/x-ndjson":
                continue
            answer.read()
        assert answer.status_code < 500, (body[:100], answer.text)
        if answer.status_code != 200:
            assert {"code", "message"} <= set(answer.json()), answer.text


@pytest.mark.parametrize("path", ["stats", "peek", "get", "failed", "state", "payload", "policy", "list"])
@pytest.mark.parametrize(
    "query",
    [
        "",
        "queue=tasks",
        "queue=../x&id=y&ref=z",
        "queue=tasks&limit=x&id=%00&ref=%2e%2e",
        "queue=tasks&queue=tasks",
        "queue=tasks&id=5-00000000000000-0000000000000000fp-1-0&ref=5-00000000000000-000000000000fp-1-0",
        "queue=tasks&limit=99999999999999999999",
        "queue=tasks&id=" + "x" * 2000,
    ],
)
def test_hostile_queries_never_break_the_server(http: httpx.Client, path: str, query: str) -> None:
    http.post("policy", json={"queue": "tasks"})
    assert http.get(f"{path}?{query}").status_code < 500


def test_unknown_paths_and_methods_are_json_too(http: httpx.Client) -> None:
    assert http.get("nowhere").json()["code"] == "not_found"
    assert http.get("enqueue").json()["code"] == "method_not_allowed"


def test_web_pages_are_kept_out(http: httpx.Client) -> None:
    """A page in a browser on this machine can reach the port; it must not reach the queues."""
    for headers in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
        answer = http.post("enqueue", json={"queue": "tasks", "payload": 1}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert http.get("list").json() == {"queues": []}


def test_one_verb_settles_many(http: httpx.Client) -> None:
    http.post("enqueue", json={"queue": "tasks", "messages": [{"payload": n} for n in range(4)]})
    messages = http.post("dequeue", json={"queue": "tasks", "limit": 4}).json()["messages"]
    keys = [{key: value for key, value in held(one).items() if key != "queue"} for one in messages]
    answer = http.post("extend", json={"queue": "tasks", "settlements": keys, "seconds": 600})
    assert all(
        one["lease"]["expires_at_ms"] > messages[0]["lease"]["expires_at_ms"] for one in answer.json()["results"]
    )
    answer = http.post("nack", json={"queue": "tasks", "settlements": keys[:2], "delay": 600, "error": "no"})
    assert [one["state"] for one in answer.json()["results"]] == ["ready", "ready"]
    answer = http.post("ack", json={"queue": "tasks", "settlements": keys})
    assert [one.get("state") for one in answer.json()["results"]] == [None, None, "succeeded", "succeeded"]
    both = http.post("ack", json={"queue": "tasks", "settlements": keys, "id": "x", "token": "y"})
    assert (both.status_code, both.json()["field"]) == (400, "id")


def test_a_multipart_body_brings_its_payload(http: httpx.Client) -> None:
    large = bytes(range(256)) * 4096
    head = ("message", (None, '{"queue": "films", "priority": 2, "attributes": {"a": 1}}', "application/json"))
    for payload in (large, b"", b"\r\n--", b"small"):
        answer = http.post("enqueue", files=[head, ("payload", ("film.mp4", payload, "video/mp4"))])
        assert answer.status_code == 200, answer.text
        message = take(http, "films")
        assert (message["size"], message["content_type"], message["priority"]) == (len(payload), "video/mp4", 2)
        got = http.get("payload", params={"queue": "films", "ref": message["ref"]})
        assert got.content == payload
    for broken in (
        [head],
        [head, ("payload", (None, b"x")), ("payload", (None, b"y"))],
        [("message", (None, "{}"))],
    ):
        answer = http.post("enqueue", files=broken)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text
    assert http.get("stats", params={"queue": "films"}).json()["ready"] == 0


def test_a_correlation_id_goes_all_the_way_to_the_dead_letter(http: httpx.Client) -> None:
    policy = {"failure": {"mode": "dead-letter", "dead_letter_queue": "letters"}}
    http.post("policy", json={"queue": "tasks", "policy": policy})
    answer = http.post("enqueue", json={"queue": "tasks", "payload": 1}, headers={"X-Correlation-Id": "order-7"})
    assert answer.headers["X-Correlation-Id"] == answer.json()["correlation_id"] == "order-7"
    answer = http.post("dequeueWithState", json={"queue": "tasks"})
    (message,) = answer.json()["messages"]
    assert answer.headers["X-Correlation-Id"] == message["correlation_id"] == "order-7"
    known = held(message, correlation_id=message["correlation_id"])
    for path, more in (("extend", {"seconds": 60}), ("nack", {"error": "no"})):
        answer = http.post(path, json={**known, **more})
        assert answer.headers["X-Correlation-Id"] == answer.json()["correlation_id"] == "order-7"
    letter = take(http, "letters")
    assert (letter["correlation_id"], letter["failure"]["id"]) == ("order-7", message["id"])
