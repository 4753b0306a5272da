"""The dashboard as an ASGI application: routes, what every answer carries, and what keeps other sites' pages out."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from brigade.errors import BrigadeError, ConfigError
from brigade.ids import Ids
from brigade.server.dashboard.access import EVERYBODY, Forbidden
from brigade.server.dashboard.desk import Desk
from brigade.server.dashboard.live import live
from brigade.server.dashboard.pages import failures, history, message, messages, overview, queue, system, workers
from brigade.server.dashboard.render import STATIC
from brigade.server.dashboard.visit import Visit
from brigade.stores.remote.faults import fault_of

__all__ = ["API", "SESSION", "make_dashboard", "with_dashboard"]

log = logging.getLogger("brigade.server")
Page = Callable[[Visit], Awaitable[Response]]
API = ("/v1", "/healthz", "/readyz", "/metrics", "/openapi.json")
_API_FOLDERS = tuple(f"{one}/" for one in API)
SESSION = "brigade_session"
TOKEN = "brigade_form"  # noqa: S105 - the name of a cookie
SECURITY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
FOR_EVER = "public, max-age=31536000, immutable"
MOST_LOGIN = 16 * 1024

GET: dict[str, Page] = {
    "/": overview.overview,
    "/queues/{queue}": queue.queue,
    "/queues/{queue}/messages": messages.messages,
    "/queues/{queue}/message": message.message,
    "/queues/{queue}/failures": failures.of_queue,
    "/failures": failures.failures,
    "/workers": workers.workers,
    "/history": history.history,
    "/system": system.system,
    "/live": live,
}
POST: dict[str, Page] = {
    "/queues/{queue}/pause": queue.pause,
    "/queues/{queue}/resume": queue.resume,
    "/queues/{queue}/purge": queue.purge,
    "/queues/{queue}/sweep": queue.sweep,
    "/queues/{queue}/bulk": messages.bulk,
    "/queues/{queue}/change": message.change,
    "/queues/{queue}/resend": message.resend,
    "/queues/{queue}/redrive": failures.redrive,
    "/queues/{queue}/discard": failures.delete,
    "/jobs/{id}/stop": failures.stop_job,
    "/system/doctor": system.doctor,
}


def with_dashboard(api: ASGIApp, dashboard: ASGIApp) -> ASGIApp:
    """Both on one port: what belongs to the API goes there, everything else to the pages."""

    def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        mine = scope["type"] == "http" and not f"{scope.get('path', '')}/".startswith(_API_FOLDERS)
        return (dashboard if mine else api)(scope, receive, send)

    return app


def make_dashboard(desk: Desk, hosts: Iterable[str] | None = None) -> ASGIApp:
    """The pages, for browsers that call this server by one of these names; None: by any."""
    pages = _Pages(desk)
    routes = [
        *(Route(path, pages.endpoint(page), methods=["GET"]) for path, page in GET.items()),
        *(Route(path, pages.endpoint(page), methods=["POST"]) for path, page in POST.items()),
        Route("/login", pages.login, methods=["GET", "POST"]),
        Route("/logout", pages.logout, methods=["POST"]),
        Route("/static/{path:path}", _static, methods=["GET"]),
        Route("/favicon.ico", _favicon, methods=["GET"]),
    ]
    app = Starlette(routes=routes, exception_handlers={HTTPException: pages.http_error})
    return _Guard(app, None if hosts is None else frozenset(hosts))


async def _static(request: Request) -> Response:
    name = request.path_params["path"]
    path = (STATIC / name).resolve()
    if not path.is_relative_to(STATIC.resolve()) or not path.is_file():
        raise HTTPException(404)
    versioned = "v" in request.query_params
    return FileResponse(path, headers={"Cache-Control": FOR_EVER if versioned else "no-cache"})


async def _favicon(_: Request) -> Response:
    return FileResponse(Path(STATIC / "icon.svg"), media_type="image/svg+xml")


class _Pages:
    """Makes a page function answer requests: finds out who asks, and turns errors into pages."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._ids = Ids()

    def endpoint(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            made = request.cookies.get(TOKEN, "")
            token = made if len(made) == 32 and made.isalnum() else self._ids.token()
            visit = Visit(self._desk, request, EVERYBODY, token)
            try:
                visitor = await self._desk.access.visitor(_token(request))
                if visitor is None:
                    return _to_login(request)
                visit.visitor = visitor
                answer = await page(visit)
            except ClientDisconnect:
                return Response(status_code=499)
            except Forbidden as error:
                answer = self._error(visit, 403, "You may not do that", str(error))
            except BrigadeError as error:
                status = fault_of(error)[0]
                title = "That did not work" if isinstance(error, ConfigError) else type(error).__name__
                answer = self._error(visit, status, title, str(error))
            except Exception:
                log.exception("page %s failed", request.url.path)
                answer = self._error(visit, 500, "The server failed", "Its log says why.")
            answer.headers.setdefault("Cache-Control", "no-store")
            if made != token:
                _set_cookie(answer, request, TOKEN, token)
            return answer

        return handle

    async def http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        title = "There is no such page" if error.status_code == 404 else "That did not work"
        visit = Visit(self._desk, request, EVERYBODY, "")
        answer = self._error(visit, error.status_code, title, f"{request.method} {request.url.path}")
        answer.headers.update(error.headers or {})
        return answer

    def _error(self, visit: Visit, status: int, title: str, text: str) -> Response:
        if visit.partial:
            html = self._desk.render("error_part.html", title=title, text=text)
            return HTMLResponse(html, status)
        return visit.page("error.html", status=status, title=title, text=text, code=status)

    async def login(self, request: Request) -> Response:
        """Take a token and keep it in a cookie that no script can read and no other site sends."""
        if not self._desk.access.required:
            return RedirectResponse("/", 303)
        wrong = False
        if request.method == "POST":
            body = b""
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_LOGIN:
                    raise HTTPException(413)
            given = dict(parse_qsl(body.decode("utf-8", "replace"))).get("token", "").strip()
            if given and given.isascii() and await self._desk.access.visitor(given) is not None:
                answer: Response = RedirectResponse(_local(request.query_params.get("next", "/")), 303)
                _set_cookie(answer, request, SESSION, given)
                return answer
            wrong = True
        html = self._desk.render("login.html", wrong=wrong)
        return HTMLResponse(html, 401 if wrong else 200, {"Cache-Control": "no-store"})

    async def logout(self, request: Request) -> Response:
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(SESSION, path="/", samesite="strict", httponly=True)
        return answer


def _token(request: Request) -> str | None:
    """The token of a session, or of a program that reads pages."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else request.cookies.get(SESSION)


def _to_login(request: Request) -> Response:
    if request.headers.get("hx-request") == "true" or request.url.path == "/live":
        return Response("sign in again", 401)
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    after = f"?next={quote(wanted, safe='')}" if request.method == "GET" and wanted != "/" else ""
    return RedirectResponse(f"/login{after}", 303)


def _local(path: str) -> str:
    """A path of this server; anything that could lead elsewhere becomes the first page."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and "\\" not in path
    return path if plain else "/"


def _set_cookie(answer: Response, request: Request, name: str, value: str) -> None:
    answer.set_cookie(name, value, path="/", httponly=True, samesite="strict", secure=request.url.scheme == "https")


class _Guard:
    """Lets in only what this server's own pages or a person's browser sends, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                added = [(name.lower().encode(), value.encode()) for name, value in SECURITY.items()]
                message["headers"] = [*message["headers"], *(one for one in added if one[0] not in names)]
            await send(message)

        if scope["type"] == "http":
            reason = self._refused(Request(scope))
            if reason is not None:
                await HTMLResponse(reason, 403, media_type="text/plain")(scope, receive, guarded)
                return
        await self._app(scope, receive, guarded)

    def _refused(self, request: Request) -> str | None:
        headers = request.headers
        host = headers.get("host", "")
        if self._hosts is not None and _hostname(host) not in self._hosts:
            return "the Host header names another machine"
        if request.method in ("GET", "HEAD"):
            return None
        site = headers.get("sec-fetch-site")
        if site is not None and site != "same-origin":
            return "requests from other sites are not taken"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "requests from other sites are not taken"
        return None


def _hostname(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
