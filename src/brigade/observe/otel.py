"""Traces by OpenTelemetry. A message carries the span of its enqueue, as W3C trace context, to whoever handles it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider, get_tracer, use_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from brigade._version import __version__
from brigade.model import Message
from brigade.worker import Snooze

__all__ = ["OtelTracer"]

_W3C = TraceContextTextMapPropagator()
_CARRIED = ("traceparent", "tracestate")
_LONGEST_STATE = 512


class OtelTracer:
    """Makes spans with the attributes of OpenTelemetry's conventions for messaging.

    It may be pickled, for handlers in other processes. A provider is tied to its process, so the copy uses the
    global provider of the process that it wakes up in: set that where the handler's module is imported.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer: Tracer = get_tracer("brigade", __version__, provider)

    def __reduce__(self) -> tuple[type[OtelTracer], tuple[()]]:
        return OtelTracer, ()

    @contextmanager
    def sending(self, queue: str, count: int) -> Generator[Mapping[str, Any]]:
        """A producer's span below the caller's; yields what names it, for messages to carry."""
        attributes: dict[str, Any] = {**_about(queue, "send"), "messaging.operation.name": "enqueue"}
        if count != 1:
            attributes["messaging.batch.message_count"] = count
        span = self._tracer.start_span(f"enqueue {queue}", kind=SpanKind.PRODUCER, attributes=attributes)
        with _current(span) as named:
            yield named

    @contextmanager
    def handling(self, message: Message, worker_id: str) -> Generator[Mapping[str, Any]]:
        """A consumer's span below the enqueue's, current while the handler runs; yields what names it."""
        attributes: dict[str, Any] = {
            **_about(message.queue, "process"),
            "messaging.operation.name": "handle",
            "messaging.message.id": message.id,
            "messaging.message.conversation_id": message.correlation_id,
            "messaging.message.body.size": message.size,
            "messaging.client.id": worker_id,
            "brigade.message.attempt": message.attempt,
            "brigade.message.max_attempts": message.max_attempts,
            "brigade.lease.version": message.lease.version,
        }
        span = self._tracer.start_span(
            f"handle {message.queue}",
            context=_sent_in(message),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
        )
        with _current(span) as named:
            yield named


def _about(queue: str, kind: str) -> dict[str, Any]:
    return {"messaging.system": "brigade", "messaging.destination.name": queue, "messaging.operation.type": kind}


def _sent_in(message: Message) -> Context:
    """The context that a message was enqueued in; an empty one, which begins a trace, where it carries none."""
    carried = {name: value for name in _CARRIED if isinstance(value := message.attributes.get(name), str)}
    if len(carried.get("tracestate", "")) > _LONGEST_STATE:
        del carried["tracestate"]
    return _W3C.extract(carried, Context())


@contextmanager
def _current(span: Span) -> Generator[Mapping[str, Any]]:
    """The span as the current one; ends it, as failed where an error passes through."""
    with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        named: dict[str, str] = {}
        _W3C.inject(named)
        try:
            yield named
        except (Exception, asyncio.CancelledError) as error:
            if not isinstance(error, Snooze):
                _record(span, error)
            raise


def _record(span: Span, error: BaseException) -> None:
    """Note what went wrong. An error whose text cannot be had is noted by its type."""
    span.set_status(Status(StatusCode.ERROR, type(error).__name__))
    with suppress(Exception):
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
