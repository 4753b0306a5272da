"""Who may do what on a server: every route for every scope, and tokens that are wrong in every way."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import uuid
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

import brigade
from brigade import ConfigError, NewMessage, PermissionDenied
from brigade.operator import Operator
from brigade.payload import outgoing
from brigade.server.auth.gate import TokenGate
from brigade.server.auth.tokens import Scope, Token, mint, parse_bearer, parse_scope
from brigade.server.gate import Over, Right
from brigade.server.routes import ROUTES
from brigade.server.serve import ServerConfig, Serving
from brigade.stores import TokenStore
from brigade.stores.remote.faults import Unauthenticated
from served import BRIGADE, served

MINE, OTHERS = "mine-1", "others-1"
EXTRAS: dict[str, dict[str, Any]] = {
    "/v1/queue/enqueue": {"payload": {"n": 1}},
    "/v1/queue/dequeue": {"wait": 0},
    "/v1/queue/dequeueWithState": {"wait": 0},
    "/v1/queue/wait": {"seconds": 0},
    "/v1/queue/outcomes": {"days": "2026-01-01"},
}
REFUSED = {401, 403}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with served(f"memory://{uuid.uuid4().hex}", auth="tokens") as serving:
        with brigade.connect(serving.address, token=token(serving, "*:all")) as hub:
            hub.queue(MINE)
            hub.queue(OTHERS)
        yield serving


def token(serving: Serving, *scopes: str, expires_in: float | None = None) -> str:
    """A new token, known to the server at once."""
    made, text = mint("test", scopes, now_ms=serving.service.hub.clock.now(), expires_in=expires_in)
    store, gate = serving.service.hub.store, serving.service.gate
    assert isinstance(store, TokenStore)
    assert isinstance(gate, TokenGate)
    loop = serving.service.hub.loop
    asyncio.run_coroutine_threadsafe(store.write_token(made.id, made.body()), loop).result(30)
    asyncio.run_coroutine_threadsafe(gate.load(), loop).result(30)
    return text


@pytest.fixture(scope="module")
def http(server: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.address, trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def bearers(server: Serving) -> dict[str, str]:
    """A token for each right on some queues, and one for everything."""
    return {**{right.value: token(server, f"mine-*:{right}") for right in Right}, "all": token(server, "*:all")}


class Reply(NamedTuple):
    """How a request was answered. What streams is not read."""

    status: int
    text: str


def sample(kind: Any, queue: str | None) -> dict[str, Any]:
    """The least that a route takes: what it needs, filled with something, so that a new route needs no line here."""
    if kind is None:
        return {"queue": queue}
    made: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.name == "queue":
            made[field.encode_name] = queue
        elif field.required:
            made[field.encode_name] = _filled(field.type, queue)
    return made


def _filled(kind: Any, queue: str | None) -> Any:
    shape = msgspec.inspect.type_info(kind)
    match shape:
        case msgspec.inspect.ListType(item_type=msgspec.inspect.StructType(cls=cls)):
            return [sample(cls, queue)]
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType() | msgspec.inspect.CollectionType():
            return []
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return 1
        case msgspec.inspect.StructType(cls=cls):
            return sample(cls, queue)
        case msgspec.inspect.LiteralType(values=values):
            return values[0]
        case msgspec.inspect.BytesType():
            return ""
        case _:
            return "1"


def send(http: httpx.Client, method: str, path: str, queue: str | None, bearer: str | None = None) -> Reply:
    headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
    (route,) = (one for one in ROUTES if (one.method, one.path) == (method, path))
    wanted = sample(route.takes, queue) | EXTRAS.get(path, {})
    what: dict[str, Any] = {"params": wanted} if route.asks else {"json": wanted}
    with http.stream(method, path, headers=headers, **what) as answer:
        text = "" if answer.status_code == 200 else answer.read().decode()
        return Reply(answer.status_code, text)


def test_every_route_but_health_declares_a_right() -> None:
    """A new route without a right fails here."""
    for route in ROUTES:
        if route.over is Over.NOTHING:
            assert route.path in ("/healthz", "/readyz", "/openapi.json"), f"{route.path} asks nobody who they are"
        else:
            assert route.rights, f"{route.method} {route.path} needs no right"


CASES = [(route.method, route.path) for route in ROUTES if route.over is not Over.NOTHING]


@pytest.mark.parametrize("method, path", CASES)
def test_every_route_is_open_to_its_rights_alone(
    http: httpx.Client, bearers: dict[str, str], method: str, path: str
) -> None:
    """Every scope x every route, on a queue that the scope covers and on one that it doesn't."""
    (route,) = (one for one in ROUTES if (one.method, one.path) == (method, path))
    assert send(http, method, path, MINE).status == 401
    for right in Right:
        allowed = right in route.rights and route.over is not Over.ALL
        mine = send(http, method, path, MINE, bearers[right])
        assert (mine.status not in REFUSED) == allowed, (right, mine)
        if not allowed:
            assert mine.status == 403
            assert json.loads(mine.text)["code"] == "permission_denied"
        if route.over is Over.QUEUE:
            others = send(http, method, path, OTHERS, bearers[right])
            assert others.status == 403, (right, others)
    assert send(http, method, path, OTHERS, bearers["all"]).status not in REFUSED
    if path == "/v1/queue/delete":
        for queue in (MINE, OTHERS):
            assert send(http, "POST", "/v1/queue/open", queue, bearers["all"]).status == 200


