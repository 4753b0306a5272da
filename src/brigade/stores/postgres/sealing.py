"""Sealed rows: contents of messages are sealed before they go into a statement, and opened after they come out.

A value carries the place that it was sealed for: the message that it was enqueued with. The database moves dead
letters and redriven messages without the key, so those keep the place of the message they once were; all others must
be at home.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from brigade.codec import SEALED
from brigade.crypto.places import place_of
from brigade.errors import CannotDecrypt
from brigade.model import FailedMessage, FailureInfo, Message, MessageInfo
from brigade.stores import Block
from brigade.stores.postgres.enqueue import Draft
from brigade.stores.postgres.settle import Change

if TYPE_CHECKING:
    from brigade.crypto.fields import Fields

__all__ = [
    "SEALED_TEXT",
    "Opened",
    "open_block",
    "open_failed",
    "open_info",
    "open_messages",
    "open_state",
    "seal_change",
    "seal_drafts",
]

T = TypeVar("T", Message, MessageInfo, FailedMessage)
_json = msgspec.json.Encoder()
SEALED_TEXT = "sealed:Q"
"""How a sealed text starts: its mark, then base64 of the magic."""


class Opened(NamedTuple):
    """Messages that could be opened, and those that could not."""

    messages: list[Message]
    refused: list[tuple[Message, CannotDecrypt]]


def seal_drafts(fields: Fields, queue: str, queue_id: int, drafts: Sequence[Draft], ids: Sequence[int]) -> list[Draft]:
    """Drafts as they are written: one data key for the batch."""
    key, sealed = fields.vault.data_key(), list[Draft]()
    for draft, id in zip(drafts, ids, strict=True):
        ref, payload, message = f"{queue_id}-{id}", draft.payload, draft.message
        if payload is not None:
            payload = key.seal(payload, place_of("payload", queue, ref), carry=True)
        if message.attributes is not None:
            text: Any = fields.seal_json(message.attributes, place_of("attributes", queue, ref), key)
            message = replace(message, attributes=text)
        sealed.append(replace(draft, payload=payload, message=message))
    return sealed


def seal_change(fields: Fields, queue: str, change: Change) -> Change:
    """A settlement as it is written: its error and its result are contents too."""
    ref = change.message.ref
    if change.error is not None:
        return replace(change, error=fields.seal_text(change.error, place_of("error", queue, ref)))
    if change.result is not None:
        text = fields.seal_text(change.result, place_of("result", queue, ref))
        return replace(change, result=_json.encode(text).decode())
    return change


def open_messages(fields: Fields | None, messages: list[Message], moved: AbstractSet[str]) -> Opened:
    """Claimed messages with their contents; `moved` are the refs of those that the database has moved."""
    if fields is None and not any(map(_is_sealed, messages)):
        return Opened(messages, [])
    opened = Opened([], [])
    for message in messages:
        try:
            opened.messages.append(_open(fields, message, message.ref, message.ref in moved))
        except CannotDecrypt as error:
            opened.refused.append((message, error))
    return opened


def open_info(fields: Fields | None, info: MessageInfo, moved: bool) -> MessageInfo:
    """A message without a lease, with its contents."""
    found = _open(fields, info, info.ref, moved)
    if found.error is not None and found.error.startswith(SEALED_TEXT):
        place = place_of("error", info.queue, info.ref)
        found = replace(found, error=_needed(fields, info.ref).open_text(found.error, place))
    if isinstance(found.result, str) and found.result.startswith(SEALED_TEXT):
        place = place_of("result", info.queue, info.ref)
        found = replace(found, result=_needed(fields, info.ref).open_json(found.result, place))
    return found


def open_failed(fields: Fields | None, message: FailedMessage) -> FailedMessage:
    """A parked failure with its contents."""
    return _open(fields, message, message.id, True)


def open_block(fields: Fields | None, queue: str, block: Block) -> Block:
    """Rows of a table with their contents. They are only looked at, so each may carry any place of its kind."""
    columns = dict(block.columns)

    def change(name: str, open_one: Callable[[Any, str, int], Any]) -> None:
        values = columns.get(name)
        if isinstance(values, list):
            refs = _refs(columns, block.count)
            columns[name] = [
                one if one is None else open_one(one, ref, place)
                for place, (one, ref) in enumerate(zip(values, refs, strict=True))
            ]

    def open_text(text: Any, ref: str, _: int, kind: str = "error") -> Any:
        if not isinstance(text, str) or not text.lstrip('"').startswith(SEALED_TEXT):
            return text
        known = _needed(fields, ref)
        if text.startswith('"'):
            return known.open_text(msgspec.json.decode(text), place_of(kind, queue, ref), moved=True)
        return known.open_text(text, place_of(kind, queue, ref), moved=True)

    def open_payload(body: bytes, ref: str, place: int) -> bytes:
        sizes = columns["size"]
        if not isinstance(sizes, list) or len(body) == sizes[place]:
            return body
        return _needed(fields, ref).open_bytes(body, place_of("payload", queue, ref), moved=True)

    def open_attributes(value: Any, ref: str, _: int) -> Any:
        if not isinstance(value, str):
            return value
        return _needed(fields, ref).open_json(value, place_of("attributes", queue, ref), moved=True)

    def open_attempts(attempts: Any, ref: str, place: int) -> Any:
        if isinstance(attempts, int):
            return attempts
        return [replace(one, error=open_text(one.error, ref, place)) if one.error else one for one in attempts]

    def open_story(story: FailureInfo, ref: str, _: int) -> FailureInfo:
        if story.error is None or not story.error.startswith(SEALED_TEXT):
            return story
        return _told(_needed(fields, ref).open_text, story)

    change("payload", open_payload)
    change("attributes", open_attributes)
    change("error", open_text)
    change("result", lambda text, ref, place: open_text(text, ref, place, "result"))
    change("attempts", open_attempts)
    change("failure", open_story)
    change("origin", open_story)
    return Block(block.count, columns)


def _refs(columns: Mapping[str, Any], count: int) -> list[str]:
    for name in ("ref", "id"):
        if isinstance(columns.get(name), list):
            return columns[name]
    return [""] * count


def open_state(fields: Fields | None, queue: str, ref: str, value: bytes) -> bytes:
    """A workflow state. It moves along with its message, so it may carry another place."""
    if value[:2] != SEALED:
        return value
    return _needed(fields, ref).open_bytes(value, place_of("state", queue, ref), moved=True)


def _is_sealed(message: Message | MessageInfo | FailedMessage) -> bool:
    body = message.body
    return (body is not None and len(body) != message.size) or isinstance(message.attributes, str)


def _open(fields: Fields | None, message: T, ref: str, moved: bool) -> T:
    story, queue, body = message.failure, message.queue, message.body
    if fields is None:
        if _is_sealed(message) or (story is not None and (story.error or "").startswith(SEALED_TEXT)):
            _needed(fields, ref)
        return message
    changes: dict[str, Any] = {}
    if body is not None:
        place = place_of("payload", queue, ref)
        if len(body) != message.size:
            changes["body"] = fields.open_bytes(body, place, moved=moved)
        else:
            fields.check_clear(place)
    attributes: Any = message.attributes
    if attributes:
        changes["attributes"] = fields.open_json(attributes, place_of("attributes", queue, ref), moved=moved)
    if story is not None and story.error is not None:
        changes["failure"] = _told(fields.open_text, story)
    return replace(message, **changes) if changes else message


def _told(open_text: Callable[..., str], story: FailureInfo) -> FailureInfo:
    return replace(story, error=open_text(story.error, place_of("error", story.queue, story.id), moved=True))


def _needed(fields: Fields | None, ref: str) -> Fields:
    if fields is None:
        raise CannotDecrypt(
            f"message {ref} is sealed, and encryption is off here; connect with encryption= and the keys of this "
            "store, nothing was changed"
        )
    return fields
