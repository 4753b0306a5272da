"""The routes, and what guards them all."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from brigade.errors import BrigadeError
from brigade.server import admin, dequeueing, enqueueing, settling
from brigade.server.answers import Answer
from brigade.server.call import Call, Endpoint, answer
from brigade.server.service import Service
from brigade.stores.remote.faults import fault_of

__all__ = ["LOOPBACK", "make_app"]

PREFIX = "/v1/queue"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_CODES = {404: "not_found", 405: "method_not_allowed"}
POST = {
    "enqueue": enqueueing.enqueue,
    "abandon": dequeueing.abandon,
    "load": dequeueing.load,
    "wait": dequeueing.wait,
    "ack": settling.ack,
    "nack": settling.nack,
    "extend": settling.extend,
    "release": settling.release,
    "settle": settling.settle,
    "policy": admin.write_policy,
    "redrive": admin.redrive,
    "purge": admin.purge,
    "pause": admin.pause,
    "resume": admin.resume,
    "delete": admin.delete,
    "sweep": admin.sweep,
    "forget": admin.forget,
    "state": admin.save_state,
}
GET = {
    "list": admin.list_queues,
    "policy": admin.read_policy,
    "stats": admin.stats,
    "peek": admin.peek,
    "get": admin.get,
    "failed": admin.failures,
    "state": admin.load_state,
}


def make_app(service: Service, *, hosts: Iterable[str] = LOOPBACK) -> ASGIApp:
    """The server as an ASGI application, for clients that call it by one of these host names."""
    routes = [
        Route("/healthz", Endpoint(service, _healthz), methods=["GET"]),
        Route("/readyz", Endpoint(service, _readyz), methods=["GET"]),
        Route("/v1/info", Endpoint(service, admin.info), methods=["GET"]),
        Route(f"{PREFIX}/dequeue", dequeueing.DequeueEndpoint(service, stateful=False), methods=["POST"]),
        Route(f"{PREFIX}/dequeueWithState", dequeueing.DequeueEndpoint(service, stateful=True), methods=["POST"]),
        Route(f"{PREFIX}/payload", admin.PayloadEndpoint(service), methods=["GET"]),
        *(
            Route(f"{PREFIX}/{name}", _by_method(service, name), methods=_methods(name))
            for name in sorted({*POST, *GET})
        ),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    return _Guard(app, frozenset(hosts))


def _methods(name: str) -> list[str]:
    return [method for method, known in (("POST", POST), ("GET", GET)) if name in known]


def _by_method(service: Service, name: str) -> ASGIApp:
    """One path, read with GET and written with POST."""
    writing = Endpoint(service, POST[name]) if name in POST else None
    reading = Endpoint(service, GET[name]) if name in GET else None

    class Both:
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            chosen = writing if scope["method"] == "POST" or reading is None else reading
            assert chosen is not None
            await chosen(scope, receive, send)

    return Both()


async def _healthz(_service: Service, _: Call) -> Answer:
    """The process runs."""
    return answer({"status": "ok"})


async def _readyz(service: Service, _: Call) -> Answer:
    """The store answers, and the server takes requests."""
    if service.dispatcher.closing:
        return answer({"status": "shutting down"}, status=503)
    try:
        await service.hub.queues()
    except BrigadeError as error:
        return answer({"status": "unavailable", "code": fault_of(error)[1].code}, status=503)
    return answer({"status": "ready"})


class _Guard:
    """Keeps web pages out: they can reach a port on this machine, but send an Origin or another Host."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Request(scope).headers
            if "origin" in headers:
                await _refuse("requests from web pages are not taken")(scope, receive, send)
                return
            if _host(headers.get("host", "")) not in self._hosts:
                await _refuse("the Host header names another machine")(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _host(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _refuse(message: str) -> Response:
    return JSONResponse({"code": "permission_denied", "message": message}, 403)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "invalid_request")
    body = {"code": code, "message": f"{request.method} {request.url.path}: {error.detail}"}
    return JSONResponse(body, error.status_code, headers=error.headers)