def test_one_right_is_enough_for_each_part_of_a_pipeline(server: Serving) -> None:
    """Who writes bulk jobs, who reads tables, who streams and who decides need have nothing else."""
    queue = "mine-pipeline"

    async def run() -> None:
        async with (
            brigade.connect_async(server.address, token=token(server, "mine-*:enqueue")) as writer,
            brigade.connect_async(server.address, token=token(server, "mine-*:read")) as reader,
            brigade.connect_async(server.address, token=token(server, "mine-*:claim")) as streamer,
            brigade.connect_async(server.address, token=token(server, "mine-*:admin")) as operator,
        ):
            await writer.queue(queue)
            made: Any = writer.store
            part = await made.stage(queue, "job", [outgoing(NewMessage(payload=n)) for n in range(3)])
            assert await made.publish(queue, "job", [part]) == 3

            looks: Any = reader.store
            (piece,) = await looks.pieces(queue, "messages", 1)
            blocks = [block async for block in looks.scan(queue, "messages", piece)]
            assert sum(block.count for block in blocks) == 3
            refs = [ref for block in blocks for ref in block.columns["ref"]]
            assert len((await Operator(await reader.queue(queue, create=False)).browse()).messages) == 3

            decides: Any = operator.store
            assert await decides.reprioritize(queue, refs[:1], 0) == 1

            takes: Any = streamer.store
            grants = await takes.lease(queue, limit=10, owner="driver", visibility=60)
            assert await takes.write_note(queue, "batch", b"leases") == b"leases"
            messages = await takes.load(grants)
            assert len(messages) == 3
            await takes.settle(queue, [brigade.Ack(message) for message in messages])
            await takes.drop_note(queue, "batch")
            await takes.forget(queue)
            parts = await looks.history_parts(queue, 0)
            assert sum([len(await looks.read_history(one)) for one in parts]) == 4

            for forbidden in (
                lambda: made.pieces(queue, "messages", 1),
                lambda: looks.publish(queue, "job", [part]),
                lambda: takes.claim_these(queue, refs, owner="x", visibility=1),
                lambda: decides.read_note(queue, "batch"),
            ):
                with pytest.raises(PermissionDenied):
                    await forbidden()

    asyncio.run(run())


