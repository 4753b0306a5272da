"""The columns of the tables. Nothing here needs Spark.

New columns go at the end of a table and may be null: tables that an older version wrote are read with nulls there.
"""

from __future__ import annotations

__all__ = ["ATTEMPTS", "LEASES", "MESSAGES", "RECORDS", "SCHEMA"]

SCHEMA = 1
"""The version of the tables. It grows when a reader of an older version would go wrong."""

_LEASE = "struct<version:int,owner:string,claimed_at:timestamp,ended_at:timestamp,how:string,error:string>"
LEASES = f"array<{_LEASE}>"
MESSAGES: dict[str, str] = {
    "ref": "string",
    "id": "string",
    "outcome": "string",
    "reason": "string",
    "error": "string",
    "priority": "int",
    "group_name": "string",
    "lane": "string",
    "ordering": "string",
    "correlation_id": "string",
    "content_type": "string",
    "size": "bigint",
    "attributes": "string",
    "enqueued_at": "timestamp",
    "due_at": "timestamp",
    "started_at": "timestamp",
    "finished_at": "timestamp",
    "wait_ms": "bigint",
    "run_ms": "bigint",
    "total_ms": "bigint",
    "attempts": "int",
    "counted": "int",
    "max_attempts": "int",
    "worker": "string",
    "result_size": "bigint",
    "dead_letter_queue": "string",
    "origin_queue": "string",
    "origin_id": "string",
    "segment": "string",
    "place": "int",
    "segment_size": "int",
    "absent": "int",
    "queue": "string",
    "date": "date",
}
"""One row a message. `wait_ms`: due to first claim; `run_ms`: the last lease; `total_ms`: enqueued to finished.

`segment_size` is how many messages were written together, `absent` how many of those left no record, being purged.
"""

ATTEMPTS: dict[str, str] = {
    "ref": "string",
    "id": "string",
    "number": "int",
    "version": "int",
    "owner": "string",
    "claimed_at": "timestamp",
    "ended_at": "timestamp",
    "how": "string",
    "error": "string",
    "held_ms": "bigint",
    "outcome": "string",
    "queue": "string",
    "date": "date",
}
"""One row a lease. `how` is acked, nacked, released or expired."""

RECORDS: dict[str, str] = {**MESSAGES, "result": "string", "leases": LEASES}
"""What executors read: a message, its result as JSON, and its leases."""
