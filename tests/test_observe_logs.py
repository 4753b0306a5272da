"""Events as log lines: nothing to register, nothing to pay when off, and no text that can break a line."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import brigade
from brigade import Failure, QueuePolicy
from brigade.eventlog import LONGEST, level_of, logfmt, logged, shown
from brigade.events import EVENT_NAMES, Events
from brigade.observe import JsonFormatter

NAME = "brigade.events"


class Kept(logging.Handler):
    """Keeps records and their text."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.lines.append(self.format(record))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [record.brigade for record in self.records if record.brigade["event"] == event]


@pytest.fixture
def kept() -> Iterator[Kept]:
    log, handler = logging.getLogger(NAME), Kept()
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    yield handler
    log.removeHandler(handler)
    log.setLevel(before)


def live_a_little() -> str:
    """One message of a queue is retried and acked, one fails for good; returns the first one's id."""
    with brigade.connect("memory://") as hub:
        queue = hub.queue("tasks", policy=QueuePolicy(failure=Failure("retry", max_retries=1)))
        receipt = queue.enqueue({"secret": "hunter2"}, correlation_id="c-1", attributes={"token": "hunter3"})
        queue.nack(queue.claim()[0], error="boom", delay=0)
        queue.ack(queue.claim()[0], result={"ok": True})
        queue.enqueue("bad", max_attempts=1)
        queue.nack(queue.claim()[0], error="no good")
    return receipt.id


def test_every_event_is_one_line_with_its_fields(kept: Kept) -> None:
    id = live_a_little()
    assert [line.split()[0] for line in kept.lines[:6]] == [
        "event=message-enqueued",
        "event=message-claimed",
        "event=message-retry",
        "event=message-outcome",
        "event=message-claimed",
        "event=message-completed",
    ]
    for line in kept.lines[:7]:
        assert f"queue=tasks id={id} correlation_id=c-1" in line
    for line in kept.lines[1:4]:
        assert "attempt=1 max_attempts=2 worker_id=" in line
    assert "error=boom" in kept.lines[2]
    assert 'result="{\\"ok\\":true}"' in kept.lines[5]


def test_fields_are_values_on_the_record(kept: Kept) -> None:
    id = live_a_little()
    (completed,) = kept.of("message-completed")
    assert completed["id"] == id
    assert completed["result"] == {"ok": True}
    assert isinstance(completed["duration"], int)
    (dead,) = kept.of("message-dead")
    assert (dead["error"], dead["attempt"], dead["max_attempts"]) == ("no good", 1, 1)


def test_payloads_and_attributes_are_never_logged(kept: Kept) -> None:
    live_a_little()
    assert not [line for line in kept.lines if "hunter" in line]


def test_levels_say_what_needs_a_look(kept: Kept) -> None:
    live_a_little()
    levels = {record.brigade["event"]: record.levelname for record in kept.records}
    assert levels["message-dead"] == "WARNING"
    assert levels["message-claimed"] == "DEBUG"
    assert levels["message-completed"] == levels["message-retry"] == levels["message-outcome"] == "INFO"
    assert level_of("lease-lost") == logging.WARNING
    assert level_of("message-processing") == logging.DEBUG


def test_a_level_is_all_that_is_needed(kept: Kept) -> None:
    logging.getLogger(NAME).setLevel(logging.INFO)
    live_a_little()
    told = {record.brigade["event"] for record in kept.records}
    assert "message-claimed" not in told
    assert {"message-enqueued", "message-completed", "message-dead"} <= told


def test_worker_events_are_logged_too(kept: Kept) -> None:
    events = Events()
    events.emit("workers-started", "tasks", worker_id="w", concurrency=8, queues=["tasks", "mails"])
    events.emit("message-processing", "tasks", "m", worker_id="w", attempt=1, correlation_id="c")
    events.emit("ordering-best-effort", "tasks", worker_id="w", ordering="fifo")
    events.emit("lease-lost", "tasks", "m", worker_id="w", attempt=1, correlation_id="c", lease_version=7)
    events.emit("workers-stopped", "tasks", worker_id="w")
    assert kept.lines == [
        'event=workers-started queue=tasks worker_id=w concurrency=8 queues="[\\"tasks\\",\\"mails\\"]"',
        "event=message-processing queue=tasks id=m correlation_id=c attempt=1 worker_id=w",
        "event=ordering-best-effort queue=tasks worker_id=w ordering=fifo",
        "event=lease-lost queue=tasks id=m correlation_id=c attempt=1 worker_id=w lease_version=7",
        "event=workers-stopped queue=tasks worker_id=w",
    ]


