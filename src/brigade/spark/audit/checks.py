"""What the audit looks for, as SQL: each check finds the rows that break a guarantee, and none where it holds.

`{slack}` are the milliseconds by which two clocks may differ; `{late}` adds how long an enqueue may take. Every
answer has the columns queue, ref, id, happened_at and detail.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CHECKS", "EXPECTED", "LATE", "Check"]

LATE = 600_000
"""Milliseconds after which a writer of two steps gives the second one up: until then a message may join its lane."""


class Check(NamedTuple):
    """One thing that must not be, and the guarantee in docs/reliability.md that says so."""

    name: str
    guarantee: str
    title: str
    sql: str


_SEEN = """
SELECT a.*,
       min(CASE WHEN a.how = 'acked' THEN a.version END) OVER (PARTITION BY a.queue, a.ref) AS acked_version,
       min(CASE WHEN a.how = 'acked' THEN a.ended_at END) OVER (PARTITION BY a.queue, a.ref) AS acked_at,
       sum(CASE WHEN a.how = 'acked' THEN 1 ELSE 0 END) OVER (PARTITION BY a.queue, a.ref) AS acks
FROM attempts a
"""

LOST_FROM_SEGMENT = """
SELECT s.queue, s.segment AS ref, s.segment AS id, s.happened_at,
       concat(cast(s.size - s.found - s.absent AS string), ' of the ', cast(s.size AS string),
              ' messages that were written together have no end') AS detail
FROM (
    SELECT queue, segment, count(DISTINCT place) AS found, max(segment_size) AS size, max(absent) AS absent,
           min(enqueued_at) AS born, max(finished_at) AS happened_at
    FROM messages WHERE segment IS NOT NULL GROUP BY queue, segment
) s
JOIN (SELECT queue, min(date) AS first_day FROM messages GROUP BY queue) d ON d.queue = s.queue
WHERE s.found + s.absent < s.size AND cast(s.born AS date) >= d.first_day
"""

REDELIVERED = f"""
SELECT s.queue, s.ref, s.id, s.claimed_at AS happened_at,
       CASE WHEN s.how = 'acked' AND s.acks > 1
            THEN concat('lease ', cast(s.version AS string), ' of ', s.owner, ' is one of ', cast(s.acks AS string),
                        ' that were acked')
            ELSE concat('lease ', cast(s.version AS string), ' of ', s.owner, ' was given out after lease ',
                        cast(s.acked_version AS string), ' had been acked') END AS detail
FROM ({_SEEN}) s
WHERE unix_millis(s.claimed_at) > unix_millis(s.acked_at) + {{slack}}
   OR (s.version > s.acked_version AND unix_millis(s.claimed_at) + {{slack}} >= unix_millis(s.acked_at))
   OR (s.how = 'acked' AND s.acks > 1)
"""

OVERLAPPING = """
SELECT s.queue, s.ref, s.id, s.claimed_at AS happened_at,
       concat('lease ', cast(s.version AS string), ' of ', s.owner, ' began ',
              cast(unix_millis(s.before) - unix_millis(s.claimed_at) AS string),
              ' ms before an earlier lease had ended') AS detail
