"""What encryption at rest costs: enqueue, claim and ack with it off and on, in microseconds a message.

Run `python -m bench.encryption`. The store is in memory, so that nothing but Brigade's own work is in the way. CPU time
of this process, the best of several rounds: the machine may be busy with something else.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
import uuid
from typing import Any

import brigade
from brigade import NewMessage

PAYLOAD = {"type": "email", "to": "somebody@example.org", "text": "x" * 140}
ROUNDS = 7


async def cost(batch: int, attributes: dict[str, Any], **options: str) -> float:
    """Microseconds of CPU for one message's whole life, in batches of that size."""
    messages = max(batch, 2000 if batch > 1 else 300)
    best = float("inf")
    for _ in range(ROUNDS):
        async with brigade.connect_async(f"memory://{uuid.uuid4().hex}", **options) as hub:
            queue = await hub.queue("tasks")
            started = time.process_time()
            for _ in range(messages // batch):
                await queue.enqueue_many([NewMessage(payload=PAYLOAD, attributes=attributes)] * batch)
                await queue.ack_many(await queue.claim(batch))
            await queue.sweep()
            best = min(best, time.process_time() - started)
    return best / messages * 1e6


async def main() -> None:
    os.environ["BENCH_KEYS"] = f"bench:{base64.b64encode(os.urandom(32)).decode()}"
    print("| batch | off | on | more | off, with attributes | on | more |\n|---|---|---|---|---|---|---|")
    for batch in (1, 100, 1000):
        row: list[float] = []
        for attributes in ({}, {"tenant": "acme", "trace": "0af7651916cd43dd"}):
            off, on = await cost(batch, attributes), await cost(batch, attributes, encryption="env:BENCH_KEYS")
            row += [off, on, on - off]
        print(f"| {batch} | {' | '.join(f'{value:.1f}' for value in row)} |")


if __name__ == "__main__":
    asyncio.run(main())
