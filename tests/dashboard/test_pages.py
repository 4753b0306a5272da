"""The dashboard over plain HTTP: what it costs, whom it lets do what, and what it hides."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import brigade
from brigade import Failure, Hub, Nack, QueuePolicy
from brigade.errors import ConfigError
from brigade.server.auth.tokens import mint
from brigade.server.dashboard.desk import without_secrets
from brigade.server.dashboard.redaction import HIDDEN, load_redaction
from brigade.server.serve import Serving
from brigade.stores import TokenStore
from served import served

PARKING = QueuePolicy(failure=Failure("retry", 0))


def eventually(check: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not check():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


@contextlib.contextmanager
def counted(serving: Serving) -> Iterator[Callable[[], int]]:
    """How many storage requests the server makes while this lasts."""
    before = sum(serving.service.hub.requests().values())
    yield lambda: sum(serving.service.hub.requests().values()) - before


def form_of(http: httpx.Client, page: str) -> dict[str, str]:
    """What a form of that page has to send along."""
    answer = http.get(page)
    assert answer.status_code == 200, answer.text
    found = re.search(r'name="csrf" value="([0-9a-f]{32})"', answer.text)
    assert found, "the page has no form"
    return {"csrf": found[1]}


def idle(serving: Serving) -> bool:
    assert serving.desk is not None
    return not serving.desk.watch.looking and not serving.desk.watch.polls


def test_nothing_is_asked_of_the_store_while_nobody_looks(
    serving: Serving, hub: Hub, http: httpx.Client, name: str
) -> None:
    hub.queue(name).enqueue("x")
    with http.stream("GET", f"/live?view=queue&queue={name}") as stream:
        lines = stream.iter_lines()
        assert any(line.startswith("data:") for line in lines)
        assert not idle(serving)
    eventually(lambda: idle(serving))
    with counted(serving) as requests:
        assert http.get("/healthz").status_code == 200
        hub.queue(name).enqueue_many(range(10))
        assert requests() == 0


def events(lines: Iterator[str], count: int) -> list[tuple[int, dict[str, Any]]]:
    found: list[tuple[int, dict[str, Any]]] = []
    id = 0
    for line in lines:
        if line.startswith("id:"):
            id = int(line[3:])
        elif line.startswith("data:"):
            found.append((id, json.loads(line[5:])))
            if len(found) == count:
                break
    return found


def test_a_stream_goes_on_after_the_last_event_that_was_seen(hub: Hub, http: httpx.Client, name: str) -> None:
    hub.queue(name).enqueue("x")
    path = f"/live?view=queue&queue={name}"
    with http.stream("GET", path) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        first = events(stream.iter_lines(), 3)
    last, _ = first[-1]
    rows = [row for _, event in first for row in event.get("series", ())]
    assert rows[-1][0] * 1000 == last
    with http.stream("GET", path, headers={"Last-Event-ID": str(last)}) as stream:
        again = events(stream.iter_lines(), 2)
    more = [row for _, event in again for row in event.get("series", ())]
    assert more
    assert all(row[0] * 1000 > last for row in more)
    assert "figures" in again[0][1]["parts"]


def test_a_page_costs_a_bounded_number_of_requests(tmp_path: Path) -> None:
    """Whatever a queue holds: pages read what they show."""
    url = f"file://{tmp_path}/store?fsync=false"
    with brigade.connect(url) as hub:
        queue = hub.queue("tasks", policy=PARKING)
        queue.enqueue_many(range(3000))
        for n in range(120):
            queue.enqueue(n)
        (done,) = queue.claim()
        queue.ack(done)
        queue.settle([Nack(message, "no") for message in queue.claim(40)])
        waiting = queue.peek(1)[0].id
        for n in range(3):
            hub.queue(f"other-{n}")
    most = {
        "/": 60,
        "/queues/tasks": 30,
        "/queues/tasks/messages": 80,
        "/queues/tasks/messages?text=nothing": 150,
        f"/queues/tasks/message?id={waiting}": 8,
        "/failures": 40,
        "/queues/tasks/failures": 200,
        "/workers": 60,
        "/history?queue=tasks": 40,
        "/system": 40,
    }
    spent: dict[str, int] = {}
    with served(url) as serving, httpx.Client(base_url=serving.address, trust_env=False, timeout=60) as http:
        for path in most:
            with counted(serving) as requests:
                assert http.get(path).status_code == 200
                eventually(lambda: idle(serving))
                spent[path] = requests()
        assert {path: count for path, count in spent.items() if count > most[path]} == {}


def test_other_sites_and_forged_forms_are_refused(hub: Hub, http: httpx.Client, name: str) -> None:
    queue = hub.queue(name)
    form = form_of(http, f"/queues/{name}")
    pause = f"/queues/{name}/pause"
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ):
        assert http.post(pause, data=form, headers=headers).status_code == 403
    for wrong in ({}, {"csrf": ""}, {"csrf": "0" * 32}):
        assert http.post(pause, data=wrong).status_code == 403
    assert not queue.stats().paused
    same = {"Origin": str(http.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    assert http.post(pause, data=form, headers=same).status_code == 303
    assert queue.stats().paused
    assert httpx.post(f"{http.base_url}{pause}", data=form, trust_env=False).status_code == 403, "no cookie"
    assert http.get("/", headers={"Host": "evil.example"}).status_code == 403


def test_every_answer_is_guarded(hub: Hub, http: httpx.Client, name: str) -> None:
    hub.queue(name)
    for path in ("/", f"/queues/{name}", "/nope", "/static/brigade.js", "/queues/unknown", "/static/../app.py"):
        answer = http.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert http.get("/queues/unknown").status_code == 404
    assert http.get("/static/..%2fapp.py").status_code == 404
    cookie = http.get("/", headers={"Cookie": ""}).headers.get("set-cookie", "")
    assert not cookie or ("HttpOnly" in cookie and "SameSite=strict" in cookie)


def test_the_api_and_the_pages_share_a_port(hub: Hub, http: httpx.Client, name: str) -> None:
    hub.queue(name).enqueue("x")
    assert http.get(f"/v1/queue/stats?queue={name}").json()["ready"] == 1
    assert http.get("/healthz").json()["status"] == "ok"
    assert "<title>Queues" in http.get("/").text


@pytest.fixture
def guarded() -> Iterator[Serving]:
    with served(f"memory://{uuid.uuid4().hex}", auth="tokens") as serving:
        yield serving


TOKENS = {"root": "*:all", "auditor": "a-*:read", "producer": "*:enqueue"}


@pytest.fixture
def tokens(guarded: Serving) -> dict[str, str]:
    """Tokens by the name of who has them."""
    hub, given = guarded.service.hub, dict[str, str]()
    assert isinstance(hub.store, TokenStore)
    for name, scope in TOKENS.items():
        made, given[name] = mint(name, [scope], now_ms=hub.clock.now())
        writing = hub.store.write_token(made.id, made.body())
        assert asyncio.run_coroutine_threadsafe(writing, hub.loop).result(60)
    return given


@pytest.fixture
def visitor(guarded: Serving, tokens: dict[str, str]) -> Iterator[Callable[[str | None], httpx.Client]]:
    """Browsers of people who have signed in, or not."""
    with contextlib.ExitStack() as stack:

        def make(name: str | None) -> httpx.Client:
            client = stack.enter_context(httpx.Client(base_url=guarded.address, trust_env=False, timeout=60))
            if name is not None:
                eventually(lambda: client.post("/login", data={"token": tokens[name]}).status_code == 303)
            return client

        api = make(None)
        for queue in ("a-tasks", "b-tasks"):
            headers = {"Authorization": f"Bearer {tokens['root']}"}
            body = {"queue": queue, "payload": "x"}

            def sent(headers: dict[str, str] = headers, body: dict[str, str] = body) -> bool:
                return api.post("/v1/queue/enqueue", json=body, headers=headers).status_code == 200

            eventually(sent)
        yield make


def test_a_token_opens_a_session_that_scripts_cannot_read(
    visitor: Callable[[str | None], httpx.Client], tokens: dict[str, str]
) -> None:
    nobody = visitor(None)
    answer = nobody.get("/queues/a-tasks")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=%2Fqueues%2Fa-tasks")
    assert nobody.get("/live").status_code == 401
    assert nobody.post("/login", data={"token": "wrong"}).status_code == 401
    assert nobody.post("/login", data={"token": tokens["producer"]}).status_code == 401, (
        "a token that reads nothing is no use here"
    )
    for bad in ("https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)"):
        answer = nobody.post("/login", params={"next": bad}, data={"token": tokens["root"]})
        assert answer.headers["location"] == "/"
    answer = nobody.post("/login?next=%2Fworkers", data={"token": tokens["root"]})
    assert answer.headers["location"] == "/workers"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert nobody.get("/").status_code == 200
    assert nobody.post("/logout").status_code == 303
    assert nobody.get("/").status_code == 303


def test_who_may_only_look_sees_no_buttons_and_is_refused(visitor: Callable[[str | None], httpx.Client]) -> None:
    auditor, root = visitor("auditor"), visitor("root")
    assert "b-tasks" in root.get("/").text
    page = auditor.get("/").text
    assert "a-tasks" in page
    assert "b-tasks" not in page
    for path in ("/queues/a-tasks", "/queues/a-tasks/messages", "/queues/a-tasks/failures"):
        assert '<form method="post" action="/queues' in root.get(path).text or "failures" in path
        assert '<form method="post" action="/queues' not in auditor.get(path).text
    for path in ("/queues/b-tasks", "/queues/b-tasks/messages", "/live?view=queue&queue=b-tasks", "/system"):
        assert auditor.get(path).status_code == 403, path
    form = form_of(root, "/queues/a-tasks")
    token = {"csrf": auditor.cookies["brigade_form"], **{k: v for k, v in form.items() if k != "csrf"}}
    for action in ("pause", "resume", "purge", "bulk", "change", "resend", "redrive", "discard", "sweep"):
        assert auditor.post(f"/queues/a-tasks/{action}", data=token).status_code == 403, action
    assert auditor.post("/system/doctor", data=token).status_code == 403
    assert root.post("/queues/a-tasks/pause", data=form).status_code == 303


def hide(value: Any, *, queue: str, kind: str) -> Any:
    """What a user's own function may look like."""
    if kind == "payload" and isinstance(value, dict):
        return {key: "***" if key == "card" else inner for key, inner in value.items()}
    if isinstance(value, str):
        return value.replace("4711", "***")
    raise ValueError(kind)


