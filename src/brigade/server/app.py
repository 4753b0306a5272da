"""The routes as an application, and what keeps web pages out of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from brigade.server.call import Endpoint
from brigade.server.routes import ROUTES
from brigade.server.service import Service

__all__ = ["LOOPBACK", "make_app"]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_CODES = {404: "not_found", 405: "method_not_allowed"}


def make_app(service: Service, *, hosts: Iterable[str] | None = LOOPBACK, mounts: Sequence[BaseRoute] = ()) -> ASGIApp:
    """The server as an ASGI application, for clients that call it by one of these host names, or by any with None.

    `mounts` come after the API, for what isn't part of it.
    """
    by_path: dict[str, dict[str, ASGIApp]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, {})[route.method] = Endpoint(service, route)
    routes = [StarletteRoute(path, _Methods(made), methods=list(made)) for path, made in by_path.items()]
    app = Starlette(routes=[*routes, *mounts], exception_handlers={HTTPException: _http_error})
    return _Guard(app, None if hosts is None else frozenset(hosts), service.limits.most_headers)


class _Methods:
    """One path, read with GET and written with POST."""

    def __init__(self, endpoints: Mapping[str, ASGIApp]) -> None:
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._endpoints[method](scope, receive, send)


class _Guard:
    """Keeps other sites' pages out: they can reach a port on this machine, but send their Origin or another Host."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, most_headers: int) -> None:
        self._app = app
        self._hosts = hosts
        self._most = most_headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Request(scope).headers
            size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
            if sum(len(name) + len(value) for name, value in scope["headers"]) + size > self._most:
                text = f"the URL and the headers have more than {self._most} bytes; send less of them"
                await JSONResponse({"code": "headers_too_large", "message": text}, 431)(scope, receive, send)
                return
            if "origin" in headers and not _same(headers["origin"], headers.get("host", "")):
                await _refuse("requests from web pages are not taken")(scope, receive, send)
                return
            if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
                await _refuse("the Host header names another machine")(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _host(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _same(origin: str, host: str) -> bool:
    """Whether a page that this server gave out asks: its origin is where the request goes."""
    try:
        return bool(host) and urlsplit(origin).netloc == host
    except ValueError:
        return False


def _refuse(message: str) -> Response:
    return JSONResponse({"code": "permission_denied", "message": message}, 403)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "invalid_request")
    body = {"code": code, "message": f"{request.method} {request.url.path}: {error.detail}"}
    return JSONResponse(body, error.status_code, headers=error.headers)
