"""One worker process of the demo: does pretend work, and says on standard output how it stands.

Run by `brigade demo` as `python -m brigade.cli.demo_worker URL QUEUE NAME WORK_MS`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter

import brigade

__all__ = ["Standing", "main"]

TELL_EVERY = 0.05
CONCURRENCY = 2
AHEAD, MOST_AHEAD = 0.3, 50


class Standing:
    """What the worker has done so far, told as one line of JSON."""

    def __init__(self, hub: brigade.Hub, worker: brigade.Worker) -> None:
        self._hub = hub
        self._worker = worker
        self._outcomes: Counter[str] = Counter()
        hub.on("message-outcome", lambda event: self._count(event.fields["status"]))
        hub.on("message-recovered", lambda _: self._count("recovered"))
        hub.on("lease-lost", lambda _: self._count("stale"))

    def _count(self, what: str) -> None:
        self._outcomes[what] += 1

    def tell(self, state: str | None = None) -> None:
        now = self._worker.status()
        holding = now.running + now.waiting
        report = {
            "state": state or ("working" if holding else "waiting"),
            "holding": holding,
            "processed": self._outcomes["processed"],
            "retrying": self._outcomes["retrying"],
            "dead": self._outcomes["dead-lettered"],
            "stale": self._outcomes["stale"],
            "recovered": self._outcomes["recovered"],
            "requests": sum(self._hub.requests().values()),
        }
        print(json.dumps(report), flush=True)

    def keep_telling(self, parent: int) -> None:
        while True:
            if os.getppid() != parent:
                os._exit(1)
            self.tell()
            time.sleep(TELL_EVERY)


def process(message: brigade.Message, work: float) -> dict[str, object]:
    """Pretend to work. Poison always fails, flaky messages do the first time."""
    time.sleep(work)
    if message.data.get("poison"):
        raise ValueError("this message can't be processed")
    if message.data.get("flaky") and message.attempt == 1:
        raise TimeoutError("the mail server did not answer")
    return {"by": message.lease.owner}


def main() -> None:
    url, name, worker_id, work_ms = sys.argv[1:]
    parent = os.getppid()
    work = float(work_ms) / 1000

    def handle(message: brigade.Message) -> dict[str, object]:
        return process(message, work)

    hub = brigade.connect(url)
    worker = brigade.Worker(
        hub.queue(name),
        handle,
        concurrency=CONCURRENCY,
        worker_id=worker_id,
        prefetch=AHEAD,
        max_prefetch=MOST_AHEAD,
    )
    standing = Standing(hub, worker)
    threading.Thread(target=standing.keep_telling, args=(parent,), daemon=True).start()
    worker.run()
    hub.close()
    standing.tell("done")


if __name__ == "__main__":
    main()
