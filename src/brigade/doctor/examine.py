"""The examination: which checks there are, in which order, and what follows from them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from brigade.doctor import conditional, queues, reading, timing
from brigade.doctor.lab import Connect, Lab
from brigade.doctor.report import Finding, Latency, Report, Verdict, fail, warn
from brigade.errors import BrigadeError
from brigade.ids import Ids
from brigade.stores.opening import open_store, parse_url

__all__ = ["BUCKET_CHECKS", "STORE_CHECKS", "Check", "connections_to", "examine"]

CONNECTIONS = 6
LONGEST = 120.0
Tell = Callable[[str, int, int], None]
"""Told before each check: its name, its number and how many there are."""


class Check(NamedTuple):
    """A promise and how it is tried."""

    name: str
    run: Callable[[Lab], Awaitable[Finding]]


BUCKET_CHECKS: Sequence[Check] = (
    Check("read after write", reading.read_after_write),
    Check("create of a taken key", conditional.create_taken),
    Check("create race", conditional.create_race),
    Check("swap by an old etag", conditional.swap_stale),
    Check("swap race", conditional.swap_race),
    Check("lost updates", conditional.no_lost_updates),
    Check("delete against swap", conditional.delete_race),
    Check("returning etags", conditional.returning_etags),
    Check("list after write", reading.listing),
    Check("order of listings", reading.listing_order),
    Check("keys", reading.keys),
    Check("copies", reading.copies),
    Check("streams", reading.streams),
    Check("clock", timing.clock),
    Check("notifications", timing.watching),
)
"""What a bucket store stands on, by the contract in `brigade.blobs`."""

_OF_BUCKETS = frozenset(check.name for check in BUCKET_CHECKS)

STORE_CHECKS: Sequence[Check] = (
    Check("claim race", queues.claim_race),
    Check("stale tokens", queues.stale_tokens),
    Check("acks", queues.acks_last),
    Check("wake-up", queues.wake_up),
)
"""What every store promises, by the contract in `brigade.stores`."""


def connections_to(url: str) -> Connect:
    """How to connect to the store behind a URL, any number of times."""
    parse_url(url, {})
    place = f"memory://~{Ids().bits(64):x}" if url == "memory://" else url
    return lambda: open_store(place, {})


async def examine(connect: Connect, *, quick: bool = False, tell: Tell | None = None) -> Report:
    """Try every promise of a store with real operations, under names of its own that are removed in the end.

    Raises what keeps the store from being opened. A promise that is broken is a finding, and so is an error in
    the middle. Where the bucket is not safe, queues are not tried.
    """
    lab = Lab(connect, connections=CONNECTIONS if not quick else CONNECTIONS // 2, quick=quick)
    findings: list[Finding] = []
    latencies: list[Latency] = []
    leftover: list[str] = []
    try:
        await lab.open()
        checks = [*(BUCKET_CHECKS if lab.is_bucket else ()), *STORE_CHECKS]
        total = len(checks) + lab.is_bucket
        for number, check in enumerate(checks, start=1):
            if tell is not None:
                tell(check.name, number, total)
            findings.append(replace(await _carried_out(lab, check, findings), check=check.name))
        if lab.is_bucket:
            if tell is not None:
                tell("latency", total, total)
            findings.append(replace(await _latency(lab, latencies), check="latency"))
    finally:
        leftover += await _removed(lab)
    if leftover:
        seen = f"objects under {' and '.join(leftover)} could not be removed"
        findings.append(replace(warn(seen, "they disturb nothing: remove them by hand"), check="clean-up"))
    return Report(findings, latencies, leftover)


async def _carried_out(lab: Lab, check: Check, before: Sequence[Finding]) -> Finding:
    if check in STORE_CHECKS and any(one.verdict is Verdict.FAIL and one.check in _OF_BUCKETS for one in before):
        return Finding(Verdict.SKIPPED, "not tried, since the bucket is not safe")
    try:
        async with asyncio.timeout(LONGEST):
            return await check.run(lab)
    except TimeoutError:
        return fail(f"not done within {LONGEST:.0f} s", "the store is too slow, or an operation never ends")
    except BrigadeError as error:
        return fail(str(error), "the store doesn't do what queues need of it")
    except Exception as error:
        return fail(f"{type(error).__name__}: {error}", "the store doesn't do what queues need of it")


async def _latency(lab: Lab, latencies: list[Latency]) -> Finding:
    try:
        latencies += await timing.latencies(lab)
    except BrigadeError as error:
        return fail(str(error), "the store doesn't do what queues need of it")
    return timing.speed(latencies)


async def _removed(lab: Lab) -> list[str]:
    """Clean up to the end, whatever is cancelled meanwhile."""
    cleaning = asyncio.ensure_future(lab.close())
    cancelled: asyncio.CancelledError | None = None
    while not cleaning.done():
        try:
            await asyncio.shield(cleaning)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return cleaning.result()