def test_the_key_of_seals_is_no_token(run: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    url = f"file://{tmp_path}/sealed?fsync=off"
    run("token", "create", "ops", "--scope", "*:all", "--url", url)
    with served(url, auth="tokens") as serving:
        text = token(serving, "*:all")
        with httpx.Client(base_url=serving.address, trust_env=False, timeout=60) as http:
            http.headers["Authorization"] = f"Bearer {text}"
            assert http.post("/v1/queue/open", json={"queue": "tasks"}).status_code == 200
            found = http.get("/v1/queue/pieces", params={"queue": "tasks", "table": "messages"})
            assert found.json() == {"pieces": []}
        token(serving, "*:read")
    assert (tmp_path / "sealed" / "auth" / "token" / "seal").stat().st_size == 32
    assert "is not one" not in caplog.text
    assert len(json.loads(run("token", "list", "--json", "--url", url).stdout)) == 3


def test_health_tells_nobody_anything_and_needs_no_token(server: Serving) -> None:
    for path in ("/healthz", "/readyz"):
        answer = httpx.get(server.address + path, trust_env=False, timeout=60)
        assert answer.status_code == 200
        assert set(answer.json()) == {"status"}


def test_a_queue_that_one_may_not_see_is_not_listed(server: Serving) -> None:
    with brigade.connect(server.address, token=token(server, "mine-*:read")) as hub:
        found = hub.queues()
    assert MINE in found
    assert all(name.startswith("mine-") for name in found)


def test_a_policy_does_not_reach_into_a_queue_that_one_has_no_right_to(server: Serving) -> None:
    """Failures would be written there."""
    policy = brigade.QueuePolicy(failure=brigade.Failure("hybrid", 1, OTHERS))
    with brigade.connect(server.address, token=token(server, "mine-*:all")) as hub:
        with pytest.raises(PermissionDenied, match="'others-1', too"):
            hub.queue("mine-letters", policy)
        letters = brigade.QueuePolicy(failure=brigade.Failure("hybrid", 1, "mine-dead"))
        hub.queue("mine-letters", letters)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer brg_0000000000000000_" + "A" * 43,
        "Bearer brg_zz_x",
        "Bearer " + "A" * 5000,
        "Bearer brg_0000000000000000_" + "A" * 42 + "\xe9",
        "Basic YWxhZGRpbjpvcGVuc2VzYW1l",
        "Digest x",
        "Bearer null",
        "Bearer brg_../../../q_" + "A" * 43,
    ],
)
def test_a_header_that_is_no_token_of_ours_is_refused(server: Serving, header: str) -> None:
    raw = [(b"Authorization", header.encode("latin-1"))]
    with httpx.Client(base_url=server.address, trust_env=False, timeout=60) as http:
        answer = http.get("/v1/info", headers=raw)
    assert answer.status_code == 401
    assert answer.json()["code"] == "unauthenticated"
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_a_token_with_another_secret_or_sent_twice_is_refused(server: Serving) -> None:
    good = token(server, "*:all")
    bad = good[:-1] + ("A" if good[-1] != "A" else "B")
    with httpx.Client(base_url=server.address, trust_env=False, timeout=60) as http:
        assert http.get("/v1/info", headers={"Authorization": f"Bearer {bad}"}).status_code == 401
        assert http.get("/v1/info", headers={"Authorization": f"bearer {good}"}).status_code == 200
        twice = [("Authorization", f"Bearer {good}"), ("Authorization", f"Bearer {good}")]
        assert http.get("/v1/info", headers=twice).status_code == 401
        assert http.get("/v1/info", params={"token": good, "access_token": good}).status_code == 401


def test_a_token_that_has_expired_is_refused_and_says_so(server: Serving) -> None:
    short = token(server, "*:all", expires_in=0.001)
    with pytest.raises(Unauthenticated, match="expired"), brigade.connect(server.address, token=short):
        pass


def test_a_revoked_token_is_refused_soon_and_a_new_one_is_known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brigade.server.auth.gate.FRESH_FOR", 0.0)
    monkeypatch.setattr("brigade.server.auth.gate.LOOK_AGAIN", 0.0)
    name = f"memory://{uuid.uuid4().hex}"
    with served(name, auth="tokens") as serving, brigade.connect(name):
        made, text = mint("late", ["*:all"], now_ms=0)
        store: Any = serving.service.hub.store
        loop = serving.service.hub.loop
        assert asyncio.run_coroutine_threadsafe(store.write_token(made.id, made.body()), loop).result(30)
        with brigade.connect(serving.address, token=text) as hub:
            hub.queue("tasks").enqueue(1)
            assert asyncio.run_coroutine_threadsafe(store.drop_token(made.id), loop).result(30)
            with pytest.raises(Unauthenticated, match="revoked"):
                hub.queue("tasks").stats()


