"""One HTTP request as an endpoint sees it, and the way from an endpoint's answer or error to HTTP."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from brigade.errors import BrigadeError, ConfigError, PayloadTooLarge
from brigade.server.answers import Answer
from brigade.server.service import Service
from brigade.stores.remote.faults import Throttled, fault_of
from brigade.stores.remote.wire import CORRELATION, KEY, RETRY_OF, SERVER, Fault

__all__ = [
    "Call",
    "Endpoint",
    "InvalidRequest",
    "answer",
    "check_ref",
    "decode",
    "failed",
    "headers_of",
    "send_answer",
    "start_of",
]

log = logging.getLogger("brigade.server")
T = TypeVar("T")
Handler = Callable[[Service, "Call"], Awaitable[Answer]]

MOST_DRAINED = 32 * 1024 * 1024
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


class Call:
    """One request: its body within limits, its parameters, and the headers that mean something here."""

    def __init__(self, request: Request, service: Service) -> None:
        self._request = request
        self._service = service
        self._stream: AsyncIterator[bytes] | None = None
        given = request.headers.get(CORRELATION, "").strip()
        self.given_correlation = given if _PLAIN.fullmatch(given) else None
        self.correlation = self.given_correlation or service.ids.token()
        key = request.headers.get(KEY)
        if key is not None and not _PLAIN.fullmatch(key):
            raise InvalidRequest(f"{KEY} must be 1 to 256 printable ASCII characters", KEY)
        self.key = key
        self.retry_of = request.headers.get(RETRY_OF)

    @property
    def content_type(self) -> str:
        return self._request.headers.get("content-type", "")

    @property
    def has_query(self) -> bool:
        return bool(self._request.query_params)

    @property
    def client(self) -> str:
        """Who asks, where they give no name."""
        client = self._request.client
        return f"http:{client.host}:{client.port}" if client else "http"

    def chunks(self, most: int) -> AsyncIterator[bytes]:
        """The body as it comes in; PayloadTooLarge beyond `most` bytes."""
        if self._stream is None:
            self._stream = self._request.stream()
        return self._limited(self._stream, most)

    async def _limited(self, stream: AsyncIterator[bytes], most: int) -> AsyncIterator[bytes]:
        declared = self._request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most:
            raise PayloadTooLarge(f"the request has {declared} bytes, this server takes {most}; send less at a time")
        total = 0
        async for chunk in stream:
            total += len(chunk)
            if total > most:
                raise PayloadTooLarge(f"the request has more than {most} bytes; send less at a time")
            if chunk:
                yield chunk

    async def drain(self) -> None:
        """Read on for a while, so that a client which still sends gets to read its answer."""
        if self._stream is None:
            self._stream = self._request.stream()
        total = 0
        async for chunk in self._stream:
            total += len(chunk)
            if total > MOST_DRAINED:
                return

    async def json(self, kind: type[T]) -> T:
        """The body as a request of this kind; an InvalidRequest names the field that is wrong."""
        body = b"".join([chunk async for chunk in self.chunks(self._service.limits.most_body)])
        return decode(body, kind)

    def query(self, kind: type[T]) -> T:
        """The parameters of the URL as a request of this kind."""
        given: dict[str, str] = {}
        for name, value in self._request.query_params.multi_items():
            if name in given:
                raise InvalidRequest(f"{name} is given twice", name)
            given[name] = value
        try:
            return msgspec.convert(given, kind, strict=False)
        except (msgspec.ValidationError, ValueError, OverflowError) as error:
            raise _invalid(error) from None


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
    if isinstance(error, BrigadeError):
        status, fault = fault_of(error)
        if fault.field is None and status == 400 and (found := _FIRST_WORD.match(fault.message)):
            fault.field = found[1]
    else:
        log.error("request %s failed", call_correlation, exc_info=error)
        status, fault = 500, Fault(code="internal", message="the server failed; its log says why")
    fault.correlation_id = call_correlation
    made = Answer(status, msgspec.json.encode(fault))
    if isinstance(error, Throttled):
        made.headers["Retry-After"] = str(max(1, round(error.retry_after)))
    elif status == 503:
        made.headers["Retry-After"] = "1"
    return made


class Endpoint:
    """An endpoint as an ASGI application: whatever happens inside, the client gets JSON."""

    def __init__(self, service: Service, handler: Handler) -> None:
        self._service = service
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        correlation = ""
        call: Call | None = None
        try:
            call = Call(request, self._service)
            correlation = call.correlation
            made = await self._handler(self._service, call)
        except ClientDisconnect:
            return
        except Exception as error:
            made = failed(error, correlation)
            try:
                if call is not None:
                    await call.drain()
            except (ClientDisconnect, RuntimeError):
                return
        await send_answer(send, made, headers_of(made, self._service, correlation))


def headers_of(made: Answer, service: Service, correlation: str) -> Mapping[str, str]:
    return {
        "Content-Type": "application/json",
        "Content-Length": str(len(made.body)),
        "Cache-Control": "no-store",
        SERVER: service.name,
        **({CORRELATION: correlation} if correlation else {}),
        **made.headers,
    }


def start_of(made: Answer, headers: Mapping[str, str]) -> dict[str, Any]:
    encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": made.status, "headers": encoded}


async def send_answer(send: Send, made: Answer, headers: Mapping[str, str]) -> None:
    await send(start_of(made, headers))
    await send({"type": "http.response.body", "body": made.body})
