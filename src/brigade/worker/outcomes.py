"""What a handler's end means for its message: the exceptions that steer it, and the settlement that follows."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import msgspec

from brigade.checks import as_json, error_text
from brigade.checks import seconds as check_seconds
from brigade.errors import ConfigError
from brigade.model import Ack, Message, Nack, Release, Settlement

__all__ = [
    "DONE",
    "Failed",
    "Outcome",
    "Reject",
    "Retry",
    "Returned",
    "Snooze",
    "Snoozed",
    "outcome_of_error",
    "outcome_of_result",
    "settlement",
]

log = logging.getLogger("brigade.worker")
SHOWN = 500


class Retry(Exception):
    """Raise it in a handler: the attempt failed, try again, after `delay` seconds instead of the policy's backoff."""

    def __init__(self, reason: str = "the handler asked for a retry", *, delay: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = None if delay is None else check_seconds(delay, "Retry.delay")

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (Retry, (self.reason,), {"delay": self.delay})


class Reject(Exception):
    """Raise it in a handler: the message can never be processed; it fails now, whatever retries are left."""

    def __init__(self, reason: str = "the handler rejected the message") -> None:
        super().__init__(reason)
        self.reason = reason


class Snooze(Exception):
    """Raise it in a handler: not now. The message comes back after `seconds`, and no attempt is counted."""

    def __init__(self, seconds: float) -> None:
        self.seconds = check_seconds(seconds, "Snooze.seconds")
        super().__init__(self.seconds)


def _remake(cls: type[Exception], args: tuple[Any, ...], options: dict[str, Any]) -> Exception:
    return cls(*args, **options)


class Returned(msgspec.Struct, frozen=True, gc=False):
    """The handler returned; `result` is kept in history."""

    result: Any = None


DONE = Returned()
"""Most handlers return nothing."""


class Failed(msgspec.Struct, frozen=True):
    """The handler failed, or was ended."""

    error: str
    delay: float | None = None
    reject: bool = False


class Snoozed(msgspec.Struct, frozen=True):
    """Give the message back; no attempt is counted."""

    seconds: float = 0.0


Outcome = Returned | Failed | Snoozed


def outcome_of_error(error: BaseException) -> Outcome:
    """What an exception from a handler means. It never raises, whatever the exception's own methods do."""
    try:
        if isinstance(error, Snooze):
            return Snoozed(check_seconds(error.seconds, "Snooze.seconds"))
        if isinstance(error, Reject):
            return Failed(error_text(str(error.reason)) or "", reject=True)
        if isinstance(error, Retry):
            return Failed(error_text(str(error.reason)) or "", delay=error.delay)
        return Failed(error_text(f"{type(error).__name__}: {error}") or "")
    except BaseException:
        return Failed(type(error).__name__, reject=isinstance(error, Reject))


def outcome_of_result(message: Message, result: Any) -> Outcome:
    """What a handler's return value means, as plain JSON values. It never raises."""
    if result is None:
        return DONE
    if inspect.isgenerator(result) or inspect.isasyncgen(result) or inspect.isawaitable(result):
        return Failed(f"the handler returned a {type(result).__name__}, so its work was not done; return a value")
    try:
        return Returned(msgspec.json.decode(as_json(result, "the result")))
    except ConfigError as error:
        log.error("message %s of queue %s is done, but %s; its text is kept", message.id, message.queue, error)
    except BaseException as error:
        log.error("message %s of queue %s is done, but its result can't be read: %r", message.id, message.queue, error)
    try:
        return Returned({"text": error_text(repr(result)[:SHOWN])})
    except BaseException:
        return Returned({"text": f"<{type(result).__name__}>"})


def settlement(message: Message, outcome: Outcome) -> Settlement:
    """How to settle a message."""
    if outcome is DONE:
        return Ack(message)
    match outcome:
        case Returned(result):
            return Ack(message, result)
        case Failed(error, delay, reject):
            return Nack(message, error=error, delay=delay, reject=reject)
        case Snoozed(wait):
            return Release(message, wait)
