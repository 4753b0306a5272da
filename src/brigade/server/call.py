"""One HTTP request as a handler sees it, and the way from its answer or error to HTTP."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from brigade.errors import BrigadeError, ConfigError, PayloadTooLarge, PermissionDenied
from brigade.queue import AsyncQueue
from brigade.server.answers import Answer
from brigade.server.gate import Caller, Over, Right
from brigade.server.service import Service
from brigade.stores.remote.faults import Throttled, fault_of
from brigade.stores.remote.wire import CORRELATION, KEY, RETRY_OF, SERVER, Fault, Load

__all__ = [
    "Call",
    "Endpoint",
    "InvalidRequest",
    "Route",
    "Stream",
    "answer",
    "check_ref",
    "decode",
    "failed",
    "fault_for",
    "first_of_each",
    "head_of",
    "send_answer",
]

log = logging.getLogger("brigade.server")
T = TypeVar("T")
Stream = Callable[[Receive, Send], Awaitable[None]]
"""An answer that sends itself, piece by piece."""

Handler = Callable[[Service, "Call", Any], Awaitable[Answer | Stream]]

MOST_DRAINED = 32 * 1024 * 1024
BUSY = "as many requests are under way here as this server takes; come back later, or use more servers"
_FIRSTS = "brigade.headers"
_EVERY = {b"content-type": b"application/json", b"cache-control": b"no-store"}
_SERVER, _CORRELATION = SERVER.lower().encode(), CORRELATION.lower().encode()
_PATH = re.compile(r"`\$\.?([^`]*)`$")
_FIELD = re.compile(r"field `([^`]*)`")
_FIRST_WORD = re.compile(r"(\w+) (?:is|must|has|takes?|cannot|needs)\b")
_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,255}")
_PLAIN = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,254}[\x21-\x7e])?")


class InvalidRequest(ConfigError):
    """A request is wrong in the named field."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path: who may ask, what it takes and gives, and what carries it out.

    One of `rights` is needed on what `over` says. `takes` is read from the query of a GET and from the body of a POST;
    without it the handler reads the body itself and calls `Call.permit` before it does anything. Where a POST `streams`
    its body, `takes` is read from the query, so that whoever may not ask is refused before the body is read. `gives` is
    a type, or several of which one is given.
    """

    method: str
    path: str
    summary: str
    handler: Handler
    rights: frozenset[Right] = frozenset()
    over: Over = Over.QUEUE
    takes: type[Any] | None = None
    gives: Any = None
    content: str = "application/json"
    streams: bool = False

    @property
    def asks(self) -> bool:
        """Whether what it takes stands in the query."""
        return self.method == "GET" or self.streams


class Call:
    """One request: its body within limits, its parameters, and the headers that mean something here."""

    def __init__(self, scope: Scope, receive: Receive, service: Service, route: Route) -> None:
        self._scope = scope
        self._receive = receive
        self._headers = first_of_each(scope)
        self._service = service
        self._caller: Caller | None = None
        self.route = route
        self._more = True
        self._size = 0
        given = (self.header(CORRELATION) or "").strip()
        self.given_correlation = given if _PLAIN.fullmatch(given) else None
        self.correlation = self.given_correlation or service.ids.token()
        key = self.header(KEY)
        if key is not None and not _PLAIN.fullmatch(key):
            raise InvalidRequest(f"{KEY} must be 1 to 256 printable ASCII characters", KEY)
        self._key = key
        self.retry_of = self.header(RETRY_OF)

    async def admit(self) -> None:
        """Find out who asks. Where a route is over one queue, `permit` follows when its name is known."""
        route = self.route
        if route.over is Over.NOTHING:
            return
        self._caller = await self._service.gate.admit(self._credentials())
        if route.over is Over.SOME and not self._caller.may_some(route.rights):
            raise PermissionDenied(f"this needs the right to {_named(route.rights)} on some queue")
        if route.over is Over.ALL and not self._caller.may_all(route.rights):
            raise PermissionDenied(f"this needs the right to {_named(route.rights)} on every queue")

    def _credentials(self) -> list[str]:
        if b"authorization" not in self._headers:
            return []
        return [value.decode("latin-1") for name, value in self._scope["headers"] if name == b"authorization"]

    async def again(self, queue: str) -> None:
        """The same questions once more, after a wait: rights may have been taken away meanwhile."""
        await self.admit()
        self.permit(queue)

    @property
    def key(self) -> str | None:
        """What this request is repeated under: a key means something to its own caller and path only."""
        return None if self._key is None else self.key_of(self.route.path, self._key)

    def key_of(self, path: str, key: str) -> str:
        """What a request of this caller to that path is repeated under."""
        return f"{self._caller and self._caller.name}\n{path}\n{key}"

    def permit(self, queue: str) -> None:
        """Go on only if the caller has a right of this route on the queue."""
        if not self.may(queue):
            raise PermissionDenied(f"this needs the right to {_named(self.route.rights)} on queue {queue[:120]!r}")

    def may(self, queue: str, rights: frozenset[Right] | None = None) -> bool:
        """Whether the caller has one of these rights, or of this route's, on a queue."""
        assert self._caller is not None
        return self._caller.may(self.route.rights if rights is None else rights, queue)

    async def wanted(self) -> Any:
        """What is asked for, as the route says, once the caller is seen to have the right to it."""
        kind = self.route.takes
        if kind is None:
            return None
        made = self.query(kind) if self.route.asks else await self.json(kind)
        if self.route.over is Over.QUEUE:
            for queue in _queues_of(made):
                self.permit(queue)
        return made

    async def queue(self, name: str, *, create: bool = False) -> AsyncQueue:
        """An open queue that the caller has a right to."""
        self.permit(name)
        return await self._service.queue(name, create=create)

    def header(self, name: str) -> str | None:
        found = self._headers.get(_header_name(name))
        return None if found is None else found.decode("latin-1")

    @property
    def content_type(self) -> str:
        return self.header("content-type") or ""

    @property
    def has_query(self) -> bool:
        return bool(self._scope["query_string"] and self._query)

    @property
    def client(self) -> str:
        """Who asks, where they give no name."""
        client = self._scope.get("client")
        return f"http:{client[0]}:{client[1]}" if client else "http"

    @cached_property
    def _query(self) -> QueryParams:
        return QueryParams(self._scope["query_string"])

    async def chunks(self, most: int) -> AsyncIterator[bytes]:
        """The body as it comes in; PayloadTooLarge beyond `most` bytes."""
        self._check_declared(most)
        while self._more:
            if piece := await self._next(most):
                yield piece

    def _check_declared(self, most: int) -> None:
        declared = self._headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > most:
            raise PayloadTooLarge(
                f"the request has {declared.decode()} bytes, this server takes {most}; send less at a time"
            )

    async def _next(self, most: int) -> bytes:
        piece = await self._piece()
        self._size += len(piece)
        if self._size > most:
            raise PayloadTooLarge(f"the request has more than {most} bytes; send less at a time")
        return piece

    async def _piece(self) -> bytes:
        """The next piece of a body that has more of them."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self._more = False
            raise ClientDisconnect
        self._more = message.get("more_body", False)
        return message.get("body", b"")

    async def drain(self) -> None:
        """Read on for a while, so that a client which still sends gets to read its answer."""
        total = 0
        while self._more and total <= MOST_DRAINED:
            total += len(await self._piece())

    async def json(self, kind: type[T]) -> T:
        """The body as a request of this kind; an InvalidRequest names the field that is wrong."""
        return decode(await self._body(self._service.limits.most_body), kind)

    async def _body(self, most: int) -> bytes:
        """The whole body, most of the time in one piece."""
        self._check_declared(most)
        pieces: list[bytes] = []
        while self._more:
            pieces.append(await self._next(most))
        return b"".join(pieces)

    def query(self, kind: type[T]) -> T:
        """The parameters of the URL as a request of this kind."""
        given: dict[str, str] = {}
        for name, value in self._query.multi_items():
            if name in given:
                raise InvalidRequest(f"{name} is given twice", name)
            given[name] = value
        try:
            return msgspec.convert(given, kind, strict=False)
        except (msgspec.ValidationError, ValueError, OverflowError) as error:
            raise _invalid(error) from None


def first_of_each(scope: Scope) -> dict[bytes, bytes]:
    """The headers of a request; of several with one name the first. They are sorted out once."""
    found = scope.get(_FIRSTS)
    if found is None:
        found = scope[_FIRSTS] = dict(reversed(scope["headers"]))
    return found


@lru_cache(maxsize=256)
def _header_name(name: str) -> bytes:
    return name.lower().encode("latin-1")


def _named(rights: frozenset[Right]) -> str:
    return " or ".join(sorted(rights))


def _queues_of(wanted: Any) -> list[str]:
    """The queues that a request names."""
    if isinstance(wanted, Load):
        return sorted({grant.queue for grant in wanted.grants})
    if wanted.queue is None:
        raise InvalidRequest("queue is missing; name the queue that the message is from", "queue")
    return [wanted.queue]


def decode(body: bytes, kind: type[T]) -> T:
    """JSON as a value of this kind."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, ValueError) as error:
        raise _invalid(error) from None
    except RecursionError:
        raise InvalidRequest("the request is nested too deeply; flatten it") from None


