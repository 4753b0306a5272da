"""The sweeper: decides what nobody claims any more, lets history go by days, and removes what belongs to nobody."""

from __future__ import annotations

from brigade.clock import to_ms
from brigade.policy import QueuePolicy
from brigade.stores.postgres.bulk import STAGED_FOR
from brigade.stores.postgres.claim import Taking, Won, claim_lanes, decide
from brigade.stores.postgres.steps import Ask, Steps

__all__ = ["DAY", "LEFTOVER_AGE", "decide_all", "sweep_leftovers"]

DAY = 86_400_000
LEFTOVER_AGE = 3_600_000
MOST_LANES = 10_000


def decide_all(queue: str, queue_id: int, *, lifo: bool) -> Steps[Won]:
    """Fail whatever is spent or has lapsed, in lanes too. Needs a transaction."""
    won = yield from decide(queue, queue_id)
    taking = Taking(queue, queue_id, lifo, "", "", 0)
    won.add((yield from claim_lanes(taking, MOST_LANES, lease=False)))
    return won


def sweep_leftovers(queue_id: int, policy: QueuePolicy, now: int) -> Steps[tuple[int, int]]:
    """Remove what belongs to no message, and what is past its retention: orphans and expired records."""
    young = now - LEFTOVER_AGE
    orphans = 0
    for name, params in (
        ("sweep_states", {"queue": queue_id, "before": young}),
        ("sweep_blobs", {"before": young}),
        ("sweep_strays", {"before": young}),
    ):
        orphans += (yield Ask(name, params))[0][0]
    orphans += (yield Ask("sweep_staged", {"queue": queue_id, "before": now - STAGED_FOR}))[0][0]
    kept_ids = now - max(to_ms(policy.retention), LEFTOVER_AGE)
    expired: int = (yield Ask("sweep_ids", {"queue": queue_id, "before": kept_ids}))[0][0]
    yield Ask("fold_counts", {"queue": queue_id, "slot": None})
    longest, _ = (yield Ask("longest_retention"))[0]
    expired += (yield Ask("sweep_rest", {"before": now - longest}))[0][0]
    mine = to_ms(policy.retention)
    if mine < longest:
        for (day,) in (yield Ask("old_days", {"queue": queue_id, "day": (now - mine) // DAY})):
            expired += (yield Ask("forget_history", {"queue": queue_id, "day": day}))[0][0]
    return orphans, expired
