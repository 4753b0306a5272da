"""Who holds what: from the leases themselves, since workers are known to nobody but the store."""

from __future__ import annotations

from dataclasses import dataclass, field

from starlette.responses import Response

from brigade.errors import QueueNotFound
from brigade.operator import Operator
from brigade.server.dashboard.visit import Visit
from brigade.survey import Held

__all__ = ["parts", "workers"]

TEMPLATE = "workers.html"
PARTS = "parts/workers.html"
MOST_QUEUES = 40
SINCE = 300.0


@dataclass(slots=True)
class Holder:
    """A worker as its leases and what it has finished tell of it."""

    owner: str
    held: int = 0
    queues: set[str] = field(default_factory=set[str])
    refs: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    longest_ms: int = 0
    heartbeat: float | None = None
    expired: int = 0
    finished: int = 0
    failed: int = 0


@dataclass(slots=True)
class Crew:
    """Everybody who holds something, or finished something in the last minutes."""

    holders: list[Holder]
    looked: int
    more: bool


async def crew(visit: Visit) -> Crew:
    watch = visit.desk.watch
    now = visit.now
    busy = [
        name
        for name in watch.names
        if visit.visitor.may("read", name)
        and (stats := watch.figures(name).stats) is not None
        and (stats.in_flight or _active(visit, name))
    ]
    found: dict[str, Holder] = {}
    for name in busy[:MOST_QUEUES]:
        try:
            queue = await visit.desk.service.queue(name)
            operator = Operator(queue)
            leases = await operator.leases(2000)
            tail = await operator.tail(since=SINCE, limit=2000)
        except QueueNotFound:
            continue
        length = queue.policy.visibility_timeout
        for lease in leases:
            holder = found.setdefault(lease.owner, Holder(lease.owner))
            holder.held += 1
            holder.queues.add(name)
            if len(holder.refs) < 3:
                holder.refs.append((name, lease.ref))
            holder.longest_ms = max(holder.longest_ms, now - lease.claimed_at_ms)
            if lease.expires_at_ms <= now:
                holder.expired += 1
            beat = _heartbeat(lease, length, now)
            if beat is not None:
                holder.heartbeat = beat if holder.heartbeat is None else min(holder.heartbeat, beat)
        for ended in tail.ended:
            if ended.attempts and ended.finished_at_ms >= now - SINCE * 1000:
                holder = found.setdefault(ended.attempts[-1].owner, Holder(ended.attempts[-1].owner))
                holder.queues.add(name)
                if ended.outcome == "processed":
                    holder.finished += 1
                else:
                    holder.failed += 1
    holders = sorted(found.values(), key=lambda one: (-one.held, -one.finished, one.owner))
    return Crew(holders[:500], len(busy[:MOST_QUEUES]), len(busy) > MOST_QUEUES)


def _heartbeat(lease: Held, length: float, now: int) -> float | None:
    """Seconds since the lease was taken or last extended by the policy's length; None where it has another length."""
    since = length - (lease.expires_at_ms - now) / 1000
    return min(since, (now - lease.claimed_at_ms) / 1000) if since >= 0 else None


def _active(visit: Visit, name: str) -> bool:
    """Whether something has ended here since somebody looks; at the first look, whether anything has."""
    samples = visit.desk.watch.figures(name).samples
    first, last = samples[0].stats, samples[-1].stats
    ended = last.succeeded + last.failed + last.dead_lettered
    return ended > (first.succeeded + first.failed + first.dead_lettered) if len(samples) > 5 else ended > 0


async def workers(visit: Visit) -> Response:
    await visit.desk.watch.glimpse()
    return visit.page(TEMPLATE, crew=await crew(visit), minutes=round(SINCE / 60))


async def parts(visit: Visit) -> dict[str, str]:
    found = await crew(visit)
    return {"crew": visit.desk.render.part(PARTS, "crew_part", found, visit.now, round(SINCE / 60))}
