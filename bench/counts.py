"""Storage requests a message, from enqueue to history: counted, not timed."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

import brigade
from bench.measure import FILE, MEMORY, MESSAGE, Ground

__all__ = ["BATCHES", "PATTERNS", "Requests", "count_requests", "counted"]

BATCHES = (1, 10, 100, 1000)
PATTERNS = ("steady", "backlog")
ROUNDS = {1: 200, 10: 100, 100: 50, 1000: 20}


@dataclass(frozen=True, slots=True)
class Requests:
    """What one batch size cost; `kinds` is operations of each kind a message."""

    batch: int
    pattern: str
    store: str
    messages: int
    kinds: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.kinds.values())


def count_requests(ground: Ground) -> list[Requests]:
    """Each batch size, on memory and on disk, steadily and as a backlog that is worked off."""
    found: list[Requests] = []
    for store in (MEMORY, FILE):
        for pattern in PATTERNS:
            for batch in BATCHES:
                ground.tick(f"requests a message, batches of {batch:,} · {store}")
                rounds = 2 if ground.quick else None
                found.append(counted(ground.url(store), store, batch, pattern, rounds))
    return found


def counted(url: str, store: str, batch: int, pattern: str, rounds: int | None = None) -> Requests:
    """One batch size, on one store."""
    rounds = rounds or ROUNDS[batch]
    kinds, messages = asyncio.run(_count(url, batch, rounds, pattern)), batch * rounds
    return Requests(batch, pattern, store, messages, {kind: n / messages for kind, n in sorted(kinds.items())})


def runs() -> int:
    """How many runs `count_requests` makes, for the progress bar."""
    return 2 * len(PATTERNS) * len(BATCHES)


async def _count(url: str, batch: int, rounds: int, pattern: str) -> Counter[str]:
    """Everything after the queue was opened, up to the last history file: closing the hub waits for that."""
    hub = await brigade.connect_async(url).open()
    queue = await hub.queue("bench")
    before = Counter(hub.requests())
    if pattern == "backlog":
        for _ in range(rounds):
            await queue.enqueue_many([MESSAGE] * batch)
    for _ in range(rounds):
        if pattern != "backlog":
            await queue.enqueue_many([MESSAGE] * batch)
        claimed = await queue.claim(batch)
        assert len(claimed) == batch, f"claimed {len(claimed)} of {batch}"
        await queue.ack_many(claimed)
    await hub.close()
    return Counter(hub.requests()) - before
