"""A queue's policy: validated, immutable, stored beside its messages as JSON."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeVar, cast

import msgspec

from brigade.errors import ConfigError
from brigade.names import check_queue_name

__all__ = ["INLINE_LIMIT", "Backoff", "Failure", "QueuePolicy", "decode_policy", "encode_policy"]

INLINE_LIMIT = 256 * 1024
"""Payloads up to this size sit in their segment; larger ones get a blob of their own."""

MAX_SECONDS = 10 * 365 * 24 * 3600.0
T = TypeVar("T")


def _explains_fields(cls: type[T]) -> type[T]:
    """Turn Python's TypeError for an unknown or missing field into a ConfigError that lists the fields."""
    init = cast("Callable[..., None]", cls.__init__)
    known = ", ".join(f.name for f in fields(cast(Any, cls)))

    @functools.wraps(init)
    def checked(self: T, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError as error:
            what = str(error).split("__init__() ")[-1]
            raise ConfigError(f"{cls.__name__}: {what}; its fields are {known}") from None

    cls.__init__ = checked
    return cls


def _number(owner: str, name: str, value: object, *, low: float, high: float = MAX_SECONDS) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{owner}.{name} must be a number of seconds, not {value!r}")
    if not low <= value <= high:
        raise ConfigError(f"{owner}.{name} is {value!r}; use a value from {low:g} to {high:g}")


def _whole(owner: str, name: str, value: object, *, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{owner}.{name} must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise ConfigError(f"{owner}.{name} is {value!r}; use a value from {low} to {high}")


@_explains_fields
@dataclass(frozen=True, slots=True)
class Failure:
    """What becomes of a message that fails: `retry`, `dead-letter` at once, or `hybrid`: retry, then dead-letter."""

    mode: Literal["retry", "dead-letter", "hybrid"] = "retry"
    max_retries: int = 3
    dead_letter_queue: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("retry", "dead-letter", "hybrid"):
            raise ConfigError(f"Failure.mode is {self.mode!r}; use 'retry', 'dead-letter' or 'hybrid'")
        _whole("Failure", "max_retries", self.max_retries, low=0, high=60_000)
        if self.mode == "retry":
            if self.dead_letter_queue is not None:
                raise ConfigError(
                    "Failure.dead_letter_queue is set but mode is 'retry'; use mode 'hybrid' to have both"
                )
        elif self.dead_letter_queue is None:
            raise ConfigError(f"Failure.dead_letter_queue is missing; mode {self.mode!r} needs the name of a queue")
        else:
            check_queue_name(self.dead_letter_queue, what="Failure.dead_letter_queue")

    @property
    def max_attempts(self) -> int:
        """How often a message is handed out before it fails for good."""
        return 1 if self.mode == "dead-letter" else self.max_retries + 1


@_explains_fields
@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait before a retry: `base * 2**retry`, at most `maximum`, with full jitter unless `jitter` is None."""

    base: float = 0.5
    maximum: float = 30.0
    jitter: Literal["full"] | None = "full"

    def __post_init__(self) -> None:
        _number("Backoff", "base", self.base, low=0)
        _number("Backoff", "maximum", self.maximum, low=0)
        if self.jitter not in ("full", None):
            raise ConfigError(f"Backoff.jitter is {self.jitter!r}; use 'full' or None")

    def delay(self, retry: int, uniform: Callable[[float, float], float]) -> float:
        """Seconds to wait before retry number `retry`, counted from 0."""
        ceiling = min(self.base * 2.0 ** min(retry, 60), self.maximum)
        return uniform(0.0, ceiling) if self.jitter == "full" else ceiling


@_explains_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """The stored configuration of a queue. All durations are in seconds."""

    ordering: Literal["fifo", "lifo"] = "fifo"
    ordering_guarantee: bool = False
    visibility_timeout: float = 30.0
    execution_timeout: float | None = None
    failure: Failure = field(default_factory=Failure)
    backoff: Backoff = field(default_factory=Backoff)
    ttl: float | None = None
    retention: float = 7 * 24 * 3600.0
    max_payload: int = 1024**3
    segment_messages: int = 1000
    segment_bytes: int = 4 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.ordering not in ("fifo", "lifo"):
            raise ConfigError(f"QueuePolicy.ordering is {self.ordering!r}; use 'fifo' or 'lifo'")
        if not isinstance(cast(object, self.ordering_guarantee), bool):
            raise ConfigError(f"QueuePolicy.ordering_guarantee must be True or False, not {self.ordering_guarantee!r}")
        if not isinstance(cast(object, self.failure), Failure):
            raise ConfigError(f"QueuePolicy.failure must be a Failure(...), not {self.failure!r}")
        if not isinstance(cast(object, self.backoff), Backoff):
            raise ConfigError(f"QueuePolicy.backoff must be a Backoff(...), not {self.backoff!r}")
        _number("QueuePolicy", "visibility_timeout", self.visibility_timeout, low=0.001)
        _number("QueuePolicy", "retention", self.retention, low=0)
        for name, value in (("execution_timeout", self.execution_timeout), ("ttl", self.ttl)):
            if value is not None:
                _number("QueuePolicy", name, value, low=0.001)
        _whole("QueuePolicy", "max_payload", self.max_payload, low=1, high=1024**4)
        _whole("QueuePolicy", "segment_messages", self.segment_messages, low=1, high=10_000)
        _whole("QueuePolicy", "segment_bytes", self.segment_bytes, low=INLINE_LIMIT, high=64 * 1024 * 1024)

    def differences(self, other: QueuePolicy) -> list[str]:
        """The names of the fields in which the two differ."""
        mine, theirs = asdict(self), asdict(other)
        return [name for name in mine if mine[name] != theirs[name]]


def encode_policy(policy: QueuePolicy) -> dict[str, Any]:
    """The policy as plain JSON values."""
    return asdict(policy)


def decode_policy(value: object, *, source: str) -> QueuePolicy:
    """A policy from plain JSON values; an unknown field or a bad value is a ConfigError that names it."""
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: a policy is a JSON object, not {type(value).__name__}")
    given = dict(cast("dict[str, Any]", value))
    try:
        for name, kind in (("failure", Failure), ("backoff", Backoff)):
            if isinstance(given.get(name), dict):
                given[name] = kind(**given[name])
        return msgspec.convert(QueuePolicy(**given), QueuePolicy)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