@pytest.mark.parametrize("name", sorted(EVENT_NAMES))
def test_an_event_that_is_not_logged_is_not_wanted(name: str) -> None:
    log = logging.getLogger(NAME)
    before = log.level
    try:
        log.setLevel(logging.CRITICAL)
        assert not Events().wanted(name)
        assert not logged(name)
        log.setLevel(logging.DEBUG)
        assert Events().wanted(name)
    finally:
        log.setLevel(before)


def test_an_application_without_logging_sees_nothing() -> None:
    code = "from brigade.events import Events; Events().emit('message-dead', 'q', 'm', error='x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_program_that_logs_at_info_hears_only_of_what_needs_a_look() -> None:
    code = """if True:
        import logging
        logging.basicConfig(level=logging.INFO)
        from brigade.events import Events
        events = Events()
        assert not events.wanted("message-completed")
        events.emit("message-completed", "q", "m")
        events.emit("message-dead", "q", "m", error="x")
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "WARNING:brigade.events:event=message-dead queue=q id=m error=x\n")


def test_a_level_that_was_set_before_the_import_stays() -> None:
    code = """if True:
        import logging
        logging.getLogger("brigade.events").setLevel(logging.INFO)
        from brigade.events import Events
        assert Events().wanted("message-completed")
        """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "hostile",
    [
        "two\nlines",
        "carriage\rreturn",
        'a "quoted" event=message-dead',
        "back\\slash",
        "\x1b[31mred\x1b[0m",
        "nul\0",
        "line\u2028separator\x85",
        "right-to-left \u202e override",
        "lone \ud800 surrogate",
        "\U000e0001 tag",
    ],
)
def test_hostile_text_stays_in_its_value(kept: Kept, hostile: str) -> None:
    Events().emit("message-dead", "q", "m", error=hostile)
    (line,) = kept.lines
    assert line.isprintable()
    assert len(line.splitlines()) == 1
    before, _, quoted = line.partition(' error="')
    assert before == "event=message-dead queue=q id=m"
    assert '"' not in quoted[:-1].replace("\\\\", "").replace('\\"', "")
    text = JsonFormatter().format(kept.records[0])
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text)["error"] == hostile


def test_long_values_are_cut(kept: Kept) -> None:
    Events().emit("message-completed", "q", "m", error="x" * 10_000, result=["y" * 10_000], small=[1, 2])
    (parts,) = kept.of("message-completed")
    assert len(parts["error"]) == len(parts["result"]) == LONGEST
    assert parts["error"].endswith("x…")
    assert parts["result"].startswith('["yy')
    assert parts["small"] == [1, 2]
    assert len(kept.lines[0]) < 3 * LONGEST


def test_what_json_cannot_hold_is_shown_somehow() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown({1, 2}) == [1, 2]
    assert shown(object).startswith("<class")
    assert shown(Odd()) == "<Odd>"
    assert logfmt({"a": 1, "b": 2.5, "c": True, "d": "", "e": 10**30}) == f'a=1 b=2.5 c=true d="" e={10**30}'


def test_a_handler_that_fails_harms_nobody(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(record: logging.LogRecord) -> bool:
        raise RuntimeError(record.name)

    log = logging.getLogger(NAME)
    log.addFilter(broken)
    try:
        live_a_little()
    finally:
        log.removeFilter(broken)


def test_the_json_formatter_takes_any_record() -> None:
    formatter = JsonFormatter()
    try:
        raise ValueError("broken\nvalue")
    except ValueError:
        record = logging.LogRecord("app", logging.ERROR, __file__, 1, "it %s\n", ("failed",), sys.exc_info())
    shown = json.loads(formatter.format(record))
    assert (shown["level"], shown["logger"], shown["message"]) == ("ERROR", "app", "it failed\n")
    assert "ValueError: broken\nvalue" in shown["exception"]
    assert shown["time"].endswith("+00:00")
    assert "\n" not in formatter.format(record)


def test_the_json_formatter_gives_an_object_a_line(kept: Kept) -> None:
    kept.setFormatter(JsonFormatter())
    id = live_a_little()
    first = json.loads(kept.lines[0])
    assert {name: first[name] for name in ("level", "logger", "event", "queue", "id", "correlation_id")} == {
        "level": "INFO",
        "logger": NAME,
        "event": "message-enqueued",
        "queue": "tasks",
        "id": id,
        "correlation_id": "c-1",
    }