def test_what_is_to_be_hidden_is_hidden_everywhere(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store?fsync=false"
    with brigade.connect(url) as hub:
        queue = hub.queue("pay", policy=PARKING)
        queue.enqueue_many([{"card": "4711"}, {"card": "4711", "n": 2}, {"card": "4711", "n": 3}])
        failed, done = queue.claim(2)
        queue.nack(failed, error="card 4711 refused")
        queue.ack(done, result={"card": "4711"})
        waiting = queue.peek(1)[0]
        queue.state(waiting).save({"card": "4711"})
        ids = [failed.id, done.id, waiting.id]
    with (
        served(url, redact=f"{__name__}:hide") as serving,
        httpx.Client(base_url=serving.address, trust_env=False, timeout=60) as http,
    ):
        paths = ["/queues/pay", "/queues/pay/messages", "/queues/pay/failures", "/history?queue=pay", "/workers"]
        for path in [*paths, *(f"/queues/pay/message?id={id}" for id in ids)]:
            answer = http.get(path)
            assert answer.status_code == 200, path
            assert "4711" not in answer.text, path
        assert HIDDEN in http.get(f"/queues/pay/message?id={waiting.id}").text
        assert "n&#34;:3" in http.get("/queues/pay/messages?text=n").text
        assert "Nothing matches" in http.get("/queues/pay/messages?text=4711").text, "what is hidden can't be searched"
        form = form_of(http, f"/queues/pay/message?id={waiting.id}")
        assert http.post("/queues/pay/resend", data={**form, "id": waiting.id}).status_code == 303
    with brigade.connect(url) as hub:
        copies = [message.data for message in hub.queue("pay").peek(9)]
        assert copies == [{"card": "4711", "n": 3}] * 2, "a copy is made of what is stored, not of what is shown"


def test_a_redaction_that_is_not_there_is_told_at_the_start() -> None:
    for name in ("nothing", "os:nothing", "no_such_module:f", f"{__name__}:PARKING"):
        with pytest.raises(ConfigError, match="redact"):
            load_redaction(name)


def test_secrets_in_addresses_are_not_shown() -> None:
    url = "s3://key:secret@bucket/x?secret_access_key=abc&region=eu&token=t"
    shown = without_secrets(url)
    assert "abc" not in shown
    assert "secret@" not in shown
    assert "region=eu" in shown
    assert without_secrets("postgresql://brigade:pw@db/jobs") == "postgresql://brigade:***@db/jobs"


def test_bulk_actions_have_a_cap_and_are_asked_about(hub: Hub, http: httpx.Client, name: str) -> None:
    queue = hub.queue(name)
    queue.enqueue_many(range(1200))
    form = {**form_of(http, f"/queues/{name}/messages"), "action": "delete", "everything": "yes"}
    asked = http.post(f"/queues/{name}/bulk", data=form)
    assert asked.status_code == 200
    assert "Delete 1,000 messages?" in asked.text
    assert "Only the first 1,000" in asked.text
    assert queue.stats().ready == 1200
    answer = http.post(f"/queues/{name}/bulk", data={**form, "confirmed": "yes"})
    assert answer.headers["location"].endswith("done=delete&n=1000")
    assert queue.stats().ready == 200
    assert http.post(f"/queues/{name}/bulk", data={**form, "everything": "no"}).status_code == 400
    assert http.post(f"/queues/{name}/bulk", data={**form, "action": "explode"}).status_code == 400


def test_the_store_is_examined_on_request(hub: Hub, http: httpx.Client, name: str) -> None:
    hub.queue(name)
    assert http.post("/system/doctor", data=form_of(http, "/system")).status_code == 303
    eventually(lambda: "Safe for queues." in http.get("/system").text)
    eventually(lambda: name in http.get("/").text)


def test_a_dashboard_can_be_left_out() -> None:
    with served(f"memory://{uuid.uuid4().hex}", dashboard=False) as serving:
        assert httpx.get(serving.address, trust_env=False).status_code == 404
