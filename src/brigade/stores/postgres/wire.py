"""Between rows and what users hold: references, messages, and text that PostgreSQL cannot keep as it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from brigade.machine import State
from brigade.model import FailedMessage, FailureInfo, Grant, Lease, Message, MessageInfo
from brigade.stores.postgres.steps import Row, Rows

__all__ = [
    "delivered",
    "ended_info",
    "failed_message",
    "grants_of",
    "kept",
    "live_info",
    "owned",
    "parse_ref",
    "place_of",
    "plain",
    "ref_of",
    "story",
    "told_id",
]

_MARK = "\ue000"
_failure = msgspec.json.Decoder(FailureInfo)


def kept(text: str) -> str:
    """Text as PostgreSQL can keep it: it has no place for NUL."""
    if "\0" not in text and _MARK not in text:
        return text
    return text.replace(_MARK, f"{_MARK}1").replace("\0", f"{_MARK}0")


def plain(text: str) -> str:
    """Kept text as it was."""
    return text if _MARK not in text else text.replace(f"{_MARK}0", "\0").replace(f"{_MARK}1", _MARK)


def _maybe(text: str | None) -> str | None:
    return None if text is None else plain(text)


def ref_of(queue_id: int, id: int) -> str:
    """A message's reference, which is its id unless its user gave it one."""
    return f"{queue_id}-{id}"


def told_id(queue_id: int, id: int, own_id: str | None) -> str:
    """The id by which a message is known."""
    return ref_of(queue_id, id) if own_id is None else plain(own_id)


def parse_ref(ref: str, queue_id: int) -> int | None:
    """The number of a message of that queue; None where the reference is none of its own."""
    prefix, _, number = ref.partition("-")
    if prefix != str(queue_id) or not number.isascii() or not number.isdigit() or not 1 <= len(number) <= 18:
        return None
    return int(number)


def story(text: str | None) -> FailureInfo | None:
    """Why and where a message failed."""
    if text is None:
        return None
    info = _failure.decode(text)
    if info.own_id is not None and _MARK in info.own_id:
        return msgspec.structs.replace(info, id=plain(info.id), own_id=plain(info.own_id))
    return info


