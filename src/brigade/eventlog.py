"""Events as log lines: the logger `brigade.events`, one line an event. Nothing is made that the logger won't take.

It has a level of its own, so that a program which logs at INFO is not flooded: only what needs a look is told until
somebody sets another one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["LONGEST", "level_of", "log_event", "logfmt", "logged", "shown"]

log = logging.getLogger("brigade.events")
log.addHandler(logging.NullHandler())
if log.level == logging.NOTSET:
    log.setLevel(logging.WARNING)

LONGEST = 500
"""Characters of a value that are shown; the rest is cut."""

_LEVELS = {
    "message-claimed": logging.DEBUG,
    "message-processing": logging.DEBUG,
    "message-dead": logging.WARNING,
    "lease-lost": logging.WARNING,
}
_FIRST = ("correlation_id", "attempt", "max_attempts", "worker_id")
_BARE = re.compile(r"[A-Za-z0-9_./:@+-]+")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_encode = msgspec.json.Encoder(enc_hook=repr).encode


def level_of(name: str) -> int:
    """The level that an event is logged at."""
    return _LEVELS.get(name, logging.INFO)


def logged(name: str) -> bool:
    """Whether the logger takes events of this name now."""
    return log.isEnabledFor(level_of(name))


def log_event(name: str, queue: str, message_id: str | None, fields: Mapping[str, Any]) -> None:
    """Log one event; its parts are also in `record.brigade`, as values that JSON can hold."""
    parts: dict[str, Any] = {"event": name, "queue": queue, "id": message_id}
    parts.update((key, fields.get(key)) for key in _FIRST)
    parts.update(fields)
    parts = {key: shown(value) for key, value in parts.items() if value is not None}
    log.log(level_of(name), "%s", _Line(parts), extra={"brigade": parts})


def shown(value: Any) -> Any:
    """A value fit for a log: text is cut, and what is not small JSON becomes text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return value if len(value) <= LONGEST else _cut(value)
    try:
        text = _encode(value).decode()
    except Exception:
        return f"<{type(value).__name__}>"
    return msgspec.json.decode(text) if len(text) <= LONGEST else _cut(text)


def logfmt(parts: Mapping[str, Any]) -> str:
    """`key=value` pairs on one line, whatever the values hold."""
    return " ".join(f"{key}={_word(value)}" for key, value in parts.items())


class _Line:
    """Made into text only by a handler that wants it."""

    __slots__ = ("_parts",)

    def __init__(self, parts: dict[str, Any]) -> None:
        self._parts = parts

    def __str__(self) -> str:
        return logfmt(self._parts)

    __repr__ = __str__


def _word(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    text = value if isinstance(value, str) else _encode(value).decode()
    if _BARE.fullmatch(text):
        return text
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _cut(text: str) -> str:
    return f"{text[: LONGEST - 1]}…"
