"""Time: the store's clock, how long operations take, and whether the store tells of changes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from brigade.blobs import Create, Delete, Get, List, Swap
from brigade.clock import wall_ns
from brigade.doctor.lab import Connection, Lab
from brigade.doctor.report import Finding, Latency, fail, ok, quantile, warn

__all__ = ["clock", "latencies", "speed", "watching"]

NEAR = 2.0
FAR = 30.0
SLOW = 2000.0
TOLD_WITHIN = 5.0


async def clock(lab: Lab) -> Finding:
    """The offset of the clock that Brigade works by to the store's, as objects are stamped."""
    best: tuple[float, float, float] | None = None
    whole_seconds = True
    for turn in range(lab.scale(3, 7)):
        key = lab.key(f"clock-{turn}")
        connection = lab.connection(turn)
        before, machine = connection.store.clock.now(), wall_ns() // 1_000_000
        await lab.write(Create(key, lab.body("clock")), by=turn)
        after = connection.store.clock.now()
        found = await lab.get(key, by=turn)
        if found is None:
            return fail("an object could not be read back", "the store's time cannot be had")
        whole_seconds = whole_seconds and found.modified % 1000 == 0
        moment = (before + after) / 2 + (-500 if whole_seconds else 0)
        sample = (after - before, (found.modified - moment) / 1000, (before - machine) / 1000)
        best = min(best or sample, sample)
    assert best is not None
    trip, offset, corrected = best
    exact = trip / 2000 + (0.5 if whole_seconds else 0)
    said = f"{abs(offset):.2f} s {'ahead' if offset > 0 else 'behind'}, give or take {exact:.2f} s"
    if abs(corrected) > NEAR:
        said += f"; this machine's own clock is {abs(corrected):.0f} s off, which Brigade makes up for"
    if abs(offset) <= NEAR + exact:
        return ok(said)
    if abs(offset) <= FAR:
        return warn(said, "leases run out early or late by as much: set the machine's clock by NTP")
    return fail(said, "leases mean nothing, and clean-up may take new objects for old ones: set the clock by NTP")


async def latencies(lab: Lab) -> list[Latency]:
    """How long each kind of operation takes, one after the other on one connection."""
    taken: dict[str, list[float]] = {name: [] for name in ("create", "get", "swap", "list", "delete")}

    async def timed(name: str, work: Callable[[], Awaitable[object]]) -> object:
        started = lab.monotonic()
        answer = await work()
        taken[name].append((lab.monotonic() - started) * 1000)
        return answer

    async def measure(connection: Connection) -> None:
        blobs = connection.blobs
        for turn in range(lab.scale(10, 40)):
            key = lab.key(f"latency-{turn}")
            etag = await timed("create", lambda key=key: blobs.perform(Create(key, lab.body("x" * 1000))))
            await timed("get", lambda key=key: blobs.perform(Get(key)))
            swap = Swap(key, lab.body("y" * 1000), str(etag))
            await timed("swap", lambda swap=swap: blobs.perform(swap))
            await timed("list", lambda: blobs.perform(List(lab.prefix("latency-"), "", 100)))
            await timed("delete", lambda key=key: blobs.perform(Delete((key,))))

    await lab.connection().run(lambda: measure(lab.connection()))
    return [Latency(name, quantile(values, 0.5), quantile(values, 0.95)) for name, values in taken.items()]


def speed(found: list[Latency]) -> Finding:
    """What the latencies mean."""
    slowest = max(found, key=lambda latency: latency.p95)
    said = f"a {slowest.operation} takes the longest: {slowest.p50:.1f} ms, 95 in 100 within {slowest.p95:.1f} ms"
    if slowest.p95 > SLOW:
        return warn(said, f"set visibility_timeout to {slowest.p95 * 30 / 1000:.0f} s or more, and send in batches")
    return ok(said)


async def watching(lab: Lab) -> Finding:
    """Whether a write on one connection is told to another one."""
    watcher = lab.connection(1)
    prefix = lab.queue_prefix("seg/")
    told, keys = threading.Event(), [lab.queue_key(f"seg/news-{turn}") for turn in range(20)]

    def wake(key: str) -> None:
        if key in keys:
            told.set()

    stop = await watcher.run(lambda: _watch(watcher, prefix, wake))
    if stop is None:
        every = watcher.blobs.poll_interval
        return ok(
            "the store doesn't tell", f"waiting claims look every {every:g} s at the latest, sooner after traffic"
        )
    started = lab.monotonic()
    try:
        for turn, key in enumerate(keys):
            await lab.write(Create(key, lab.body("news")), by=2)
            if await asyncio.to_thread(told.wait, TOLD_WITHIN / len(keys)):
                took = (lab.monotonic() - started) * 1000
                return ok(f"told after {took:.0f} ms" if turn == 0 else "told")
    finally:
        stop()
    return warn(
        f"the store promised to tell of changes, and didn't within {TOLD_WITHIN:g} s",
        "waiting claims look every 30 s only: connect with watch=off to have them poll",
    )


async def _watch(connection: Connection, prefix: str, wake: Callable[[str], None]) -> Callable[[], None] | None:
    return connection.blobs.watch(prefix, wake)
