"""How long the dashboard's pages take, with many queues and messages: `python -m bench.pages`.

Half of the messages lie in large segments, as batches make them, the others in segments of one message each.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

import brigade
from brigade import Failure, Nack, QueuePolicy

BRIGADE = Path(sys.executable).parent / "brigade"


async def fill(url: str, queues: int, messages: int, singles: int) -> str:
    """Make the queues; returns the id of some message."""
    async with brigade.connect_async(url) as hub:
        names = [f"queue-{n:03d}" for n in range(queues)]
        made = [await hub.queue(name, QueuePolicy(failure=Failure("retry", 0))) for name in names]
        big, *rest = made
        for at in range(0, messages - singles - len(rest) * 10, 1000):
            await big.enqueue_many([{"n": at + n, "to": f"user{n}@example.org"} for n in range(1000)])
        for one in rest:
            await one.enqueue_many([{"n": n} for n in range(10)])
        await rest[0].enqueue_many([{"n": n} for n in range(2)], group="g")
        single = rest[-1]
        for at in range(0, singles, 500):
            await asyncio.gather(*(_alone(single, n) for n in range(at, min(at + 500, singles))))
        await big.settle([Nack(message, f"ValueError: {n}") for n, message in enumerate(await big.claim(500))])
        await big.ack_many(await big.claim(2000))
        await big.claim(100, owner="worker-1", visibility=3600)
        await big.clear_queue_cache()
        return (await big.peek(1))[0].id


async def _alone(queue: brigade.AsyncQueue, n: int) -> None:
    await queue.enqueue({"n": n}, id=f"alone-{n}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--queues", type=int, default=200)
    options.add_argument("--messages", type=int, default=50_000)
    options.add_argument("--singles", type=int, default=2000)
    options.add_argument("--rounds", type=int, default=15)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"file://{folder}/store?fsync=false"
        id = asyncio.run(fill(url, given.queues, given.messages, given.singles))
        known = {name: value for name, value in os.environ.items() if not name.startswith("BRIGADE_")}
        process = subprocess.Popen(
            [BRIGADE, "serve", "--url", url, "--port", "0"], stderr=subprocess.PIPE, text=True, env=known
        )
        try:
            assert process.stderr is not None
            found = next((hit for line in process.stderr if (hit := re.search(r"http://\S+", line))), None)
            assert found, "the server did not start"
            measure(found[0], id, given.queues, given.rounds)
        finally:
            process.terminate()
            process.wait()


def measure(address: str, id: str, queues: int, rounds: int) -> None:
    last = f"queue-{queues - 1:03d}"
    pages = {
        "overview": "/",
        "queue": "/queues/queue-000",
        "messages": "/queues/queue-000/messages",
        "messages, text": "/queues/queue-000/messages?text=nothing-like-it",
        "messages, one a segment": f"/queues/{last}/messages",
        "message": f"/queues/queue-000/message?id={id}",
        "dead letters": "/failures",
        "dead letters of a queue": "/queues/queue-000/failures",
        "workers": "/workers",
        "history": "/history?queue=queue-000",
        "system": "/system",
    }
    print("| page | first ms | median ms | slowest ms | KiB |\n|---|---|---|---|---|")
    with httpx.Client(base_url=address, trust_env=False, timeout=60) as http:
        for title, path in pages.items():
            times: list[float] = []
            size = 0
            for _ in range(rounds):
                started = time.perf_counter()
                answer = http.get(path)
                times.append((time.perf_counter() - started) * 1000)
                assert answer.status_code == 200, answer.text
                size = len(answer.content)
                time.sleep(0.2)
            print(
                f"| {title} | {times[0]:.0f} | {statistics.median(times):.0f} | {max(times):.0f} | {size / 1024:.0f} |"
            )


if __name__ == "__main__":
    main()
