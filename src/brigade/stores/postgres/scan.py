"""Looking through a whole queue in pieces, by columns: what Spark reads. A piece is a range of message numbers."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from brigade.model import FailureInfo
from brigade.stores import Block, Same, ScannedTable
from brigade.stores.history import Attempt
from brigade.stores.postgres.steps import Ask, Row, Steps
from brigade.stores.postgres.wire import failed_message, live_info, plain, ref_of, told_id

__all__ = ["Piece", "pieces", "scan"]

FEWEST, MOST = 2_000, 20_000
"""A piece has about so many rows."""

_EXTENTS: dict[ScannedTable, str] = {
    "messages": "extent",
    "leases": "extent_leased",
    "failed": "extent_parked",
    "history": "extent_ended",
}


class Piece(msgspec.Struct, array_like=True):
    """Message numbers from `low`, below `high`; of history, what finished at `since` or later."""

    low: int
    high: int
    since: int


_attempts = msgspec.json.Decoder(list[Attempt])
_story = msgspec.json.Decoder(FailureInfo)


def pieces(queue_id: int, table: ScannedTable, most: int, since: int) -> Steps[list[bytes]]:
    """Ranges of numbers of the same length; each becomes a block, so there is a most to it."""
    rows = yield Ask(_EXTENTS[table], {"queue": queue_id, **({"since": since} if table == "history" else {})})
    low, high, count = rows[0]
    if not count:
        return []
    parts = max(min(most, -(-count // FEWEST)), -(-count // MOST))
    cuts = [low + (high + 1 - low) * place // parts for place in range(parts + 1)]
    return [msgspec.msgpack.encode(Piece(start, end, since)) for start, end in itertools.pairwise(cuts) if start < end]


def scan(queue: str, queue_id: int, table: ScannedTable, piece: bytes) -> Steps[Block | None]:
    """The rows of a piece."""
    part = msgspec.msgpack.decode(piece, type=Piece)
    params: dict[str, Any] = {"queue": queue_id, "low": part.low, "high": part.high}
    if table == "history":
        rows = yield Ask("scan_ended", {**params, "since": part.since})
        return _ended(queue_id, rows) if rows else None
    if table == "failed":
        rows = yield Ask("scan_parked", params)
        return _parked(queue, rows) if rows else None
    rows = yield Ask("scan_live", {**params, "leased": table == "leases"})
    return _live(queue, queue_id, rows) if rows else None


def _live(queue: str, queue_id: int, rows: Any) -> Block:
    seen = [live_info(queue, queue_id, row[:-1]) for row in rows]
    columns: dict[str, list[Any] | Same] = {
        "state": [one.state.value for one in seen],
        "due_at": [one.due_at_ms for one in seen],
        "enqueued_at": [one.enqueued_at_ms for one in seen],
        "lease_expires_at": [one.lease_expires_at_ms for one in seen],
        "payload": [one.body for one in seen],
        "claimed_at": [row[-1] for row in rows],
    }
    same = ("id", "ref", "priority", "attempts", "max_attempts", "correlation_id", "group", "content_type", "size")
    for name in (*same, "attributes", "owner", "lease_version", "error", "failure"):
        columns[name] = [getattr(one, name) for one in seen]
    return Block(len(seen), columns)


def _parked(queue: str, rows: Any) -> Block:
    seen = [failed_message(queue, row) for row in rows]
    columns: dict[str, list[Any] | Same] = {
        "enqueued_at": [one.failure.enqueued_at_ms for one in seen],
        "payload": [one.body for one in seen],
    }
    for name in ("id", "priority", "correlation_id", "group", "content_type", "size", "attributes", "failure"):
        columns[name] = [getattr(one, name) for one in seen]
    return Block(len(seen), columns)


def _ended(queue_id: int, rows: Any) -> Block:
    names = (
        *("number", "own_id", "outcome", "priority", "enqueued_at", "due_at", "finished_at", "log", "claimed_at"),
        *("owner", "version", "counted", "max_attempts", "content_type", "size", "correlation_id", "group"),
        *("attributes", "reason", "error", "result", "dead_letter_queue", "origin"),
    )
    columns: dict[str, list[Any] | Same] = dict(
        zip(names, (list(column) for column in zip(*rows, strict=True)), strict=True)
    )
    columns["id"] = [told_id(queue_id, row[0], row[1]) for row in rows]
    columns["ref"] = [ref_of(queue_id, row[0]) for row in rows]
    columns["correlation_id"] = [row[15] or told_id(queue_id, row[0], row[1]) for row in rows]
    columns["group"] = [None if row[16] is None else plain(row[16]) for row in rows]
    columns["attributes"] = [None if row[17] is None else msgspec.json.decode(row[17]) for row in rows]
    columns["origin"] = [None if row[22] is None else _story.decode(row[22]) for row in rows]
    columns["attempts"] = [_leases(row) for row in rows]
    columns["written_at"] = columns["finished_at"]
    columns["file"] = Same(None)
    return Block(len(rows), columns)


def _leases(row: Row) -> list[Attempt]:
    """Every lease of a finished message; the last one is in columns of its own."""
    outcome, finished_at, log, claimed_at, owner, version = row[2], row[6], row[7], row[8], row[9], row[10]
    before = [] if log is None else _attempts.decode(log)
    if claimed_at is None or owner is None:
        return before
    how = "acked" if outcome == "processed" else "expired" if row[18] == "lease expired" else "nacked"
    return [*before, Attempt(version, plain(owner), claimed_at, finished_at, how, row[19])]
