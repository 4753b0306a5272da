"""What handlers return and raise, in threads, on event loops and in processes: the same, and told by events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import worker_handlers
from worker_support import AT_ONCE, ended, named, until

import brigade
from brigade import Event, Failure, Hub, Queue, QueuePolicy, State, Worker

POLICY = QueuePolicy(failure=Failure("hybrid", 1, "letters"), backoff=AT_ONCE)


class Workshop:
    """A queue with a worker of one kind, and all that is told about it. It stays for the whole module."""

    def __init__(self, hub: Hub) -> None:
        self.queue: Queue = hub.queue("tasks", POLICY)
        self.letters = hub.queue("letters")
        self.events: list[Event] = []
        hub.on("*", self.events.append)

    def told(self, id: str, name: str) -> list[dict[str, Any]]:
        return [event.fields for event in named(list(self.events), name) if event.id == id]

    def do(self, what: str, **more: Any) -> tuple[brigade.MessageInfo, list[str]]:
        """Have a message done; returns what became of it, and the statuses that were told."""
        receipt = self.queue.enqueue({"do": what, **more})
        until(lambda: ended(self.queue))

        def over() -> list[str]:
            found = [one["status"] for one in self.told(receipt.id, "message-outcome")]
            return found if found and found[-1] != "retrying" else []

        told = until(over)
        return until(lambda: info if (info := self.queue.get(receipt.id)).finished_at_ms else None), told


@pytest.fixture(scope="module", params=["thread", "async", "process"])
def workshop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    handlers: dict[str, Callable[..., Any]] = {"async": worker_handlers.doing_async}
    place = tmp_path_factory.mktemp("outcomes")
    with brigade.connect(f"file://{place}/jobs", fsync=False) as hub:
        shop = Workshop(hub)
        handler = handlers.get(request.param, worker_handlers.doing)
        executor = "process" if request.param == "process" else "thread"
        with Worker(shop.queue, handler, executor=executor, concurrency=1):
            yield shop


@pytest.mark.parametrize("value", [None, 0, "text", {"a": [1, 2.5, None]}, [], True], ids=lambda v: repr(v)[:20])
def test_a_return_value_is_the_result(workshop: Workshop, value: Any) -> None:
    info, told = workshop.do("return", value=value)
    assert info.state is State.SUCCEEDED
    assert info.result == value
    assert told == ["processed"]
    (completed,) = workshop.told(info.id, "message-completed")
    assert completed["result"] == value
    assert completed["attempt"] == 1
    assert completed["correlation_id"] == info.correlation_id
    assert completed["duration"] >= 0


def test_a_large_result_is_stored_apart(workshop: Workshop) -> None:
    info, _ = workshop.do("return", value="x" * 10_000)
    assert info.result["size"] == 10_002
    (completed,) = workshop.told(info.id, "message-completed")
    assert completed["result"] == "x" * 10_000


@pytest.mark.parametrize("what,shown", [("no json", "iter"), ("no repr", "NoRepr"), ("deep", "[[")])
def test_the_work_is_done_even_if_its_result_cant_be_kept(workshop: Workshop, what: str, shown: str) -> None:
    info, told = workshop.do(what)
    assert told == ["processed"]
    assert shown in info.result["text"]
    assert len(info.result["text"]) <= 500


@pytest.mark.parametrize(
    "what,error",
    [
        ("raise", "ValueError: no good"),
        ("retry", "later"),
        ("exit", "SystemExit: 7"),
        ("interrupt", "KeyboardInterrupt"),
        ("cancel", "CancelledError"),
        ("unprintable", "Unprintable"),
        ("half made", "HalfMade"),
    ],
)
def test_an_exception_is_a_failed_attempt(workshop: Workshop, what: str, error: str) -> None:
    info, told = workshop.do(what)
    assert told == ["retrying", "processed"]
    assert info.result == {"attempt": 2}
    assert info.attempts == 2
    (retry,) = workshop.told(info.id, "message-retry")
    assert error in retry["error"]
    assert (retry["attempt"], retry["max_attempts"]) == (1, 2)
    assert retry["correlation_id"] == info.correlation_id
    assert retry["next_visible_at_ms"] > 0


def test_attempts_are_bounded_and_the_last_error_is_kept(workshop: Workshop) -> None:
    info, told = workshop.do("raise", times=100, text="again and again")
    assert told == ["retrying", "dead-lettered"]
    assert info.state is State.FAILED
    (dead,) = workshop.told(info.id, "message-dead")
    assert dead["attempt"] == 2
    assert "again and again" in dead["error"]
    (letter,) = workshop.letters.claim()
    assert letter.failure is not None
    assert letter.failure.id == info.id
    assert letter.failure.attempts == 2
    workshop.letters.ack(letter)


@pytest.mark.parametrize("what", ["reject", "reject oddly"])
def test_a_rejected_message_fails_at_once(workshop: Workshop, what: str) -> None:
    info, told = workshop.do(what)
    assert told == ["dead-lettered"]
    (letter,) = workshop.letters.claim()
    assert letter.failure is not None
    assert letter.failure.attempts == 1
    if what == "reject":
        assert letter.failure.error == "never"
    workshop.letters.ack(letter)
    assert info.attempts == 1


def test_a_retry_with_a_delay_waits_as_long(workshop: Workshop) -> None:
    info, told = workshop.do("retry", delay=0.4)
    assert told == ["retrying", "processed"]
    (retry,) = workshop.told(info.id, "message-retry")
    claims = workshop.told(info.id, "message-claimed")
    assert len(claims) == 2
    assert int(info.finished_at_ms or 0) >= retry["next_visible_at_ms"]
    assert retry["next_visible_at_ms"] >= info.enqueued_at_ms + 400


def test_a_snoozed_message_comes_back_and_no_attempt_is_counted(workshop: Workshop, tmp_path: Path) -> None:
    info, told = workshop.do("snooze", path=str(tmp_path / "slept"), delay=0.3)
    assert told == ["processed"]
    assert (info.result, info.attempts) == ("awake", 1)
    assert [one["attempt"] for one in workshop.told(info.id, "message-processing")] == [1, 1]
    assert int(info.finished_at_ms or 0) >= info.enqueued_at_ms + 300


@pytest.mark.parametrize("char,count", [("x", 1_000_000), ("\ud800", 10), ("ü", 5000), ("\0", 1)], ids=repr)
def test_any_error_text_can_be_kept(workshop: Workshop, char: str, count: int) -> None:
    info, told = workshop.do("raise many", char=ord(char), count=count)
    assert told == ["retrying", "processed"]
    (retry,) = workshop.told(info.id, "message-retry")
    assert retry["error"].startswith("ValueError: ")
    assert len(retry["error"]) <= 4096


def test_events_come_in_the_order_in_which_things_happen(workshop: Workshop) -> None:
    info, _ = workshop.do("raise")
    until(lambda: workshop.told(info.id, "message-completed"))
    names = [event.name for event in workshop.events if event.id == info.id]
    once = ["message-claimed", "message-processing"]
    assert names == [
        "message-enqueued",
        *once,
        "message-retry",
        "message-outcome",
        *once,
        "message-completed",
        "message-outcome",
    ]


def test_a_slot_is_never_lost(workshop: Workshop) -> None:
    """There is one slot: after all of the above it still works."""
    info, told = workshop.do("return", value="still here")
    assert (info.result, told) == ("still here", ["processed"])


@pytest.mark.parametrize("bad", [-1, float("nan"), "soon", True])
def test_a_bad_delay_is_said_where_it_is_raised(bad: Any) -> None:
    with pytest.raises(brigade.ConfigError, match=r"Retry\.delay"):
        brigade.Retry(delay=bad)
    with pytest.raises(brigade.ConfigError, match=r"Snooze\.seconds"):
        brigade.Snooze(bad)
