"""The plain case, cut short: the same objects as the general way makes, and the general way wherever it isn't plain."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import brigade
from brigade.blobs import CONFLICT, UNKNOWN, Create, Op, Swap
from brigade.blobs.memory import MemoryBlobs
from brigade.errors import StaleLease
from brigade.queue import AsyncQueue
from brigade.stores.bucket import claiming, joint, prompt
from brigade.stores.bucket.book import Book, Rules
from brigade.stores.bucket.plain import acked, first_lease
from brigade.stores.bucket.store import BucketStore
from brigade.stores.bucket.wire import LEDGER, GrantRow

RULES = Rules(max_attempts=9, dead_letter_queue=None, lapse=None, lifo=False)
times = st.integers(min_value=0, max_value=10**12)


@pytest.fixture(params=["memory", "file", "sqlite"])
def hub(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[brigade.Hub, None, None]:
    url = {"memory": "memory://", "file": f"file://{tmp_path}/jobs", "sqlite": f"sqlite://{tmp_path}/jobs.db"}
    with brigade.connect(url[request.param]) as hub:
        bucket = hub.queue("tasks").asynchronous.hub.store
        assert isinstance(bucket, BucketStore)
        # However slow the machine is: what was listed is not old.
        monkeypatch.setattr(type(bucket.blobs), "listing_ttl", 60.0)
        yield hub


@pytest.fixture
def general(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that went the general way."""
    found: list[str] = []

    def noted(name: str) -> None:
        real = getattr(AsyncQueue, name)

        def call(*args: Any, **options: Any) -> Any:
            found.append(name)
            return real(*args, **options)

        monkeypatch.setattr(AsyncQueue, name, call)

    for name in ("enqueue_checked", "claim", "ack"):
        noted(name)
    return found


