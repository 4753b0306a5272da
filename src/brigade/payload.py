"""What users put in: any value, bytes, text, a file or an iterator, checked and made ready for a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, cast

import msgspec

from brigade.checks import as_json, seconds
from brigade.errors import ConfigError
from brigade.model import JSON_TYPE, TEXT_TYPE
from brigade.names import check_group, check_own_id
from brigade.policy import INLINE_LIMIT
from brigade.stores import Outgoing

__all__ = ["NewMessage", "outgoing", "outgoing_many"]

BINARY_TYPE = "application/octet-stream"
STREAM_CHUNK = 256 * 1024
_json = msgspec.json.Encoder()


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A payload with options of its own, for `enqueue_many`."""

    payload: Any
    priority: int = 5
    delay: float = 0.0
    id: str | None = None
    group: str | None = None
    ttl: float | None = None
    max_attempts: int | None = None
    attributes: dict[str, Any] | None = None
    correlation_id: str | None = None
    content_type: str | None = None


def outgoing(message: NewMessage) -> Outgoing:
    """A checked message. Nothing is read from a stream yet."""
    priority: Any = message.priority
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 9:
        raise ConfigError(f"priority is {priority!r}; use a whole number from 0 (most urgent) to 9 (least)")
    limit = message.max_attempts
    if limit is not None and (
        isinstance(limit, bool) or not isinstance(cast(object, limit), int) or not 1 <= limit <= 60_000
    ):
        raise ConfigError(f"max_attempts is {limit!r}; use a whole number from 1 to 60000, or None for the policy's")
    payload, content_type = _payload(message.payload)
    return Outgoing(
        payload,
        _content_type(message.content_type) or content_type,
        priority,
        seconds(message.delay, "delay"),
        None if message.id is None else check_own_id(message.id),
        None if message.group is None else check_group(message.group),
        None if message.ttl is None else seconds(message.ttl, "ttl", low=0.001),
        limit,
        _attributes(message.attributes),
        None if message.correlation_id is None else _correlation(message.correlation_id),
    )


def outgoing_many(items: Iterable[Any], common: NewMessage) -> list[Outgoing]:
    """Checked messages: a `NewMessage` brings its own options, anything else is a payload with the common ones."""
    if isinstance(items, str | bytes | bytearray | dict) or not isinstance(cast(object, items), Iterable):
        raise ConfigError(
            f"payloads must be a list of payloads, not {type(cast(object, items)).__name__}; "
            "for one message use enqueue()"
        )
    shared = outgoing(common)
    made: list[Outgoing] = []
    for item in items:
        if isinstance(item, NewMessage):
            made.append(outgoing(item))
            continue
        payload, content_type = _payload(item)
        made.append(
            Outgoing(
                payload,
                common.content_type or content_type,
                shared.priority,
                shared.delay,
                None,
                shared.group,
                shared.ttl,
                shared.max_attempts,
                shared.attributes,
                shared.correlation_id,
            )
        )
    return made


def _content_type(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= 255 or not value.isprintable():
        raise ConfigError(f"content_type is {value!r}; use a media type such as 'application/json'")
    return value


def _correlation(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 256 or not value.isprintable():
        raise ConfigError(f"correlation_id is {value!r}; use 1 to 256 printable characters")
    return value


def _attributes(value: object) -> dict[str, Any] | None:
    if not value:
        return None
    if not isinstance(value, dict):
        raise ConfigError(f"attributes must be a dict, not {type(value).__name__}")
    encoded = as_json(value, "attributes")
    if len(encoded) > 64 * 1024:
        raise ConfigError(
            f"attributes take {len(encoded)} bytes; keep them under 64 KiB and put the rest in the payload"
        )
    return msgspec.json.decode(encoded)


def _payload(value: Any) -> tuple[bytes | AsyncIterator[bytes], str]:
    if isinstance(value, bytes):
        return value if len(value) <= INLINE_LIMIT else _pieces(value), BINARY_TYPE
    if isinstance(value, (dict, list)):
        return _encoded(value), JSON_TYPE
    if isinstance(value, str):
        try:
            return _sized(value.encode()), TEXT_TYPE
        except UnicodeEncodeError:
            raise ConfigError("the payload is not valid Unicode text; encode it to bytes first") from None
    if isinstance(value, bytearray | memoryview):
        return _sized(bytes(cast(bytearray, value))), BINARY_TYPE
    if hasattr(value, "read"):
        return _from_file(value), BINARY_TYPE
    if hasattr(value, "__anext__"):
        return _checked(value), BINARY_TYPE
    if hasattr(value, "__next__"):
        return _from_iterator(value), BINARY_TYPE
    return _encoded(value), JSON_TYPE


def _encoded(value: Any) -> bytes | AsyncIterator[bytes]:
    try:
        return _sized(_json.encode(value))
    except (TypeError, ValueError, msgspec.EncodeError) as error:
        raise ConfigError(
            f"the payload cannot be stored as JSON: {error}; "
            "pass bytes, text, a file, an iterator of bytes, or plain JSON values"
        ) from None
    except RecursionError:
        raise ConfigError("the payload is nested too deeply for JSON; flatten it, or pass bytes") from None


def _sized(payload: bytes) -> bytes | AsyncIterator[bytes]:
    return payload if len(payload) <= INLINE_LIMIT else _pieces(payload)


async def _pieces(payload: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(payload), STREAM_CHUNK):
        yield payload[start : start + STREAM_CHUNK]


async def _from_file(file: Any) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while True:
        chunk = await loop.run_in_executor(None, file.read, STREAM_CHUNK)
        if asyncio.iscoroutine(chunk):
            chunk = await chunk
        if not chunk:
            return
        yield _bytes(chunk)


async def _from_iterator(iterator: Iterator[Any]) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    end = object()
    while (chunk := await loop.run_in_executor(None, next, iterator, end)) is not end:
        yield _bytes(chunk)


async def _checked(chunks: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        yield _bytes(chunk)


def _bytes(chunk: object) -> bytes:
    if isinstance(chunk, str):
        return chunk.encode()
    if isinstance(chunk, bytes | bytearray | memoryview):
        return bytes(cast(bytes, chunk))
    raise ConfigError(f"a payload stream must give bytes, not {type(chunk).__name__}")