def _value(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def in_order(rows: Rows, *, lifo: bool) -> Rows:
    """Delivered rows in the order of the queue: by priority, due time and id."""
    if lifo:
        return sorted(rows, key=lambda row: (row[1], -row[2], -row[0]))
    return sorted(rows, key=lambda row: (row[1], row[2], row[0]))


def delivered(queue: str, queue_id: int, token: str, rows: Rows, *, lifo: bool) -> list[Message]:
    """Claimed messages, each with its lease."""
    messages: list[Message] = []
    nothing: dict[str, Any] = {}
    for row in in_order(rows, lifo=lifo):
        (
            id,
            priority,
            _,
            enqueued_at,
            attempts,
            limit,
            version,
            size,
            checksum,
            content_type,
            correlation,
            own_id,
            group,
            attributes,
            failure,
            payload,
            claimed_at,
            expires_at,
            owner,
            _,
        ) = row
        ref = f"{queue_id}-{id}"
        name = ref if own_id is None else plain(own_id)
        messages.append(
            Message(
                name,
                queue,
                payload,
                content_type,
                size,
                priority,
                attempts,
                limit,
                correlation or name,
                nothing if attributes is None else msgspec.json.decode(attributes),
                None if group is None else plain(group),
                enqueued_at,
                Lease(f"{token}.{id}", version, plain(owner), expires_at),
                None if failure is None else story(failure),
                ref,
                claimed_at,
                checksum,
            )
        )
    return messages


def place_of(message: Message) -> int:
    """The number of a message in its table."""
    return int(message.ref.rpartition("-")[2])


def owned(message: Message, token: str, owner: str) -> Message:
    """A claimed message whose lease went on to another owner."""
    return msgspec.structs.replace(
        message, lease=msgspec.structs.replace(message.lease, token=f"{token}.{place_of(message)}", owner=owner)
    )


def grants_of(queue: str, queue_id: int, token: str, messages: Sequence[Message], recovered: set[int]) -> list[Grant]:
    """What a claim returns: plain data, one grant for the messages whose leases have the same version."""
    by_version: dict[int, list[Message]] = {}
    for message in messages:
        by_version.setdefault(message.lease.version, []).append(message)
    grants: list[Grant] = []
    for version, members in by_version.items():
        first = members[0]
        ids = [place_of(message) for message in members]
        grants.append(
            Grant(
                queue,
                str(queue_id),
                token,
                version,
                first.lease.owner,
                min(message.lease.expires_at_ms for message in members),
                tuple(ids),
                tuple(message.attempt for message in members),
                tuple(message.max_attempts for message in members),
                tuple(id for id in ids if id in recovered) if recovered else (),
                first.claimed_at_ms,
            )
        )
    return grants


def live_info(queue: str, queue_id: int, row: Row) -> MessageInfo:
    """A live message, as `get` and `peek` show it."""
    (
        id,
        state,
        priority,
        attempts,
        limit,
        enqueued_at,
        due_at,
        correlation,
        own_id,
        attributes,
        group,
        content_type,
        size,
        payload,
        owner,
        version,
        expires_at,
        failure,
        error,
        checksum,
        _,
    ) = row
    name = told_id(queue_id, id, own_id)
    leased = state == State.IN_FLIGHT.value
    return MessageInfo(
        id=name,
        queue=queue,
        state=State(state),
        priority=priority,
        attempts=attempts,
        max_attempts=limit,
        enqueued_at_ms=enqueued_at,
        due_at_ms=max(due_at, enqueued_at),
        correlation_id=correlation or name,
        attributes=_value(attributes) or {},
        group=_maybe(group),
        content_type=content_type,
        size=size,
        ref=ref_of(queue_id, id),
        body=payload,
        owner=plain(owner) if leased else None,
        lease_version=version if leased else 0,
        lease_expires_at_ms=expires_at,
        error=error,
        failure=story(failure),
        checksum=checksum,
    )


def ended_info(queue: str, queue_id: int, row: Row) -> MessageInfo:
    """A message in history."""
    (
        id,
        priority,
        attempts,
        limit,
        enqueued_at,
        due_at,
        correlation,
        own_id,
        attributes,
        group,
        content_type,
        size,
        outcome,
        finished_at,
        error,
        reason,
        result,
        failure,
        _,
    ) = row
    name = told_id(queue_id, id, own_id)
    return MessageInfo(
        id=name,
        queue=queue,
        state=State.SUCCEEDED if outcome == "processed" else State.FAILED,
        priority=priority,
        attempts=attempts,
        max_attempts=limit,
        enqueued_at_ms=enqueued_at,
        due_at_ms=due_at,
        correlation_id=correlation or name,
        attributes=_value(attributes) or {},
        group=_maybe(group),
        content_type=content_type,
        size=size,
        ref=ref_of(queue_id, id),
        outcome=outcome,
        finished_at_ms=finished_at,
        error=error or reason,
        result=_value(result),
        failure=story(failure),
    )


def failed_message(queue: str, row: Row) -> FailedMessage:
    """A parked failure."""
    _, payload, content_type, size, priority, correlation, _, attributes, group, failure = row
    info = story(failure)
    assert info is not None
    return FailedMessage(
        id=info.id,
        queue=queue,
        body=payload,
        content_type=content_type,
        size=size,
        priority=priority,
        correlation_id=correlation or info.id,
        attributes=_value(attributes) or {},
        group=_maybe(group),
        failure=info,
    )


def split_ids(ids: Iterable[str], queue_id: int) -> tuple[list[int], list[str]]:
    """Ids that users give, as numbers of this queue's messages and as ids of their own."""
    given = list(ids)
    numbers = [number for one in given if (number := parse_ref(one, queue_id)) is not None]
    return numbers, [kept(one) for one in given]
