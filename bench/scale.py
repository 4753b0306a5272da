"""`python -m bench.scale`: a thousand workers and a million messages on one bucket, in virtual time.

Every worker is a hub of its own with the real store in it; only the bucket is simulated, see `brigade.testing.far`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import Progress

from brigade.cost import load_prices
from brigade.policy import QueuePolicy
from brigade.testing.far import FarBucket, play

__all__ = ["Run", "Scale", "simulate"]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is going on."""

    messages: int = 1_000_000
    rate: int = 10_000
    workers: int = 1000
    claim: int = 20
    handler: float = 0.1
    queues: int = 1
    batch: int = 1000


@dataclass(slots=True)
class Run:
    """What it came to."""

    scale: Scale
    far: FarBucket
    seconds: float = 0.0
    processed: int = 0
    late: list[float] = field(default_factory=list[float])

    def summary(self) -> dict[str, Any]:
        far = self.far
        total = far.requests.total()
        waits = sorted(self.late)
        return {
            **asdict(self.scale),
            "virtual_seconds": round(self.seconds, 1),
            "processed": self.processed,
            "requests": dict(far.requests),
            "requests_a_message": round(total / self.processed, 4),
            "requests_a_second": round(total / self.seconds),
            "writes_in_the_busiest_second": far.busiest["write"],
            "reads_in_the_busiest_second": far.busiest["read"],
            "conflicts": far.conflicts,
            "conflicts_in_a_hundred_writes": round(
                100 * far.conflicts / max(1, far.requests["create"] + far.requests["swap"]), 2
            ),
            "seconds_to_start_median": round(waits[len(waits) // 2], 2),
            "seconds_to_start_p99": round(waits[len(waits) * 99 // 100], 2),
            "dollars_a_million": round(load_prices().of(far.requests) / self.processed * 1e6, 3),
        }


async def _simulate(scale: Scale, tell: Callable[[int], None]) -> Run:
    loop = asyncio.get_running_loop()
    far = FarBucket()
    run = Run(scale, far)
    policy = QueuePolicy(visibility_timeout=60)
    names = [f"jobs{n}" for n in range(scale.queues)]
    sender = await far.hub()
    sending = [await sender.queue(name, policy=policy) for name in names]
    batch = min(scale.batch, scale.messages)

    async def produce() -> None:
        under_way: set[asyncio.Task[Any]] = set()
        for number in range(scale.messages // batch):
            sent = sending[number % len(sending)].enqueue_many([f"message {number}"] * batch)
            task = asyncio.create_task(sent)
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            await asyncio.sleep(batch / scale.rate)
        await asyncio.gather(*under_way)

    async def work(number: int) -> None:
        hub = await far.hub()
        queue = await hub.queue(names[number % len(names)], create=False)
        while run.processed < scale.messages:
            claimed = await queue.claim(scale.claim, wait=5)
            if not claimed:
                continue
            now = far.clock.now()
            run.late.extend((now - message.enqueued_at_ms) / 1000 for message in claimed[:1])
            await asyncio.sleep(scale.handler * len(claimed))
            await queue.ack_many(claimed)
            run.processed += len(claimed)
            tell(len(claimed))
            if run.processed >= scale.messages:
                run.seconds = loop.time()
        await hub.close()

    await asyncio.gather(produce(), *(work(number) for number in range(1, scale.workers + 1)))
    await sender.close()
    return run


def simulate(scale: Scale, tell: Callable[[int], None] = lambda _: None) -> Run:
    """Play it to the last ack. `tell` is called with the number of messages that were just acked."""
    return play(lambda: _simulate(scale, tell))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    default = Scale()
    for name, what in (
        ("messages", "how many"),
        ("rate", "messages a second that come in"),
        ("workers", "hubs that claim"),
        ("claim", "messages a claim asks for"),
        ("handler", "seconds that a message takes; one after the other in a worker"),
        ("queues", "queues that they share"),
        ("batch", "messages that an enqueue writes together, in a segment"),
    ):
        value = getattr(default, name)
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"{what} (default: {value:,})")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = vars(parser.parse_args(argv))
    as_json = given.pop("json")
    scale = Scale(**given)
    with Progress(*Progress.get_default_columns(), console=Console(stderr=True), transient=True) as progress:
        shown = progress.add_task(f"{scale.workers:,} workers", total=scale.messages)
        told = simulate(scale, lambda count: progress.advance(shown, count)).summary()
    if as_json:
        print(json.dumps(told))
    else:
        for name, value in told.items():
            print(f"{name.replace('_', ' '):32} {value:,}" if isinstance(value, int | float) else f"{name:32} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
