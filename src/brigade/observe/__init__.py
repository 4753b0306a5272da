"""Seeing what a hub does: log lines as JSON, Prometheus metrics, OpenTelemetry traces.

Events are logged by the logger `brigade.events` with no help from here. Metrics and traces need a library each,
which is imported when they are asked for: `bucket-brigade[metrics]` and `bucket-brigade[tracing]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from brigade.errors import ConfigError
from brigade.hub import AsyncHub
from brigade.observe.logs import JsonFormatter
from brigade.sync import Hub

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from brigade.observe.otel import OtelTracer
    from brigade.observe.prometheus import Metrics

__all__ = ["JsonFormatter", "metrics", "trace"]


def metrics(
    hub: Hub | AsyncHub,
    registry: CollectorRegistry | None = None,
    *,
    depth: bool | Iterable[str] = False,
    depth_every: float = 30.0,
) -> Metrics:
    """Count what the hub does in Prometheus metrics, until `close()` of what is returned.

    `depth` also tells how many messages each queue holds, for the queues named or, with True, for all. That
    costs storage requests, so it is measured at most every `depth_every` seconds, when somebody scrapes.
    """
    try:
        from brigade.observe.prometheus import Metrics
    except ModuleNotFoundError as error:
        raise _missing(error, "prometheus_client", "metrics") from error
    return Metrics(_async_hub(hub), registry, depth=depth, depth_every=depth_every)


def trace(hub: Hub | AsyncHub, tracer_provider: TracerProvider | None = None) -> OtelTracer:
    """Make spans of enqueues and handlers: the span of an enqueue is the parent of its handlers' spans.

    Without a provider it is OpenTelemetry's global one. Call it before workers start. `hub.tracer = NO_TRACER`
    (of `brigade.tracing`) ends it.
    """
    try:
        from brigade.observe.otel import OtelTracer
    except ModuleNotFoundError as error:
        raise _missing(error, "opentelemetry", "tracing") from error
    tracer = OtelTracer(tracer_provider)
    _async_hub(hub).tracer = tracer
    return tracer


def _async_hub(hub: Hub | AsyncHub) -> AsyncHub:
    if isinstance(hub, AsyncHub):
        return hub
    if isinstance(hub, Hub):  # pyright: ignore[reportUnnecessaryIsInstance]
        return hub._async  # pyright: ignore[reportPrivateUsage]
    raise ConfigError(f"observe a Hub or an AsyncHub, not {type(hub).__name__}")


def _missing(error: ModuleNotFoundError, library: str, extra: str) -> ConfigError:
    if (error.name or "").partition(".")[0] != library:
        raise error
    return ConfigError(f"{extra} need {error.name}, which is not installed: pip install 'bucket-brigade[{extra}]'")
