"""One request to the dashboard: who sent it, what is in it, and the way back as a page."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from brigade.errors import ConfigError
from brigade.operator import Operator
from brigade.queue import AsyncQueue
from brigade.server.dashboard.access import Forbidden, Visitor

if TYPE_CHECKING:
    from brigade.server.dashboard.desk import Desk

__all__ = ["Form", "Visit", "queue_path"]

MOST_FORM = 4 * 1024 * 1024
MOST_FIELDS = 5000

DONE = {
    "paused": "The queue is paused: nothing is handed out until you resume it.",
    "resumed": "The queue hands messages out again.",
    "purged": "{n} messages were dropped.",
    "release": "{n} messages were taken back from their holders and wait again.",
    "retry": "{n} messages are due now.",
    "delete": "{n} messages were deleted.",
    "redrive": "{n} messages were brought back.",
    "resent": "A copy was enqueued.",
    "swept": "The sweep is done: {n} leftovers were tidied up.",
    "doctor": "The examination is under way; its report appears below.",
}
"""What a page says after something was done, by a word that may stand in an address."""


def queue_path(queue: str, *more: str, **query: Any) -> str:
    """The address of a queue's page, or of one below it."""
    path = "/".join(("/queues", quote(queue, safe=""), *more))
    given = {name: value for name, value in query.items() if value not in (None, "", 0)}
    return f"{path}?{urlencode(given)}" if given else path


class Form:
    """The fields of a form, and the address it was sent from."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self.fields = fields

    def get(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.fields if key == name), default)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]

    def without(self, *names: str) -> list[tuple[str, str]]:
        return [(key, value) for key, value in self.fields if key not in names]


class Visit:
    """A request by a visitor who is known."""

    def __init__(self, desk: Desk, request: Request, visitor: Visitor, token: str) -> None:
        self.desk = desk
        self.request = request
        self.visitor = visitor
        self.token = token

    @property
    def now(self) -> int:
        return self.desk.hub.clock.now()

    def query(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def number(self, name: str, default: int = 0, *, most: int = 1_000_000_000) -> int:
        given = self.query(name).strip()
        return min(int(given), most) if given.isascii() and given.isdigit() and len(given) < 12 else default

    @property
    def partial(self) -> bool:
        """Whether htmx asks for a part of a page."""
        return self.request.headers.get("hx-request") == "true"

    async def queue(self, verb: str = "read") -> AsyncQueue:
        """The queue in the address, if the visitor may do that to it."""
        name = self.request.path_params["queue"]
        self.visitor.need(verb, name)
        return await self.desk.service.queue(name)

    async def operator(self, verb: str = "read") -> tuple[AsyncQueue, Operator]:
        queue = await self.queue(verb)
        return queue, Operator(queue)

    async def form(self) -> Form:
        """The form that was sent, checked to come from one of our own pages."""
        body = b""
        async for chunk in self.request.stream():
            body += chunk
            if len(body) > MOST_FORM:
                raise ConfigError(f"the form has more than {MOST_FORM} bytes; choose fewer messages at a time")
        text = body.decode("utf-8", "replace")
        form = Form(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
        if not hmac.compare_digest(form.get("csrf").encode(), self.token.encode()):
            raise Forbidden("the form is not from this page, or the page is too old; load it again")
        return form

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """A whole page."""
        done = DONE.get(self.query("done"))
        desk = self.desk
        html = desk.render(
            template,
            visit=self,
            visitor=self.visitor,
            csrf=self.token,
            now=self.now,
            notice=done.format(n=f"{self.number('n'):,}") if done else None,
            jobs=desk.jobs.shown(self.visitor),
            watch=desk.watch,
            store=desk.shown_url,
            login=desk.access.required,
            queue_path=queue_path,
            path=self.request.url.path,
            **values,
        )
        return HTMLResponse(html, status)

    def back(self, path: str, done: str | None = None, n: int | None = None) -> Response:
        """To another page after something was done there. The path is one of our own."""
        if done is not None:
            joint = "&" if "?" in path else "?"
            path += joint + urlencode({"done": done} | ({"n": n} if n is not None else {}))
        return RedirectResponse(path, 303)
