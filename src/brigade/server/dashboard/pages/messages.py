"""The messages of a queue: filtered, page by page; and what is done to many of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.responses import HTMLResponse, Response

from brigade.errors import ConfigError
from brigade.model import MessageInfo
from brigade.operator import MOST_AT_ONCE, Operator, Shown, shown_state
from brigade.queue import AsyncQueue
from brigade.server.dashboard.confirm import confirm
from brigade.server.dashboard.render import preview
from brigade.server.dashboard.visit import Form, Visit, queue_path

__all__ = ["act", "bulk", "messages"]

PAGE = 50
STATES: tuple[Shown, ...] = ("all", "ready", "delayed", "in_flight")
ACTIONS = ("release", "retry", "delete")


@dataclass(frozen=True, slots=True)
class Filter:
    """What of a queue is shown."""

    state: Shown = "all"
    age: int = 0
    attempts: int = 0
    text: str = ""

    @classmethod
    def of(cls, fields: dict[str, str]) -> Filter:
        wanted = fields.get("state", "all")
        state = STATES[[*STATES].index(wanted)] if wanted in STATES else "all"
        numbers = {
            name: int(given) if (given := fields.get(name, "").strip()).isdecimal() and len(given) < 10 else 0
            for name in ("age", "attempts")
        }
        return cls(state, numbers["age"], numbers["attempts"], fields.get("text", "")[:200])

    @property
    def active(self) -> bool:
        return self != Filter()

    def query(self) -> dict[str, Any]:
        return {"state": self.state, "age": self.age, "attempts": self.attempts, "text": self.text}

    def options(self, visit: Visit, queue: AsyncQueue) -> dict[str, Any]:
        """For `Operator.browse`. Text is looked for in what is shown, not in what is hidden."""
        options: dict[str, Any] = {"state": self.state, "older_than": float(self.age * 60), "attempts": self.attempts}
        if self.text and visit.desk.redaction:
            wanted = self.text.lower()

            def match(info: MessageInfo) -> bool:
                return wanted in _searched(visit, queue.name, info)

            options["match"] = match
        elif self.text:
            options["text"] = self.text
        return options


def _searched(visit: Visit, queue: str, info: MessageInfo) -> str:
    names = f"{info.id} {info.correlation_id} {info.group or ''} {info.owner or ''}"
    return f"{names} {shown_payload(visit, queue, info, 100_000)}".lower()


@dataclass(frozen=True, slots=True)
class Row:
    """A message in the table."""

    info: MessageInfo
    state: str
    payload: str


def shown_payload(visit: Visit, queue: str, info: Any, most: int = 120) -> str:
    """A payload in one line, as the visitor may see it."""
    if info.body is None:
        return "(stored apart)"
    try:
        value = info.data
    except ValueError:
        value = info.body
    return preview(visit.desk.redaction(value, queue=queue, kind="payload"), most)


async def messages(visit: Visit) -> Response:
    queue, operator = await visit.operator()
    chosen = Filter.of(dict(visit.request.query_params))
    after = visit.query("after") or None
    page = await operator.browse(**chosen.options(visit, queue), limit=PAGE, after=after)
    now = visit.now
    rows = [Row(info, shown_state(info, now), shown_payload(visit, queue.name, info)) for info in page.messages]
    values: dict[str, Any] = {
        "queue": queue,
        "rows": rows,
        "page": page,
        "filter": chosen,
        "states": STATES,
        "next": page.after and queue_path(queue.name, "messages", **chosen.query(), after=page.after),
        "first": after is None,
        "most": MOST_AT_ONCE,
    }
    if visit.partial:
        html = visit.desk.render(
            "messages_part.html", visitor=visit.visitor, csrf=visit.token, now=now, queue_path=queue_path, **values
        )
        return HTMLResponse(html)
    return visit.page("messages.html", **values)


async def bulk(visit: Visit) -> Response:
    """Release, retry or delete what was chosen, or everything that the filter shows, up to a cap."""
    queue, operator = await visit.operator("admin")
    form = await visit.form()
    action = form.get("action")
    if action not in ACTIONS:
        raise ConfigError(f"action is {action!r}; use release, retry or delete")
    chosen = Filter.of(dict(form.fields))
    ids, more = await _ids(visit, queue, operator, form, chosen)
    back = queue_path(queue.name, "messages", **chosen.query())
    if not ids:
        raise ConfigError("no message was chosen; tick some, or act on all that the filter shows")
    asked = confirm(
        visit,
        form,
        title=f"{action.capitalize()} {_messages(len(ids))}?",
        text=_consequence(action) + (f" Only the first {MOST_AT_ONCE:,} are taken at a time." if more else ""),
        button=action.capitalize(),
        cancel=back,
    )
    if asked is not None:
        return asked
    count = await act(visit, queue, operator, action, ids)
    return visit.back(back, action, count)


async def _ids(
    visit: Visit, queue: AsyncQueue, operator: Operator, form: Form, chosen: Filter
) -> tuple[list[str], bool]:
    if form.get("everything") != "yes":
        given = form.all("id")
        return given[:MOST_AT_ONCE], len(given) > MOST_AT_ONCE
    page = await operator.browse(**chosen.options(visit, queue), limit=MOST_AT_ONCE)
    return [info.ref for info in page.messages], page.after is not None


async def act(visit: Visit, queue: AsyncQueue, operator: Operator, action: str, ids: list[str]) -> int:
    """Carry out an action on messages; returns to how many it was done."""
    work = {"release": operator.take_back, "retry": operator.retry_now, "delete": operator.discard}[action]
    count = await work(ids)
    if action != "delete":
        visit.desk.service.dispatcher.news(queue.name)
    visit.desk.watch.hurry(queue.name)
    return count


def _messages(number: int) -> str:
    return "1 message" if number == 1 else f"{number:,} messages"


def _consequence(action: str) -> str:
    return {
        "release": "Messages in flight are taken from whoever holds them and wait again. Work that is under way may be "
        "done twice. Others are left alone.",
        "retry": "Messages that wait for a retry are due at once. Others are left alone.",
        "delete": "Messages that wait are dropped. What is in flight stays. It cannot be undone.",
    }[action]
