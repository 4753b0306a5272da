"""Traces, with the real OpenTelemetry SDK: the span of an enqueue is the parent of its handler's, anywhere."""

from __future__ import annotations

import asyncio
import json
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import brigade
from brigade.observe import trace
from brigade.observe.otel import OtelTracer
from brigade.tracing import NO_TRACER


class Spans:
    """A provider of its own, and what it made."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = self.provider.get_tracer("test")

    def of(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self._kept.get_finished_spans() if span.kind is kind]

    @property
    def sent(self) -> ReadableSpan:
        (span,) = self.of(SpanKind.PRODUCER)
        return span

    @property
    def handled(self) -> ReadableSpan:
        (span,) = self.of(SpanKind.CONSUMER)
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: Any) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def test_the_enqueue_is_the_parent_of_the_handler(spans: Spans) -> None:
    with brigade.connect("memory://") as hub:
        tracer = trace(hub, spans.provider)
        assert hub.tracer is tracer
        queue = hub.queue("tasks")
        receipt = queue.enqueue({"n": 1}, correlation_id="c-1", attributes={"mine": 1})
        (message,) = queue.claim(owner="worker-a")
        assert message.attributes["mine"] == 1
        with hub.tracer.handling(message, "worker-a") as named:
            assert otel.get_current_span().get_span_context().is_valid
    sent, handled = spans.sent, spans.handled
    assert (sent.name, handled.name) == ("enqueue tasks", "handle tasks")
    assert parent_of(sent) is None
    assert parent_of(handled) == id_of(sent)
    assert handled.parent is not None
    assert handled.parent.is_remote
    assert handled.context.trace_id == sent.context.trace_id
    assert named["traceparent"].split("-")[2] == f"{id_of(handled):016x}"
    assert dict(sent.attributes or {}) == {
        "messaging.system": "brigade",
        "messaging.destination.name": "tasks",
        "messaging.operation.type": "send",
        "messaging.operation.name": "enqueue",
    }
    assert dict(handled.attributes or {}) == {
        "messaging.system": "brigade",
        "messaging.destination.name": "tasks",
        "messaging.operation.type": "process",
        "messaging.operation.name": "handle",
        "messaging.message.id": receipt.id,
        "messaging.message.conversation_id": "c-1",
        "messaging.message.body.size": 7,
        "messaging.client.id": "worker-a",
        "brigade.message.attempt": 1,
        "brigade.message.max_attempts": 4,
        "brigade.lease.version": 1,
    }
    assert handled.status.status_code is StatusCode.UNSET


def test_a_sync_enqueue_is_below_the_span_of_its_caller(spans: Spans) -> None:
    """The hub works on a thread of its own, in the context of whoever called."""
    with brigade.connect("memory://") as hub:
        trace(hub, spans.provider)
        queue = hub.queue("tasks")
        callers: dict[int, int] = {}

        def call(number: int) -> None:
            with spans.tracer.start_as_current_span(f"caller {number}") as span:
                queue.enqueue(number)
                callers[id_of(span)] = number

        threads = [threading.Thread(target=call, args=(n,)) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(filter(None, map(parent_of, spans.of(SpanKind.PRODUCER)))) == sorted(callers)


async def test_an_async_enqueue_is_below_the_span_of_its_caller(spans: Spans) -> None:
    async with brigade.connect_async("memory://") as hub:
        trace(hub, spans.provider)
        queue = await hub.queue("tasks")

        async def call(number: int) -> int:
            with spans.tracer.start_as_current_span(f"caller {number}") as span:
                await queue.enqueue(number)
                return id_of(span)

        callers = await asyncio.gather(*map(call, range(5)))
        assert otel.get_current_span().get_span_context().is_valid is False
    assert {parent_of(span) for span in spans.of(SpanKind.PRODUCER)} == set(callers)


def test_a_batch_is_one_span(spans: Spans) -> None:
    with brigade.connect("memory://") as hub:
        trace(hub, spans.provider)
        queue = hub.queue("tasks")
        queue.enqueue_many(["a", "b", "c"])
        carried = {message.attributes["traceparent"] for message in queue.claim(limit=3)}
    assert (spans.sent.attributes or {})["messaging.batch.message_count"] == 3
    assert len(carried) == 1


def test_each_attempt_is_a_child_of_the_enqueue(spans: Spans) -> None:
    with brigade.connect("memory://") as hub:
        trace(hub, spans.provider)
        queue = hub.queue("tasks")
        queue.enqueue("x")
        for _ in range(3):
            (message,) = queue.claim()
            with hub.tracer.handling(message, "w"):
                queue.nack(message, delay=0)
    attempts = spans.of(SpanKind.CONSUMER)
    assert [parent_of(span) for span in attempts] == [id_of(spans.sent)] * 3
    assert [(span.attributes or {})["brigade.message.attempt"] for span in attempts] == [1, 2, 3]


def test_what_a_handler_enqueues_continues_the_trace(spans: Spans) -> None:
    with brigade.connect("memory://") as hub:
        trace(hub, spans.provider)
        queue, after = hub.queue("tasks"), hub.queue("after")
        queue.enqueue("x")
        with hub.tracer.handling(queue.claim()[0], "w"):
            after.enqueue("y")
    first, second = spans.of(SpanKind.PRODUCER)
    assert parent_of(second) == id_of(spans.handled)
    assert first.context.trace_id == second.context.trace_id


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "error, told",
    [
        (ValueError("no good"), "ValueError: no good"),
        (asyncio.CancelledError(), "CancelledError: "),
        (Speechless(), "Speechless"),
    ],
)
def test_an_error_is_recorded_and_goes_on(spans: Spans, error: BaseException, told: str) -> None:
    with brigade.connect("memory://") as hub:
        trace(hub, spans.provider)
        queue = hub.queue("tasks")
        queue.enqueue("x")
        (message,) = queue.claim()
        with pytest.raises(type(error)) as caught, hub.tracer.handling(message, "w"):
            raise error
    assert caught.value is error
    assert (spans.handled.status.status_code, spans.handled.status.description) == (StatusCode.ERROR, told)
    if not isinstance(error, Speechless):
        assert [event.name for event in spans.handled.events] == ["exception"]


def test_a_failed_enqueue_is_recorded(spans: Spans) -> None:
    with brigade.connect("memory://") as hub:
        trace(hub, spans.provider)
        queue = hub.queue("tasks")
        queue.delete()
        with pytest.raises(brigade.QueueNotFound):
            queue.enqueue("x")
    assert spans.sent.status.status_code is StatusCode.ERROR


def test_snoozing_is_no_error(spans: Spans) -> None:
    with brigade.connect("memory://") as hub:
        trace(hub, spans.provider)
        queue = hub.queue("tasks")
        queue.enqueue("x")
        (message,) = queue.claim()
        with pytest.raises(brigade.Snooze), hub.tracer.handling(message, "w"):
            raise brigade.Snooze(1)
    assert spans.handled.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"traceparent": "nonsense"},
        {"traceparent": 7, "tracestate": ["x"]},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        {"traceparent": "00-" + "1" * 32 + "-" + "1" * 16 + "-01", "tracestate": "a=" + "x" * 10_000},
    ],
)
def test_a_message_with_no_or_bad_context_is_handled_all_the_same(spans: Spans, attributes: dict[str, Any]) -> None:
    with brigade.connect("memory://") as hub:
        queue = hub.queue("tasks")
        queue.enqueue("x", attributes=attributes)
        trace(hub, spans.provider)
        with spans.tracer.start_as_current_span("unrelated"), hub.tracer.handling(queue.claim()[0], "w"):
            pass
    assert spans.handled.status.status_code is StatusCode.UNSET
    assert parent_of(spans.handled) in (None, 0x1111111111111111)


def test_without_a_provider_messages_carry_nothing() -> None:
    with brigade.connect("memory://") as hub:
        trace(hub)
        queue = hub.queue("tasks")
        queue.enqueue("x")
        assert queue.claim()[0].attributes == {}


def test_tracing_ends(spans: Spans) -> None:
    with brigade.connect("memory://") as hub:
        trace(hub, spans.provider)
        hub.tracer = NO_TRACER
        hub.queue("tasks").enqueue("x")
    assert spans.of(SpanKind.PRODUCER) == []


def test_a_twin_traces_too(spans: Spans) -> None:
    hub = brigade.AsyncHub("memory://")
    tracer = trace(hub, spans.provider)
    assert hub.twin().tracer is tracer


def test_a_pickled_tracer_uses_the_global_provider(spans: Spans) -> None:
    copy = pickle.loads(pickle.dumps(OtelTracer(spans.provider)))
    with copy.sending("tasks", 1) as named:
        assert named == {}
    assert spans.of(SpanKind.PRODUCER) == []


CONSUMER = """
import json, pickle, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import brigade

