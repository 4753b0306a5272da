"""`/metrics`: what the hub, the dispatcher and the endpoints have done, for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from brigade import observe
from brigade.errors import ConfigError
from brigade.server.answers import Answer
from brigade.server.call import Call
from brigade.server.service import Service

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["count_from_now", "metrics"]

TEXT = "text/plain; version=0.0.4; charset=utf-8"


async def metrics(service: Service, call: Call, wanted: None) -> Answer:
    """Everything in Prometheus' text format. How many messages are where is counted every 30 seconds at most."""
    if service.registry is None:
        raise ConfigError(
            "metrics need prometheus-client, which the server doesn't have: install bucket-brigade[server]"
        )
    from prometheus_client import generate_latest

    text = await asyncio.to_thread(generate_latest, service.registry)
    return Answer(200, text, {"Content-Type": TEXT})


def count_from_now(service: Service) -> None:
    """Start counting, where the library is there."""
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.registry import Collector
    except ModuleNotFoundError:
        return

    class Own(Collector):
        def collect(self) -> Iterator[Metric]:
            return _collect(service)

    service.registry = CollectorRegistry()
    observe.metrics(service.hub, service.registry, depth=True)
    service.registry.register(Own())


def _collect(service: Service) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    dispatcher = service.dispatcher
    yield GaugeMetricFamily("brigade_server_consumers", "Consumers that wait or stream", dispatcher.consumers)
    yield GaugeMetricFamily("brigade_server_consumers_limit", "Consumers that may", dispatcher.most_consumers)
    waiting = GaugeMetricFamily("brigade_server_waiting", "Consumers in line", labels=["queue"])
    for queue, count in sorted(dispatcher.waiting().items())[:500]:
        waiting.add_metric([queue], count)
    yield waiting
    yield GaugeMetricFamily("brigade_server_subscriptions", "Streams of messages", len(service.subscriptions))
    yield GaugeMetricFamily("brigade_server_watchers", "Streams of events", len(service.feed))
    yield CounterMetricFamily("brigade_server_claims", "Claims made for all who waited", dispatcher.claims)
    yield CounterMetricFamily("brigade_server_handed_out", "Messages given to consumers", dispatcher.handed_out)
    yield CounterMetricFamily("brigade_server_given_back", "Messages that nobody got", dispatcher.given_back)
    requests = CounterMetricFamily("brigade_http_requests", "Requests", labels=["method", "path", "status"])
    for (method, path, status), count in sorted(service.traffic.items()):
        requests.add_metric([method, path, str(status)], count)
    yield requests
    seconds = CounterMetricFamily("brigade_http_seconds", "Time in requests, waiting included", labels=["path"])
    for path, spent in sorted(service.spent.items()):
        seconds.add_metric([path], spent)
    yield seconds
