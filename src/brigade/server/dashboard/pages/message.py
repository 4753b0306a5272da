"""One message: payload, attempts, state and result; retry, release, delete, edit and resend."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from brigade.errors import BrigadeError, ConfigError, MessageNotFound
from brigade.model import JSON_TYPE, FailedMessage, Message, MessageInfo
from brigade.operator import shown_state
from brigade.queue import AsyncQueue
from brigade.server.dashboard.confirm import confirm
from brigade.server.dashboard.pages.messages import ACTIONS, act
from brigade.server.dashboard.render import SHOWN, pretty
from brigade.server.dashboard.visit import Visit, queue_path

__all__ = ["change", "message", "resend"]

MOST_PARKED = 2000


async def _parked(queue: AsyncQueue, info: MessageInfo) -> FailedMessage | None:
    """The copy of a message that failed, with its payload."""
    if info.outcome != "failed":
        return None
    return next((one for one in await queue.failed(MOST_PARKED) if one.id == info.id), None)


async def _body(visit: Visit, info: MessageInfo) -> tuple[Any, str | None]:
    """The payload, and why there is none, or not all of it."""
    if info.body is not None:
        try:
            return info.data, None
        except ValueError:
            return info.body, "It is not what its content type says."
    if info.finished_at_ms is not None:
        return None, "Payloads of messages that have ended are not kept."
    if visit.desk.redaction:
        return None, "It is stored apart, and too large for the redaction function."
    held = replace(Message.held(queue=info.queue, id=info.id, ref=info.ref, token=""), size=info.size)
    start = b""
    try:
        async for chunk in visit.desk.hub.store.open_payload(held):
            start += chunk
            if len(start) > SHOWN:
                break
    except BrigadeError as error:
        return None, f"It is stored apart and cannot be read: {error}"
    return start, f"It is stored apart; the first {SHOWN // 1024} KiB are shown."


async def message(visit: Visit) -> Response:
    queue, operator = await visit.operator()
    id = visit.query("id")
    story = await operator.story(id)
    info = story.message
    parked = await _parked(queue, info)
    if parked is not None:
        info = replace(info, body=parked.body)
    value, remark = await _body(visit, info)
    redact = visit.desk.redaction
    shown = redact(value, queue=queue.name, kind="payload")
    text, cut = pretty(shown) if value is not None or remark is None else ("", False)
    editable = info.body is not None and shown == value and not cut and _is_text(info)
    try:
        state = await queue.state(info).load()
    except BrigadeError:
        state = None
    return visit.page(
        "message.html",
        queue=queue,
        info=info,
        state=shown_state(info, visit.now),
        attempts=[replace(one, error=redact(one.error, queue=queue.name, kind="error")) for one in story.attempts],
        payload=text,
        cut=cut,
        remark=remark,
        editable=text if editable else None,
        resendable=info.body is not None,
        parked=parked is not None,
        attributes=pretty(redact(dict(info.attributes), queue=queue.name, kind="attributes"))[0]
        if info.attributes
        else None,
        workflow=pretty(redact(state, queue=queue.name, kind="state"))[0] if state is not None else None,
        result=pretty(redact(info.result, queue=queue.name, kind="result"))[0] if info.result is not None else None,
        error=redact(info.error or (info.failure and info.failure.error), queue=queue.name, kind="error"),
    )


def _is_text(info: MessageInfo) -> bool:
    return info.content_type == JSON_TYPE or info.content_type.startswith("text/")


async def change(visit: Visit) -> Response:
    """Retry, release or delete this message."""
    queue, operator = await visit.operator("admin")
    form = await visit.form()
    action, id = form.get("action"), form.get("id")
    if action not in ACTIONS:
        raise ConfigError(f"action is {action!r}; use release, retry or delete")
    here = queue_path(queue.name, "message", id=id)
    if action == "delete":
        asked = confirm(
            visit,
            form,
            title="Delete this message?",
            text=f"Message {id} of queue {queue.name} is dropped. It cannot be undone.",
            button="Delete",
            cancel=here,
        )
        if asked is not None:
            return asked
    count = await act(visit, queue, operator, action, [id])
    return visit.back(queue_path(queue.name) if action == "delete" and count else here, action, count)


async def resend(visit: Visit) -> Response:
    """Enqueue a copy, changed or as it is. The first one stays unless it is to go."""
    queue, operator = await visit.operator("enqueue")
    form = await visit.form()
    info = (await operator.story(form.get("id"))).message
    parked = await _parked(queue, info)
    body = parked.body if parked is not None else info.body
    if "payload" in dict(form.fields):
        payload: Any = _edited(info, form.get("payload"))
    elif body is not None:
        payload = body
    else:
        raise MessageNotFound("the payload of this message is not kept; enqueue it anew")
    priority = form.get("priority", str(info.priority))
    if not priority.isdecimal() or int(priority) > 9:
        raise ConfigError(f"priority is {priority!r}; use 0, the most urgent, to 9")
    receipt = await queue.enqueue(
        payload,
        priority=int(priority),
        group=info.group,
        attributes=dict(info.attributes),
        correlation_id=info.correlation_id,
        content_type=info.content_type,
    )
    if form.get("replace") == "yes":
        visit.visitor.need("admin", queue.name)
        await operator.discard([info.id])
    visit.desk.service.dispatcher.news(queue.name)
    visit.desk.watch.hurry(queue.name)
    return visit.back(queue_path(queue.name, "message", id=receipt.id), "resent")


def _edited(info: MessageInfo, text: str) -> bytes:
    """What was typed, as bytes of the message's content type."""
    plain = text.replace("\r\n", "\n")
    if info.content_type == JSON_TYPE:
        try:
            return msgspec.json.encode(msgspec.json.decode(plain))
        except msgspec.DecodeError as error:
            raise ConfigError(f"the payload is not valid JSON: {error}; go back and correct it") from None
    return plain.encode()