def until(ready: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not ready():
        pause.wait(0.01)


def taken(queue: brigade.Queue) -> brigade.Message:
    (message,) = queue.claim()
    return message


class TestTheSameBytes:
    @given(now=times, lease=times, owner=st.text(max_size=20))
    def test_of_a_first_lease(self, now: int, lease: int, owner: str) -> None:
        book = Book.fresh(1)
        assert book.claim(limit=1, now=now, expires=now + lease, token="t", owner=owner, rules=RULES)
        book.finalize()
        short = first_lease("n", GrantRow(1, "t", owner, now, now + lease))
        assert LEDGER.encode(short) == LEDGER.encode(book.close("n"))

    @given(steps=st.lists(st.sampled_from(["nack", "release", "expire", "extend"]), max_size=6), now=times)
    def test_of_an_ack_after_whatever_came_before(self, steps: list[str], now: int) -> None:
        book = Book.fresh(1)
        token = ""
        for number, step in enumerate([*steps, "ack"]):
            token = f"t{number}"
            if book.states[0] != 1:
                assert book.claim(limit=1, now=now, expires=now + 10, token=token, owner="w", rules=RULES)
            else:
                token = book.grants[book.leases[0]].token
            if step == "nack":
                book.nack(0, now=now, due=now, error="e", reject=False, rules=RULES)
            elif step == "release":
                book.give_back(0, now=now, due=now)
            elif step == "extend":
                book.extend([0], now + 50)
            elif step == "expire":
                now += 100
                assert book.claim(limit=1, now=now, expires=now + 10, token=token + "x", owner="v", rules=RULES)
                token += "x"
        ledger = book.close("before")
        assert acked(ledger, "another", "n", now) is None
        again = Book(ledger)
        again.ack([0], now)
        assert again.finalize()
        done = acked(ledger, token, "n", now)
        assert done is not None
        assert LEDGER.encode(done[0]) == LEDGER.encode(again.close("n"))
        assert done[1].token == token

    def test_of_more_than_one_message_is_for_a_book(self) -> None:
        book = Book.fresh(2)
        assert book.claim(limit=1, now=1, expires=2, token="t", owner="w", rules=RULES)
        assert acked(book.close("n"), "t", "m", 1) is None


class TestOneCaller:
    def test_makes_plain_calls_the_short_way(self, hub: brigade.Hub, general: list[str]) -> None:
        queue = hub.queue("tasks")
        queue.enqueue("first")
        queue.ack(taken(queue))  # The first claim has to list.
        until(lambda: queue.stats().succeeded == 1)
        general.clear()
        for number in range(50):
            receipt = queue.enqueue(number, priority=4, attributes={"n": number}, correlation_id=f"c{number}")
            message = taken(queue)
            assert (message.data, message.id, message.attempt, message.lease.version) == (number, receipt.id, 1, 1)
            assert (message.attributes, message.correlation_id, message.priority) == ({"n": number}, f"c{number}", 4)
            queue.ack(message)
        assert len(general) < 50, "the hub's own thread is seldom awake"
        assert queue.stats().succeeded == 51

    def test_gets_messages_in_order(self, hub: brigade.Hub) -> None:
        queue = hub.queue("tasks")
        for priority, name in ((5, "c"), (0, "a"), (9, "e"), (5, "d"), (0, "b")):
            queue.enqueue(name, priority=priority)
        got = []
        for _ in range(5):
            message = taken(queue)
            got.append(message.data)
            queue.ack(message)
        assert got == ["a", "b", "c", "d", "e"]
        assert queue.claim() == []

    def test_gets_what_came_back_before_what_is_new(self, hub: brigade.Hub) -> None:
        queue = hub.queue("tasks")
        for name in "ab":
            queue.enqueue(name)
        queue.release(taken(queue))
        message = taken(queue)
        assert (message.data, message.attempt) == ("a", 1)
        queue.nack(message, delay=0)
        message = taken(queue)
        assert (message.data, message.attempt, message.lease.version) == ("a", 2, 3)
        queue.ack(message)
        assert queue.get(message.id).attempts == 2

    @pytest.mark.parametrize(
        "options",
        [{"delay": 0.01}, {"id": "own"}, {"group": "g"}, {"ttl": 60}, {"max_attempts": 2}],
        ids=lambda options: next(iter(options)),
    )
    def test_goes_the_general_way_with_what_is_special(self, hub: brigade.Hub, options: dict[str, Any]) -> None:
        queue = hub.queue("tasks")
        queue.enqueue("plain", priority=9)
        receipt = queue.enqueue("special", **options)
        (message,) = queue.claim(wait=5)
        found = {message.data}
        queue.ack(message)
        (message,) = queue.claim(wait=5)
        assert found | {message.data} == {"plain", "special"}
        queue.ack(message)
        assert queue.get(receipt.id).state is brigade.State.SUCCEEDED

    def test_of_a_strict_queue_keeps_the_order(self, hub: brigade.Hub) -> None:
        queue = hub.queue("strict", brigade.QueuePolicy(ordering_guarantee=True))
        for number in range(3):
            queue.enqueue(number)
        for number in range(3):
            message = taken(queue)
            assert message.data == number
            assert queue.claim() == []
            queue.ack(message)

    def test_is_told_that_a_lease_is_stale(self, hub: brigade.Hub) -> None:
        queue = hub.queue("tasks")
        queue.enqueue("x")
        (late,) = queue.claim(visibility=0.001)
        (current,) = queue.claim(wait=5)
        with pytest.raises(StaleLease):
            queue.ack(late)
        queue.ack(current)
        with pytest.raises(StaleLease):
            queue.ack(current)

    def test_may_ack_a_lease_that_has_run_out(self, hub: brigade.Hub) -> None:
        queue = hub.queue("tasks")
        receipt = queue.enqueue("x")
        (message,) = queue.claim(visibility=0.001)
        threading.Event().wait(0.01)
        queue.ack(message)
        assert queue.get(receipt.id).state is brigade.State.SUCCEEDED

    def test_is_seen_by_a_listener(self, hub: brigade.Hub, general: list[str]) -> None:
        queue = hub.queue("tasks")
        seen: list[str] = []
        hub.on("*", lambda event: seen.append(event.name))
        queue.enqueue("x")
        queue.ack(taken(queue))
        until(lambda: "message-outcome" in seen)
        assert [name for name in seen if name != "message-outcome"] == [
            "message-enqueued",
            "message-claimed",
            "message-completed",
        ]
        assert set(general) == {"enqueue_checked", "claim", "ack"}

    def test_loses_no_message_to_an_interrupt(self, hub: brigade.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was won when a signal's handler raises goes back, uncounted."""
        queue = hub.queue("tasks")
        queue.enqueue("first")
        queue.ack(taken(queue))
        queue.enqueue("x")

        def interrupted(real: Callable[..., Any], *args: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return real(*args)

        monkeypatch.setattr(prompt, "first_message", partial(interrupted, prompt.first_message))
        for module in (joint, claiming):  # Where the hub's own thread is awake, it is another one.
            monkeypatch.setattr(module, "messages_of", partial(interrupted, module.messages_of))
        with suppress(KeyboardInterrupt):
            queue.claim()
            pytest.fail("the interrupt went unnoticed")
        monkeypatch.undo()
        (message,) = queue.claim(wait=5)
        assert (message.data, message.attempt) == ("x", 1)
        queue.ack(message)


class Doubtful(MemoryBlobs):
    """Answers the next writes with a doubt, or not at once, applied or not."""

    def __init__(self) -> None:
        super().__init__("")
        self.answers: list[tuple[object, bool]] = []

    def try_now(self, op: Op) -> object:
        if isinstance(op, Create | Swap) and self.answers:
            answer, applied = self.answers.pop(0)
            if applied:
                super().try_now(op)
            return answer
        return super().try_now(op)

    async def perform(self, op: Op) -> object:
        await asyncio.sleep(0)
        return super().try_now(op)


@pytest.mark.parametrize("what", ["enqueue", "claim", "ack"])
@pytest.mark.parametrize(
    "answer,applied", [(UNKNOWN, True), (UNKNOWN, False), (CONFLICT, True), (CONFLICT, False), (NotImplemented, False)]
)
def test_a_doubtful_answer_is_settled(
    what: str, answer: object, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = Doubtful()
    monkeypatch.setattr("brigade.blobs.memory.MemoryBlobs", lambda *_, **__: blobs)
    with brigade.connect("memory://") as hub:
        queue = hub.queue("tasks")
        queue.enqueue("first")
        queue.ack(taken(queue))
        if what == "enqueue":
            blobs.answers = [(answer, applied)]
        receipt = queue.enqueue("x")
        if what == "claim":
            blobs.answers = [(answer, applied)]
        message = taken(queue)
        assert (message.data, message.id, message.attempt) == ("x", receipt.id, 1)
        if what == "ack":
            blobs.answers = [(answer, applied)]
        queue.ack(message)
        assert blobs.answers == []
        assert queue.claim() == []
        assert queue.get(receipt.id).state is brigade.State.SUCCEEDED
        stats = queue.stats()
        assert (stats.succeeded, stats.ready, stats.in_flight) == (2, 0, 0)
