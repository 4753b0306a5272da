"""Arguments that users give to verbs: each checked here once, with an error that names it and says what to use."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

import msgspec

from brigade.errors import ConfigError
from brigade.policy import MAX_SECONDS

__all__ = ["as_json", "check_ids", "check_limit", "error_text", "seconds"]

ERROR_LIMIT = 4096
DEEPEST = 100


def seconds(value: object, what: str, *, low: float = 0.0) -> float:
    """A duration."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{what} must be a number of seconds, not {value!r}")
    if not low <= value <= MAX_SECONDS:
        raise ConfigError(f"{what} is {value!r}; use a value from {low:g} to {MAX_SECONDS:g}")
    return float(value)


def check_limit(value: object, most: int, what: str = "limit") -> int:
    """How many, at the most."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{what} is {value!r}; use a whole number from 1 to {most}")
    return value


def check_ids(ids: object) -> frozenset[str] | None:
    """Message ids, or None for all."""
    if ids is None:
        return None
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
        raise ConfigError(f"ids must be a list of message ids, not {ids!r}; put a single one in a list")
    given = list(cast("Iterable[object]", ids))
    for one in given:
        if not isinstance(one, str):
            raise ConfigError(f"ids must be strings; {one!r} is not")
    return frozenset(cast("list[str]", given))


def as_json(value: Any, what: str) -> bytes:
    """A value as JSON, if it is one, and not so deep that a reader with less room could not read it."""
    try:
        encoded = msgspec.json.encode(value)
        plain = msgspec.json.decode(encoded)
        msgspec.msgpack.encode(plain)
        if encoded.count(b"[") + encoded.count(b"{") > DEEPEST and _depth(plain) > DEEPEST:
            raise RecursionError
    except RecursionError:
        raise ConfigError(f"{what} is nested too deeply to be stored as JSON; flatten it") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{what} cannot be stored as JSON: {error}; use plain JSON values") from None
    return encoded


def _depth(value: Any) -> int:
    """How many lists and dicts are inside one another."""
    depth, level = 0, [value]
    while level:
        depth += 1
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner.extend(cast("dict[str, Any]", one).values())
            elif isinstance(one, list):
                inner.extend(cast("list[Any]", one))
        level = inner
    return depth


def error_text(error: object) -> str | None:
    """An error as text that can be stored, cut to 4 KiB."""
    if error is None:
        return None
    if isinstance(error, BaseException):
        error = f"{type(error).__name__}: {error}"
    if not isinstance(error, str):
        raise ConfigError(f"error must be text or an exception, not {type(error).__name__}")
    return error[:ERROR_LIMIT].encode("utf-8", "backslashreplace").decode()[:ERROR_LIMIT]
