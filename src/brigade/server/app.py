"""The routes as an application, and what keeps web pages out of it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from brigade.server.call import Endpoint, first_of_each
from brigade.server.routes import ROUTES
from brigade.server.service import Service

__all__ = ["LOOPBACK", "make_app"]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_NONE: Mapping[str, ASGIApp] = {}
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
    direct = _Direct(by_path, app)
    return _Guard(direct, None if hosts is None else frozenset(hosts), service.limits.most_headers)


class _Direct:
    """The way to an endpoint by its exact path and method, past a router that tries one route after the other.

    What isn't found so goes to the router, which knows what to say.
    """

    def __init__(self, by_path: Mapping[str, Mapping[str, ASGIApp]], others: ASGIApp) -> None:
        self._by_path = by_path
        self._others = others

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        endpoint = None
        if scope["type"] == "http" and not scope.get("root_path"):
            endpoint = self._by_path.get(scope["path"], _NONE).get(scope["method"])
        return (endpoint or self._others)(scope, receive, send)


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

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        refused = self._refused(scope) if scope["type"] == "http" else None
        return (refused or self._app)(scope, receive, send)

    def _refused(self, scope: Scope) -> Response | None:
        """What to answer instead, where a request is not for the application."""
        headers = first_of_each(scope)
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if sum([len(name) + len(value) for name, value in scope["headers"]]) + size > self._most:
            text = f"the URL and the headers have more than {self._most} bytes; send less of them"
            return JSONResponse({"code": "headers_too_large", "message": text}, 431)
        host = headers.get(b"host", b"")
        if b"origin" in headers and not _same(headers[b"origin"], host):
            return _refuse("requests from web pages are not taken")
        if self._hosts is not None and _host(host) not in self._hosts:
            return _refuse("the Host header names another machine")
        return None


@lru_cache(maxsize=256)
def _host(header: bytes) -> str:
    try:
        return urlsplit(f"//{header.decode('latin-1')}").hostname or ""
    except ValueError:
        return ""


def _same(origin: bytes, host: bytes) -> bool:
    """Whether a page that this server gave out asks: its origin is where the request goes."""
    try:
        return bool(host) and urlsplit(origin.decode("latin-1")).netloc == host.decode("latin-1")
    except ValueError:
        return False


def _refuse(message: str) -> Response:
    return JSONResponse({"code": "permission_denied", "message": message}, 403)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "invalid_request")
    body = {"code": code, "message": f"{request.method} {request.url.path}: {error.detail}"}
    return JSONResponse(body, error.status_code, headers=error.headers)