FROM (
    SELECT a.*, max(a.ended_at) OVER (
        PARTITION BY a.queue, a.ref ORDER BY a.version, a.claimed_at
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM attempts a
) s
WHERE unix_millis(s.before) > unix_millis(s.claimed_at) + {slack}
"""
"""Versions say which lease is the earlier one: clocks that are off might not."""

VERSIONS = """
SELECT s.queue, s.ref, s.id, s.claimed_at AS happened_at,
       CASE WHEN s.twice > 1
            THEN concat('version ', cast(s.version AS string), ' was given out ', cast(s.twice AS string), ' times')
            ELSE concat('version ', cast(s.version AS string), ' of ', s.owner, ' came after version ',
                        cast(s.before AS string)) END AS detail
FROM (
    SELECT a.*,
           count(*) OVER (PARTITION BY a.queue, a.ref, a.version) AS twice,
           max(a.version) OVER (
               PARTITION BY a.queue, a.ref ORDER BY unix_millis(a.claimed_at)
               RANGE BETWEEN UNBOUNDED PRECEDING AND {beyond} PRECEDING) AS before
    FROM attempts a
) s
WHERE s.twice > 1 OR s.before >= s.version
"""

OVER_LIMIT = """
SELECT m.queue, m.ref, m.id, m.finished_at AS happened_at,
       concat(cast(greatest(m.counted, coalesce(a.counted, 0)) AS string), ' attempts, ',
              cast(m.max_attempts AS string), ' were allowed') AS detail
FROM messages m
LEFT JOIN (
    SELECT queue, ref, count(*) AS counted FROM attempts WHERE how <> 'released' GROUP BY queue, ref
) a ON a.queue = m.queue AND a.ref = m.ref
WHERE m.counted > m.max_attempts OR a.counted > m.max_attempts
"""

UNEXPLAINED = """
SELECT m.queue, m.ref, m.id, m.finished_at AS happened_at,
       concat('it is told to be ', m.outcome, ', with ', cast(coalesce(a.acks, 0) AS string), ' acks') AS detail
FROM messages m
LEFT JOIN (
    SELECT queue, ref, sum(CASE WHEN how = 'acked' THEN 1 ELSE 0 END) AS acks FROM attempts GROUP BY queue, ref
) a ON a.queue = m.queue AND a.ref = m.ref
WHERE (m.outcome = 'processed') <> (coalesce(a.acks, 0) > 0)
"""

OUT_OF_ORDER = """
SELECT s.queue, s.ref, s.id, s.started_at AS happened_at,
       concat('it was claimed ', cast(unix_millis(s.before) - unix_millis(s.started_at) AS string),
              ' ms before one ahead of it in its lane had ended') AS detail
FROM (
    SELECT m.*, greatest(
        coalesce(max(m.finished_at) OVER (
            PARTITION BY m.queue, m.lane ORDER BY unix_millis(m.enqueued_at)
            RANGE BETWEEN UNBOUNDED PRECEDING AND {late} PRECEDING), m.started_at),
        coalesce(max(m.finished_at) OVER (
            PARTITION BY m.queue, m.lane ORDER BY unix_millis(m.started_at)
            RANGE BETWEEN UNBOUNDED PRECEDING AND {beyond} PRECEDING), m.started_at),
        least(m.finished_at, coalesce(max(m.finished_at) OVER (
            PARTITION BY m.queue, m.lane ORDER BY m.started_at, m.finished_at
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), m.started_at)),
        coalesce(max(m.finished_at) OVER (
            PARTITION BY m.queue, m.lane, coalesce(m.segment, '')
            ORDER BY coalesce(m.place, cast(split_part(m.ref, '-', 2) AS bigint))
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), m.started_at)) AS before
    FROM messages m WHERE m.lane IS NOT NULL AND m.ordering = 'fifo' AND m.started_at IS NOT NULL
) s
WHERE unix_millis(s.before) > unix_millis(s.started_at) + {slack}
"""
"""Ahead is what lies further ahead in the same write; what was enqueued longer ago than an enqueue can take until it
is in the lane; and what was begun: between a message's first claim and its end nobody else may be claimed. Which of two
began first is not sure where clocks may be off, but then they must not have been under way together for longer than
that."""

LANE_SHARED = """
SELECT s.queue, s.ref, s.id, s.claimed_at AS happened_at,
       concat('two messages of one lane were leased at once: lease ', cast(s.version AS string), ' of ', s.owner,
              ' began ', cast(unix_millis(s.before) - unix_millis(s.claimed_at) AS string), ' ms early') AS detail
FROM (
    SELECT a.*, greatest(
        coalesce(max(a.ended_at) OVER (
            PARTITION BY a.queue, m.lane ORDER BY unix_millis(a.claimed_at)
            RANGE BETWEEN UNBOUNDED PRECEDING AND {beyond} PRECEDING), a.claimed_at),
        least(a.ended_at, coalesce(max(a.ended_at) OVER (
            PARTITION BY a.queue, m.lane ORDER BY a.claimed_at, a.ended_at
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), a.claimed_at))) AS before
    FROM attempts a JOIN messages m ON m.queue = a.queue AND m.ref = a.ref
    WHERE m.lane IS NOT NULL
) s
WHERE unix_millis(s.before) > unix_millis(s.claimed_at) + {slack}
"""
"""As with the order: surely begun before, or together for longer than clocks may be off."""

CHECKS = (
    Check("lost", "G1", "messages that vanished from what was written together", LOST_FROM_SEGMENT),
    Check("unexplained", "G1", "outcomes that no lease explains", UNEXPLAINED),
    Check("overlap", "G2", "leases of one message at the same time", OVERLAPPING),
    Check("version", "G2", "lease versions that don't grow", VERSIONS),
    Check("redelivered", "G3", "deliveries after an ack", REDELIVERED),
    Check("attempts", "G4", "more attempts than allowed", OVER_LIMIT),
    Check("order", "G6", "messages of a strict lane that overtook another", OUT_OF_ORDER),
    Check("lane", "G6", "two messages of a strict lane leased at the same time", LANE_SHARED),
)

EXPECTED = Check(
    "missing",
    "G1",
    "messages that were enqueued and are nowhere",
    """
SELECT '' AS queue, e.id AS ref, e.id, cast(NULL AS timestamp) AS happened_at,
       'it was enqueued and has no end' AS detail
FROM expected e
LEFT JOIN (SELECT DISTINCT id FROM messages UNION SELECT DISTINCT ref FROM messages) m ON m.id = e.id
WHERE m.id IS NULL
""",
)
"""Where the caller knows what was enqueued. What is found here may still be waiting in a queue."""
