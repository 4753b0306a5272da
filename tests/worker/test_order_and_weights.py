"""Strict order with many slots, and several queues in one worker by weight."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from worker_support import AT_ONCE, ended, until

from brigade import Failure, Hub, Message, QueuePolicy, Retry, Snooze, Worker

STRICT = QueuePolicy(ordering_guarantee=True, backoff=AT_ONCE, failure=Failure("retry", 1000))
LOOSE = QueuePolicy(backoff=AT_ONCE, failure=Failure("retry", 1000))


class Ledger:
    """Notes what runs, and that no two run at once where they must not."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Counter[Any] = Counter()
        self.done: list[Any] = []
        self.overlaps: list[Any] = []

    def __call__(self, message: Message) -> None:
        line = message.group
        with self._lock:
            self._running[line] += 1
            if self._running[line] > 1:
                self.overlaps.append(message.data)
        try:
            self._work(message)
        finally:
            with self._lock:
                self._running[line] -= 1

    def _work(self, message: Message) -> None:
        """Every third fails once, every seventh asks for a retry, every eleventh sleeps on it."""
        number = message.data
        if message.attempt == 1:
            if number % 3 == 0:
                raise ValueError("once")
            if number % 7 == 0:
                raise Retry(delay=0.05)
        if number % 11 == 0 and ("snoozed", number) not in self.done:
            self.done.append(("snoozed", number))
            raise Snooze(0.05)
        with self._lock:
            self.done.append(number)

    def order(self) -> list[int]:
        return [one for one in self.done if not isinstance(one, tuple)]


@pytest.mark.parametrize("executor", ["thread", "async"])
def test_a_strict_queue_stays_in_order_over_retries_with_eight_slots(memory: Hub, executor: str) -> None:
    """[G6] Retries and snoozes hold up the line; nobody overtakes."""
    queue = memory.queue("tasks", STRICT)
    queue.enqueue_many(range(60))
    ledger = Ledger()

    async def handler(message: Message) -> None:
        ledger(message)

    with Worker(queue, ledger if executor == "thread" else handler, concurrency=8):
        until(lambda: ended(queue))
    assert ledger.order() == list(range(60))
    assert ledger.overlaps == []


def test_groups_are_strict_within_and_parallel_across(memory: Hub) -> None:
    """[G6] Ten groups, eight slots: each in order; several run at once."""
    queue = memory.queue("tasks", LOOSE)
    for number in range(15):
        for group in range(10):
            queue.enqueue(number, group=f"g{group}")
    seen: dict[str | None, list[int]] = {}
    together = threading.Barrier(3)
    met = threading.Event()
    ledger = Ledger()

    def handler(message: Message) -> None:
        if not met.is_set():
            together.wait(30)
            met.set()
        ledger(message)
        seen.setdefault(message.group, []).append(message.data)

    ledger._work = lambda message: None if message.attempt > 1 or message.data % 4 else _fail()
    with Worker(queue, handler, concurrency=8):
        until(lambda: ended(queue))
    assert seen == {f"g{group}": list(range(15)) for group in range(10)}
    assert ledger.overlaps == []


def _fail() -> None:
    raise ValueError("once")


def test_a_strict_queue_stays_in_order_with_two_workers(hub: Hub) -> None:
    queue = hub.queue("tasks", STRICT)
    queue.enqueue_many(range(40))
    ledger = Ledger()
    with Worker(queue, ledger, concurrency=4), Worker(queue, ledger, concurrency=4):
        until(lambda: ended(queue))
    assert ledger.order() == list(range(40))
    assert ledger.overlaps == []


def test_queues_share_a_worker_by_weight(memory: Hub) -> None:
    """Under backlog the shares are as the weights: of 400 handled first, about 300, 75 and 25."""
    weights = {"much": 12, "some": 3, "little": 1}
    queues = {name: memory.queue(name, LOOSE) for name in weights}
    for queue in queues.values():
        queue.enqueue_many(range(1000))
    order: list[str] = []
    enough = threading.Event()

    def handler(message: Message) -> None:
        order.append(message.queue)
        threading.Event().wait(0.002)
        if len(order) >= 500:
            enough.set()

    with Worker({queues[name]: weight for name, weight in weights.items()}, handler, concurrency=8):
        assert enough.wait(40)
    counted = Counter(order[100:500])
    assert set(counted) == set(weights)
    assert 240 <= counted["much"] <= 350, counted
    assert 45 <= counted["some"] <= 120, counted
    assert 10 <= counted["little"] <= 60, counted


def test_a_queue_with_little_weight_gets_all_slots_when_it_is_alone(memory: Hub) -> None:
    little, much = memory.queue("little", LOOSE), memory.queue("much", LOOSE)
    together = threading.Barrier(6)

    def handler(message: Message) -> None:
        together.wait(30)

    little.enqueue_many(range(6))
    with Worker({little: 1, much: 100}, handler, concurrency=6):
        until(lambda: ended(little))
    assert little.stats().succeeded == 6


def test_each_queue_has_its_own_handler(memory: Hub) -> None:
    first, second = memory.queue("first"), memory.queue("second")
    handlers = {"first": lambda message: "one", "second": lambda message: "two"}
    receipts = [first.enqueue("x"), second.enqueue("x")]
    with Worker([first, second], handlers) as worker:
        until(lambda: ended(first) and ended(second))
        assert worker.queues == ["first", "second"]
    assert first.get(receipts[0].id).result == "one"
    assert second.get(receipts[1].id).result == "two"


def test_each_queue_has_its_own_time_limit(memory: Hub) -> None:
    quick = memory.queue("quick", QueuePolicy(execution_timeout=0.2, failure=Failure("retry", 0)))
    slow = memory.queue("slow", QueuePolicy(execution_timeout=60))
    quick.enqueue("x")
    slow.enqueue("x")
    with Worker([quick, slow], lambda message: threading.Event().wait(1.5), concurrency=2, grace=0):
        until(lambda: quick.stats().failed == 1 and slow.stats().succeeded == 1)
