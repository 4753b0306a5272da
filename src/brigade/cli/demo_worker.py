"""One consumer process of the demo: claims in batches, does pretend work, settles, and reports on standard output.

Run by `brigade demo` as `python -m brigade.cli.demo_worker URL QUEUE NAME BATCH WORK_MS`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys

import brigade
from brigade.model import Settlement

__all__ = ["consume"]


def verdict(data: dict[str, object], attempt: int) -> str | None:
    """Why this attempt fails, or None: poison always does, flaky messages do the first time."""
    if data.get("poison"):
        return "ValueError: this message can't be processed"
    if data.get("flaky") and attempt == 1:
        return "TimeoutError: the mail server did not answer"
    return None


async def consume(url: str, queue_name: str, name: str, batch: int, work: float) -> None:
    """Work until SIGTERM, or until the parent is gone."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    parent = os.getppid()
    hub = await brigade.connect_async(url).open()
    queue = await hub.queue(queue_name)
    recovered = 0

    def count_recovered(_: brigade.Event) -> None:
        nonlocal recovered
        recovered += 1

    hub.on("message-recovered", count_recovered)
    _tell(event="started")
    while not stop.is_set() and os.getppid() == parent:
        messages = await queue.claim(batch, wait=0.25, owner=name)
        if not messages:
            continue
        _tell(event="claimed", count=len(messages), recovered=recovered)
        settlements: list[Settlement] = []
        for message in messages:
            await asyncio.sleep(work)
            problem = verdict(message.data, message.attempt)
            settlements.append(
                brigade.Ack(message, {"by": name}) if problem is None else brigade.Nack(message, error=problem)
            )
        results = await queue.settle(settlements)
        _tell(
            event="settled",
            processed=results.count(brigade.State.SUCCEEDED),
            retrying=results.count(brigade.State.READY),
            dead=results.count(brigade.State.FAILED),
            stale=sum(isinstance(result, brigade.StaleLease) for result in results),
            requests=sum(hub.requests().values()),
        )
    await hub.close()
    _tell(event="stopped", requests=sum(hub.requests().values()))


def _tell(**report: object) -> None:
    print(json.dumps(report), flush=True)


def main() -> None:
    url, queue, name, batch, work_ms = sys.argv[1:]
    asyncio.run(consume(url, queue, name, int(batch), float(work_ms) / 1000))


if __name__ == "__main__":
    main()