def _invalid(error: Exception) -> InvalidRequest:
    text = str(error)
    found = _PATH.search(text) or _FIELD.search(text)
    return InvalidRequest(f"the request is not valid: {text}", found[1] or None if found else None)


def check_ref(ref: str) -> str:
    """A message's ref as a store made it: nothing that could lead anywhere else."""
    if not _REF.fullmatch(ref) or ".." in ref:
        raise InvalidRequest(f"ref {ref[:120]!r} is not one; use the ref of a message as it was dequeued", "ref")
    return ref


def answer(body: Any, *, correlation: str | None = None, status: int = 200) -> Answer:
    """A value as an answer in JSON."""
    headers = {CORRELATION: correlation} if correlation is not None and _PLAIN.fullmatch(correlation) else {}
    return Answer(status, msgspec.json.encode(body), headers)


def failed(error: BaseException, call_correlation: str) -> Answer:
    """An error as an answer. What nobody foresaw is logged, and told to nobody."""
    status, fault = fault_for(error, call_correlation)
    made = Answer(status, msgspec.json.encode(fault))
    if isinstance(error, Throttled):
        made.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    elif status == 401:
        made.headers["WWW-Authenticate"] = 'Bearer realm="brigade"'
    elif status == 503:
        made.headers["Retry-After"] = "1"
    return made