def test_a_stream_ends_when_its_token_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was about to be sent is given back, not lost."""
    monkeypatch.setattr("brigade.server.auth.gate.FRESH_FOR", 0.0)
    with served(f"memory://{uuid.uuid4().hex}", auth="tokens") as serving:
        ops, worker = token(serving, "*:all"), token(serving, "*:claim,read")
        parsed = parse_bearer(f"Bearer {worker}")
        assert parsed is not None
        store: Any = serving.service.hub.store
        headers = {"Authorization": f"Bearer {worker}"}
        with (
            brigade.connect(serving.address, token=ops) as hub,
            httpx.Client(base_url=serving.address, trust_env=False, timeout=60, headers=headers) as http,
        ):
            queue = hub.queue("tasks")
            with (
                http.stream("POST", "/v1/queue/subscribe", json={"queue": "tasks"}) as stream,
                http.stream("GET", "/v1/queue/watch", params={"queue": "tasks"}) as watched,
            ):
                lines = stream.iter_lines()
                assert json.loads(next(lines))["type"] == "subscribed"
                asyncio.run_coroutine_threadsafe(store.drop_token(parsed[0]), serving.service.hub.loop).result(30)
                queue.enqueue({"n": 1})
                (last,) = lines
                assert json.loads(last)["error"]["code"] == "unauthenticated"
                for _ in watched.iter_lines():
                    pass
            (message,) = queue.claim(1, wait=30)
            assert message.attempt == 1


class Broken:
    """A store of tokens that does not answer, or answers nonsense."""

    def __init__(self) -> None:
        self.answer: list[tuple[str, bytes]] | None = None
        self.asked = 0

    async def tokens(self) -> list[tuple[str, bytes]]:
        self.asked += 1
        if self.answer is None:
            raise brigade.StoreUnavailable("down")
        return self.answer

    async def write_token(self, id: str, body: bytes) -> bool:
        return False

    async def drop_token(self, id: str) -> bool:
        return False


def sent(text: str) -> list[str]:
    return [f"Bearer {text}"]


async def test_without_its_tokens_a_server_lets_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from brigade.clock import SystemClock

    store = Broken()
    gate = TokenGate(store, SystemClock())
    made, text = mint("one", ["*:all"], now_ms=0)
    with pytest.raises(brigade.StoreUnavailable):
        await gate.admit(sent(text))
    store.answer = [(made.id, made.body()), ("0" * 16, b"nonsense"), ("1" * 16, made.body())]
    monkeypatch.setattr("brigade.server.auth.gate.FRESH_FOR", -1.0)
    assert await gate.admit(sent(text)) == made
    store.answer = None
    assert await gate.admit(sent(text)) == made
    monkeypatch.setattr("brigade.server.auth.gate.STALE_FOR", -1.0)
    with pytest.raises(brigade.StoreUnavailable, match="nobody is let in"):
        await gate.admit(sent(text))


async def test_guesses_do_not_cost_the_store_a_request_each() -> None:
    from brigade.clock import SystemClock

    store = Broken()
    store.answer = []
    gate = TokenGate(store, SystemClock())
    for _ in range(200):
        _, guess = mint("guess", ["*:all"], now_ms=0)
        with pytest.raises(Unauthenticated):
            await gate.admit(sent(guess))
    assert store.asked < 20


@pytest.mark.parametrize(
    "pattern, fits, fits_not",
    [
        ("tasks", ["tasks"], ["tasks2", "task", "", "TASKS"]),
        ("*", ["tasks", "x", "a.b-c_d"], []),
        ("a*", ["a", "ab"], ["ba", "b"]),
        ("*a", ["a", "ba"], ["ab"]),
        ("a*b*c", ["abc", "axbyc", "abbc"], ["ab", "ac", "acb"]),
        ("a*a", ["aa", "aba"], ["a"]),
        ("a.b", ["a.b"], ["axb"]),
    ],
)
def test_a_pattern_fits_the_names_that_it_says(pattern: str, fits: list[str], fits_not: list[str]) -> None:
    scope = Scope(pattern, (Right.READ,))
    assert [name for name in fits if not scope.fits(name)] == []
    assert [name for name in fits_not if scope.fits(name)] == []


@pytest.mark.parametrize(
    "scope", ["", "tasks", "tasks:", ":read", "tasks:write", "ta/sks:read", "../x:read", "a*b*c*d*e:read", "x\n:read"]
)
def test_a_bad_scope_is_refused_with_what_to_write(scope: str) -> None:
    with pytest.raises(ConfigError, match="scope"):
        parse_scope(scope)


def test_only_a_hash_of_a_token_is_kept() -> None:
    made, text = mint("web", ["a-*:enqueue,read", "b:all"], now_ms=5, expires_in=60)
    parsed = parse_bearer(f"Bearer {text}")
    assert parsed is not None
    secret = parsed[1]
    assert made.matches(secret)
    assert not made.matches(secret[::-1])
    assert secret.encode() not in made.body()
    assert secret not in repr(made)
    assert msgspec.json.decode(made.body(), type=Token) == made
    assert [str(scope) for scope in made.scopes] == ["a-*:enqueue,read", "b:enqueue,claim,read,admin"]
    assert not made.expired(60_004)
    assert made.expired(60_005)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_a_server_that_others_can_reach_must_ask_who_they_are(host: str) -> None:
    with pytest.raises(ConfigError, match="nothing checks who asks"):
        ServerConfig(url="memory://x", host=host)
    ServerConfig(url="memory://x", host=host, auth="tokens")
    with pytest.raises(ConfigError, match="auth is 'maybe'"):
        ServerConfig(url="memory://x", auth="maybe")


def test_a_token_is_never_in_a_url(server: Serving) -> None:
    text = token(server, "*:all")
    with pytest.raises(ConfigError, match="must not stand in the URL") as caught:
        brigade.connect(f"{server.address}?token={text}")
    assert text not in str(caught.value)
    for wrong in ("two words", "", "x" * 600, "\n"):
        with pytest.raises(ConfigError) as caught, brigade.connect(server.address, token=wrong):
            pass
        assert not wrong.strip() or wrong not in str(caught.value)


@pytest.fixture
def everything_said() -> Generator[io.StringIO, None, None]:
    """Every log line of every logger, at every level."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(logging.Formatter("%(name)s %(message)s %(exc_info)s %(args)s"))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield said
    root.removeHandler(handler)
    root.setLevel(before)


