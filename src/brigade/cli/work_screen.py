"""What `brigade work` shows: a status line on a terminal, log lines elsewhere, or every event as JSON."""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from brigade.cli.common import console, when
from brigade.cli.text import ascii_json, visible
from brigade.clock import SystemClock, to_datetime
from brigade.events import Event
from brigade.sync import Hub

if TYPE_CHECKING:
    from rich.live import Live

    from brigade.worker import Worker

__all__ = ["Screen", "start_logging"]

log = logging.getLogger("brigade.work")
TICK = 0.25
SUMMARY_EVERY = 10.0


class _Visible(logging.Formatter):
    """Log lines whose text can't upset a terminal. A traceback keeps its lines."""

    def format(self, record: logging.LogRecord) -> str:
        first, *rest = super().format(record).split("\n")
        return "\n".join(map(visible, (first, *rest))) if record.exc_info else visible("\n".join((first, *rest)))


class _ToStandardError(logging.Handler):
    """Writes to what standard error is at the moment: a live display puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def start_logging(level: str) -> None:
    """Log to standard error. Events are told by the screen, in its own words."""
    handler = _ToStandardError()
    handler.setFormatter(_Visible("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("brigade.events").setLevel(logging.CRITICAL)


class Screen:
    """Watches a worker, and stops it when it has had nothing to do for `max_idle` seconds."""

    def __init__(self, hub: Hub, worker: Worker, *, as_json: bool, max_idle: float | None = None) -> None:
        self._worker = worker
        self._max_idle = max_idle
        self._clock = SystemClock()
        self._counts: Counter[str] = Counter()
        self._began = self._clock.monotonic()
        self._done: list[tuple[float, int]] = []
        self._live: Live | None = None
        self._closing = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="brigade-work-screen", daemon=True)
        self._as_json = as_json
        if as_json:
            hub.on("*", self._print_event)
        else:
            for name in ("message-retry", "message-dead", "lease-lost", "workers-started", "workers-stopped"):
                hub.on(name, self._note)

    def __enter__(self) -> Self:
        screen = console()
        if screen.is_terminal and not self._as_json:
            from rich.live import Live
            from rich.text import Text

            self._live = Live(Text(self._line()), console=screen, auto_refresh=False, transient=True)
            self._live.__enter__()
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._ticker.join()
        took = f"in {self._clock.monotonic() - self._began:,.1f} s"
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            print(f"{self._results()} {took}")
        elif not self._as_json:
            log.info("%s %s", self._results(), took)

    def _line(self) -> str:
        """The state of things, on one line."""
        status = self._worker.status()
        rate = self._rate(status.processed)
        return f"{self._results()}, {rate:,.1f}/s, {status.running} running, {status.waiting} waiting"

    def _results(self) -> str:
        done = self._worker.status()
        retried, dead = self._counts["message-retry"], self._counts["message-dead"]
        leases = f", {done.lost:,} leases lost" if done.lost else ""
        return f"{done.processed:,} done, {retried:,} retried, {dead:,} dead{leases}"

    def _rate(self, processed: int) -> float:
        """Messages a second over the last few seconds."""
        now = self._clock.monotonic()
        self._done = [one for one in self._done if one[0] > now - 5] + [(now, processed)]
        (began, before), (ended, after) = self._done[0], self._done[-1]
        return (after - before) / (ended - began) if ended > began else 0.0

    def _tick(self) -> None:
        said = ""
        said_at = busy_at = self._clock.monotonic()
        finished = 0
        while not self._closing.wait(TICK):
            now, status = self._clock.monotonic(), self._worker.status()
            ended = status.processed + status.failed + status.released
            if status.running or status.waiting or ended != finished:
                busy_at, finished = now, ended
            line = self._line()
            if self._live is not None:
                self._live.update(line, refresh=True)
            elif not self._as_json and now - said_at >= SUMMARY_EVERY and line != said:
                log.info("%s", line)
                said, said_at = line, now
            if self._max_idle is not None and now - busy_at >= self._max_idle:
                threading.Thread(target=self._worker.stop, daemon=True).start()
                return

    def _note(self, event: Event) -> None:
        self._counts[event.name] += 1
        fields = event.fields
        if event.name == "message-retry":
            tries = f"{fields['attempt']} of {fields['max_attempts']}"
            log.warning("%s of %s: attempt %s failed: %s", event.id, event.queue, tries, fields.get("error"))
        elif event.name == "message-dead":
            log.error("%s of %s failed for good: %s", event.id, event.queue, fields.get("error"))
        elif event.name == "lease-lost":
            log.warning("%s of %s: the lease was lost; its result is dropped", event.id, event.queue)
        elif event.name == "workers-started":
            log.info("%s works on %s", fields["worker_id"], ", ".join(fields["queues"]))
        else:
            log.info("%s has stopped", fields["worker_id"])

    def _print_event(self, event: Event) -> None:
        line = {
            "at": when(to_datetime(self._clock.now())),
            "event": event.name,
            "queue": event.queue,
            "id": event.id,
            **event.fields,
        }
        text = ascii_json(msgspec.json.encode(line, enc_hook=_text).decode())
        try:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()
        except OSError:
            threading.Thread(target=self._worker.stop, daemon=True).start()


def _text(value: Any) -> str:
    return repr(value)
