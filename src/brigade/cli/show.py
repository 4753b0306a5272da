"""Messages as people and machines read them: one as a list of facts, many as lines of a table."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from brigade.cli.common import console, table, when
from brigade.cli.text import cell, short
from brigade.model import FailedMessage, FailureInfo, MessageInfo

__all__ = ["data_of", "facts", "failure_facts", "print_facts", "short_payload"]


def facts(info: MessageInfo) -> dict[str, Any]:
    """The message as JSON values. Bytes are given as base64."""
    return {
        "id": info.id,
        "queue": info.queue,
        "state": info.state.value,
        "outcome": info.outcome,
        "priority": info.priority,
        "attempts": info.attempts,
        "max_attempts": info.max_attempts,
        "enqueued_at": when(info.enqueued_at),
        "due_at": when(info.due_at),
        "finished_at": when(info.finished_at),
        "owner": info.owner,
        "lease_version": info.lease_version or None,
        "correlation_id": info.correlation_id,
        "group": info.group,
        "attributes": dict(info.attributes),
        "content_type": info.content_type,
        "size": info.size,
        "data": data_of(info),
        "error": info.error,
        "result": info.result,
        "failure": None if info.failure is None else failure_facts(info.failure),
    }


def failure_facts(failure: FailureInfo) -> dict[str, Any]:
    return {
        "queue": failure.queue,
        "id": failure.id,
        "reason": failure.reason,
        "error": failure.error,
        "attempts": failure.attempts,
        "failed_at": when(failure.failed_at),
        "enqueued_at": when(failure.enqueued_at),
    }


def data_of(info: MessageInfo | FailedMessage) -> Any:
    """The payload's value. One that is not what its content type says is given as bytes, that is, as base64."""
    try:
        value = info.data
    except (ValueError, msgspec.DecodeError):
        value = info.body
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def short_payload(info: MessageInfo | FailedMessage) -> str:
    """The beginning of the payload, on one line."""
    if info.body is None:
        return short(f"({info.size:,} bytes, {info.content_type})")
    value = data_of(info)
    return short(value if isinstance(value, str) else msgspec.json.encode(value).decode())


def print_facts(known: dict[str, Any]) -> None:
    """Facts one below the other; what there is none of is left out."""
    shown = table("", "")
    shown.show_header = False
    for name, value in known.items():
        if value is not None and value != {}:
            shown.add_row(name, cell(value))
    console().print(shown)