def test_a_token_is_in_no_log_error_repr_or_answer(server: Serving, everything_said: io.StringIO) -> None:
    good = token(server, "mine-*:enqueue")
    secret = good.rpartition("_")[2]
    said: list[str] = []
    hub = brigade.connect(server.address, token=good)
    with hub:
        queue = hub.queue(MINE)
        queue.enqueue({"n": 1})
        said += [repr(hub), str(hub), repr(queue), repr(hub.requests())]
        for forbidden in (lambda: queue.claim(1), lambda: hub.queue(OTHERS), queue.purge):
            with pytest.raises(PermissionDenied) as caught:
                forbidden()
            said += [repr(caught.value), str(caught.value)]
    wrong = good[:-4] + "AAAA"
    with pytest.raises(Unauthenticated) as refused, brigade.connect(server.address, token=wrong):
        pass
    said += [repr(refused.value), str(refused.value.__cause__)]
    for path in ("/v1/info", "/openapi.json", "/metrics", "/v1/queue/list", "/nowhere"):
        answer = httpx.get(
            server.address + path, headers={"Authorization": f"Bearer {good}"}, trust_env=False, timeout=60
        )
        said += [answer.text, str(answer.headers)]
    said.append(everything_said.getvalue())
    text = "\n".join(said)
    assert len(text) > 500
    assert secret[:30] not in text
    assert wrong not in text


def test_commands_make_list_and_revoke_tokens(run: Any) -> None:
    made = run("token", "create", "web", "--scope", "orders-*:enqueue", "--expires", "90d")
    text = made.stdout.decode().strip()
    assert parse_bearer(f"Bearer {text}")
    assert text.encode() not in made.stderr
    told = json.loads(run("token", "create", "ops", "--scope", "*:all", "--json").stdout)
    assert told["token"].startswith(f"brg_{told['id']}_")
    listed = json.loads(run("token", "list", "--json").stdout)
    assert {one["name"]: (one["scopes"], one["expired"]) for one in listed} == {
        "web": (["orders-*:enqueue"], False),
        "ops": (["*:enqueue,claim,read,admin"], False),
    }
    shown = run("token", "list")
    for secret in (text, told["token"]):
        assert secret.rpartition("_")[2].encode() not in shown.stdout + shown.stderr
        assert secret.rpartition("_")[2] not in json.dumps(listed)
    assert run("token", "revoke", text, "--yes", code=2).stderr.count(text.encode()) == 0
    assert json.loads(run("token", "revoke", told["id"], "--yes", "--json").stdout) == {"revoked": [told["id"]]}
    run("token", "revoke", told["id"], "--yes", code=3)
    assert [one["name"] for one in json.loads(run("token", "list", "--json").stdout)] == ["web"]
    run("token", "create", "bad", "--scope", "orders", code=2)
    run("token", "create", "bad", "--scope", "a:read", "--expires", "soon", code=2)
    run("token", "list", "--url", "http://localhost:1", code=2)


def test_commands_send_the_token_from_a_file_or_the_environment(server: Serving, run: Any, tmp_path: Any) -> None:
    text = token(server, "mine-*:all")
    (tmp_path / "token").write_text(f"{text}\n")
    run("enqueue", MINE, "hello", "--url", server.address, BRIGADE_TOKEN=text)
    run("stats", MINE, "--url", server.address, "--token-file", "token")
    run("stats", MINE, "--url", f"{server.address}?token_file={tmp_path}/token")
    refused = run("stats", MINE, "--url", server.address, code=1)
    assert b"needs a token" in refused.stderr
    run("stats", MINE, "--url", server.address, "--token-file", "missing", code=2)
    leaked = run("stats", MINE, "--url", f"{server.address}?token={text}", code=2)
    assert text.encode() not in leaked.stderr


def test_serve_does_not_say_the_password_of_its_store(tmp_path: Any) -> None:
    from brigade.stores.opening import shown_url

    shown = shown_url("postgresql://me:hunter2@db/x?sslpassword=hunter3&schema=brigade")
    assert "hunter" not in shown
    assert "schema=brigade" in shown
    assert BRIGADE.exists()
