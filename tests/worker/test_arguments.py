"""Wrong arguments: a ConfigError that names the field and says what to use; nothing starts."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import worker_handlers

import brigade
from brigade import AsyncContext, ConfigError, Context, Hub, Message, Restart, Worker
from brigade.testing.conformance.bad_input import NAN


def fine(message: Message) -> None: ...


async def fine_async(message: Message) -> None: ...


class Callable:
    def __call__(self, message: Message) -> None: ...

    def method(self, message: Message, context: Context) -> None: ...

    async def async_method(self, message: Message, context: AsyncContext) -> None: ...


class AsyncCallable:
    async def __call__(self, message: Message) -> None: ...


OPTIONS: list[tuple[str, Any]] = [
    *(("concurrency", bad) for bad in (0, -1, 1.5, "8", None, True, 10_001)),
    *(("executor", bad) for bad in ("threads", "", None, 1, "async")),
    *(("execution_timeout", bad) for bad in (0, -1, NAN, "5", True, float("inf"))),
    *(("grace", bad) for bad in (-1, NAN, "5", None, True)),
    *(("prefetch", bad) for bad in (-1, NAN, "2", None)),
    *(("max_prefetch", bad) for bad in (0, -5, "9", None, 2.5)),
    *(("linger", bad) for bad in (-0.1, NAN, "x", None)),
    *(("processed_cache_ttl", bad) for bad in (-1, NAN, "300", None)),
    *(("restart", bad) for bad in (5, "always", {"most": 3}, Restart)),
    *(("worker_id", bad) for bad in ("", 5, "x" * 5000)),
]


@pytest.mark.parametrize("option,value", OPTIONS, ids=lambda value: repr(value)[:30])
def test_a_bad_option_is_named(memory: Hub, option: str, value: Any) -> None:
    names = {"worker_id": "owner|worker_id"}
    with pytest.raises(ConfigError, match=names.get(option, option)):
        Worker(memory.queue("tasks"), fine, **{option: value})


@pytest.mark.parametrize(
    "options,said",
    [
        ({"base": -1}, r"Restart\.base"),
        ({"maximum": NAN}, r"Restart\.maximum"),
        ({"healthy": "x"}, r"Restart\.healthy"),
        ({"base": 5, "maximum": 1}, "less than base"),
        ({"most": 0}, r"Restart\.most"),
        ({"most": "never"}, r"Restart\.most"),
    ],
)
def test_a_bad_restart_policy_is_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Restart(**options)


def generator(message: Message) -> Any:
    yield message


async def async_generator(message: Message) -> Any:
    yield message


HANDLERS: list[tuple[Any, str]] = [
    (None, "function"),
    ("module:function", "function"),
    (17, "function"),
    (Callable, "class"),
    (lambda: None, "must take a message"),
    (lambda message, context, more: None, "must take a message"),
    (lambda message, *, needed: None, "must take a message"),
    (generator, "generator"),
    (async_generator, "generator"),
    ({}, "no handler for queue 'tasks'"),
    ({"other": fine}, "no handler for queue 'tasks'"),
    ({"tasks": None}, "function"),
]


@pytest.mark.parametrize("number", range(len(HANDLERS)))
def test_a_bad_handler_is_refused(memory: Hub, number: int) -> None:
    handler, said = HANDLERS[number]
    with pytest.raises(ConfigError, match=said):
        Worker(memory.queue("tasks"), handler)


def test_bad_queues_are_refused(memory: Hub) -> None:
    queue, other = memory.queue("tasks"), memory.queue("other")
    with brigade.connect("memory://") as elsewhere:
        foreign = elsewhere.queue("foreign")
        table: list[tuple[Any, str]] = [
            (None, "needs a queue"),
            ("tasks", "needs a queue"),
            (b"tasks", "needs a queue"),
            ({queue, other}, "needs a queue"),
            ([], "at least one"),
            ({}, "at least one"),
            (["tasks"], "open it with hub.queue"),
            ({"tasks": 1}, "open it with hub.queue"),
            ({queue: 0}, "weight of queue 'tasks'"),
            ({queue: -1}, "weight of queue 'tasks'"),
            ({queue: 1.5}, "weight of queue 'tasks'"),
            ({queue: True}, "weight of queue 'tasks'"),
            ({queue: 1001}, "weight of queue 'tasks'"),
            ({queue: None}, "weight of queue 'tasks'"),
            ([queue, memory.queue("tasks")], "given twice"),
            ([queue, foreign], "one hub"),
        ]
        for given, said in table:
            with pytest.raises(ConfigError, match=said):
                Worker(given, fine)


def test_handlers_of_both_kinds_in_one_worker_are_refused(memory: Hub) -> None:
    queues = [memory.queue("a"), memory.queue("b")]
    with pytest.raises(ConfigError, match="some handlers are async"):
        Worker(queues, {"a": fine, "b": fine_async})


def test_handlers_of_many_shapes_are_taken(memory: Hub) -> None:
    shapes: list[Any] = [
        fine,
        fine_async,
        Callable(),
        AsyncCallable(),
        Callable().method,
        Callable().async_method,
        partial(worker_handlers.act, attempt=1),
        lambda *args: None,
        lambda message, context: None,
        lambda message, context=None: None,
        lambda message, option=5: None,
        print,
    ]
    queue = memory.queue("tasks")
    for handler in shapes:
        Worker(queue, handler)


@pytest.mark.parametrize("name", ["context", "ctx", "option"])
def test_a_context_goes_to_those_who_ask_for_it(memory: Hub, name: str) -> None:
    """A second argument without a default is the context, and so is one that is called so."""
    from brigade.worker.handlers import Handler

    got: list[Any] = []
    shapes = {
        "context": lambda message, context=None: got.append(context),
        "ctx": lambda message, ctx: got.append(ctx),
        "option": lambda message, option=5: got.append(option),
    }
    Handler(shapes[name])("message", "the context")
    assert got == [5 if name == "option" else "the context"]


def test_a_worker_of_a_closed_hub_says_so() -> None:
    hub = brigade.connect("memory://")
    queue = hub.queue("tasks")
    hub.close()
    before = threading.active_count()
    with pytest.raises(ConfigError, match="not open"):
        Worker(queue, fine).start()
    assert threading.active_count() == before


class Sticky:
    """Can't be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, message: Message) -> None: ...


@pytest.mark.parametrize(
    "handler", [lambda message: None, Sticky(), Sticky().__call__], ids=["lambda", "object", "method"]
)
def test_a_handler_that_cant_go_to_a_process_is_refused(memory: Hub, handler: Any) -> None:
    with pytest.raises(ConfigError, match=r"top of a module, or executor='thread'"):
        Worker(memory.queue("tasks"), handler, executor="process")
