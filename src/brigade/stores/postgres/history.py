"""History read as a whole: in parts by id, so that several processes can share them."""

from __future__ import annotations

import msgspec

from brigade.stores.history import NULL, Attempt, HistoryPart, Record
from brigade.stores.postgres.steps import Ask, Row, Steps
from brigade.stores.postgres.wire import plain, ref_of, story, told_id

__all__ = ["list_parts", "read_part"]

PART = 20_000
"""About how many records a part has."""

_log = msgspec.json.Decoder(list[Attempt])
_HOW = {"failed": "nacked", "rejected": "nacked", "lease expired": "expired"}


def list_parts(queue: str, queue_id: int, since: int) -> Steps[list[HistoryPart]]:
    """What has ended since then, cut into ranges of ids."""
    rows = yield Ask("history_span", {"queue": queue_id, "since": since})
    low, high, count, last = rows[0]
    if not count:
        return []
    pieces = -(-count // PART)
    step = -(-(high - low + 1) // pieces)
    return [
        HistoryPart(queue, f"{start}-{min(start + step - 1, high)}-{since}", last, count // pieces)
        for start in range(low, high + 1, step)
    ]


def read_part(part: HistoryPart, queue_id: int) -> Steps[list[Record]]:
    low, high, since = map(int, part.key.split("-"))
    rows = yield Ask("read_history", {"queue": queue_id, "low": low, "high": high, "since": since})
    return [_record(part.queue, queue_id, row) for row in rows]


def _record(queue: str, queue_id: int, row: Row) -> Record:
    (
        id,
        finished_at,
        enqueued_at,
        due_at,
        claimed_at,
        size,
        attempts,
        limit,
        version,
        priority,
        outcome,
        owner,
        reason,
        error,
        letters,
        group,
        own_id,
        correlation,
        content_type,
        attributes,
        failure,
        log,
        result,
        lane,
    ) = row
    leases = [] if log is None else _log.decode(log)
    for lease in leases:
        lease.owner = plain(lease.owner)
    if owner is not None:
        how = "acked" if reason is None else _HOW.get(reason, "expired")
        leases.append(Attempt(version, plain(owner), claimed_at, finished_at, how, error))
    name = told_id(queue_id, id, own_id)
    return Record(
        name,
        ref_of(queue_id, id),
        queue,
        outcome,
        priority,
        enqueued_at,
        max(due_at, enqueued_at),
        finished_at,
        leases,
        attempts,
        limit,
        content_type,
        size,
        correlation or name,
        None if group is None else plain(group),
        None if attributes is None else msgspec.json.decode(attributes),
        reason,
        error,
        NULL if result is None else msgspec.Raw(result.encode()),
        letters,
        story(failure),
        None if lane is None else plain(lane),
    )