def fault_for(error: BaseException, call_correlation: str) -> tuple[int, Fault]:
    """An error as it is told, and the status that says so."""
    if isinstance(error, BrigadeError):
        status, fault = fault_of(error)
        if fault.field is None and status == 400 and (found := _FIRST_WORD.match(fault.message)):
            fault.field = found[1]
    else:
        log.error("request %s failed", call_correlation, exc_info=error)
        status, fault = 500, Fault(code="internal", message="the server failed; its log says why")
    fault.correlation_id = call_correlation
    return status, fault


class Endpoint:
    """A route as an ASGI application: the one way in. Whatever happens inside, the client gets JSON."""

    def __init__(self, service: Service, route: Route) -> None:
        self._service = service
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, route = self._service, self._route
        clock, counted = service.hub.clock, _Counted(send)
        start = clock.monotonic()
        service.requests += 1
        try:
            if service.requests > service.limits.most_requests:
                made = failed(Throttled(BUSY), "")
                await send_answer(counted, made, service, "")
            else:
                await self._answer(scope, receive, counted)
        finally:
            service.requests -= 1
            service.traffic[route.method, route.path, counted.status] += 1
            service.spent[route.path] += clock.monotonic() - start

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        correlation = ""
        call: Call | None = None
        try:
            call = Call(scope, receive, self._service, self._route)
            correlation = call.correlation
            await call.admit()
            made = await self._route.handler(self._service, call, await call.wanted())
        except ClientDisconnect:
            return
        except Exception as error:
            made = failed(error, correlation)
            try:
                if call is not None:
                    await call.drain()
            except ClientDisconnect:
                return
        if isinstance(made, Answer):
            await send_answer(send, made, self._service, correlation)
        else:
            await made(receive, send)


class _Counted:
    """Sends, and remembers with which status."""

    __slots__ = ("_send", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    def __call__(self, message: MutableMapping[str, Any]) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        return self._send(message)


def head_of(made: Answer, service: Service, correlation: str, *, sized: bool = True) -> dict[str, Any]:
    """The head of an answer: what all have, and what is its own. Without its size it ends where its pieces do."""
    headers = {**_EVERY, _SERVER: service.header}
    if sized:
        headers[b"content-length"] = b"%d" % len(made.body)
    if correlation:
        headers[_CORRELATION] = correlation.encode("latin-1")
    for name, value in made.headers.items():
        headers[_header_name(name)] = value.encode("latin-1")
    return {"type": "http.response.start", "status": made.status, "headers": list(headers.items())}


async def send_answer(send: Send, made: Answer, service: Service, correlation: str) -> None:
    await send(head_of(made, service, correlation))
    await send({"type": "http.response.body", "body": made.body})