kept, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(kept))
trace.set_tracer_provider(provider)
tracer = pickle.loads(bytes.fromhex(sys.argv[2]))
with brigade.connect(sys.argv[1]) as hub:
    queue = hub.queue("tasks")
    (message,) = queue.claim()
    with tracer.handling(message, "elsewhere"):
        queue.ack(message)
(span,) = kept.get_finished_spans()
print(json.dumps([span.kind.name, f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}"]))
"""


def test_the_trace_goes_on_in_another_process(spans: Spans, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with brigade.connect(url) as hub:
        tracer = trace(hub, spans.provider)
        hub.queue("tasks").enqueue("x")
    done = subprocess.run(
        [sys.executable, "-c", CONSUMER, url, pickle.dumps(tracer).hex()], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    context = spans.sent.get_span_context()
    assert context is not None
    assert json.loads(done.stdout) == ["CONSUMER", f"{context.trace_id:032x}", f"{context.span_id:016x}"]


def handle(message: brigade.Message) -> None:
    assert otel.get_current_span().get_span_context().is_valid
    if message.data == "bad":
        raise ValueError("no good")


async def handle_async(message: brigade.Message) -> None:
    handle(message)


@pytest.mark.parametrize("handler", [handle, handle_async])
def test_a_worker_makes_the_spans(spans: Spans, handler: Any) -> None:
    with brigade.connect("memory://") as hub:
        trace(hub, spans.provider)
        queue = hub.queue("tasks")
        queue.enqueue_many(["good", "bad"], max_attempts=1)
        brigade.Worker(queue, handler, concurrency=2).run(until_empty=True)
    handled = spans.of(SpanKind.CONSUMER)
    assert {parent_of(span) for span in handled} == {id_of(spans.sent)}
    assert sorted(span.status.status_code.name for span in handled) == ["ERROR", "UNSET"]


TRACED = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

trace.set_tracer_provider(TracerProvider())


def handle(message):
    span = trace.get_current_span()
    return f"{span.kind.name} {span.parent.span_id:016x}"
"""


def test_a_worker_makes_the_spans_in_its_processes(
    spans: Spans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "traced_handler.py").write_text(TRACED)
    monkeypatch.syspath_prepend(tmp_path)
    results: list[str] = []
    with brigade.connect(f"file://{tmp_path}/store") as hub:
        trace(hub, spans.provider)
        hub.on("message-completed", lambda event: results.append(event.fields["result"]))
        queue = hub.queue("tasks")
        queue.enqueue("x")
        handler = pickle.loads(b"ctraced_handler\nhandle\n.")
        brigade.Worker(queue, handler, concurrency=1, executor="process").run(until_empty=True)
    assert results == [f"CONSUMER {id_of(spans.sent):016x}"]
