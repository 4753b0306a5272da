"""What a report asks of the tables, as SQL that Spark and DuckDB both understand."""

from __future__ import annotations

__all__ = ["QUESTIONS", "STEPS", "step_for"]

STEPS = (1, 5, 10, 30, 60, 300, 900, 3600, 14_400, 86_400)
"""Seconds that a point of a chart may stand for."""

POINTS = 180


def step_for(seconds: float) -> int:
    """The shortest step that keeps a chart readable; a minute or more where the time allows it."""
    return next((step for step in STEPS if seconds / step <= POINTS), STEPS[-1])


def _percentiles(column: str, prefix: str) -> str:
    return ", ".join(
        f"percentile_cont(0.{share}) WITHIN GROUP (ORDER BY {column}) AS {prefix}_p{share}" for share in (50, 95, 99)
    )


_OUTCOMES = """
    sum(CASE WHEN outcome = 'processed' THEN 1 ELSE 0 END) AS processed,
    sum(CASE WHEN outcome = 'failed' THEN 1 ELSE 0 END) AS failed,
    sum(CASE WHEN outcome = 'dead-lettered' THEN 1 ELSE 0 END) AS dead,
    sum(CASE WHEN counted > 1 THEN 1 ELSE 0 END) AS retried
"""

QUEUES = f"""
SELECT queue, count(*) AS messages, {_OUTCOMES}, sum(attempts) AS attempts,
       min(enqueued_at) AS first_at, max(finished_at) AS last_at, sum(size) AS bytes, max(total_ms) AS total_max,
       {_percentiles("wait_ms", "wait")}, {_percentiles("run_ms", "run")}
FROM messages GROUP BY queue ORDER BY queue
"""

TIMELINE = f"""
SELECT queue, cast(floor(unix_millis(finished_at) / {{step}}000) AS bigint) * {{step}}000 AS at_ms,
       count(*) AS finished, {_OUTCOMES}, {_percentiles("wait_ms", "wait")}, {_percentiles("run_ms", "run")}
FROM messages GROUP BY 1, 2 ORDER BY 1, 2
"""

MINUTES = f"""
SELECT queue, date_trunc('minute', finished_at) AS minute,
       count(*) AS finished, {_OUTCOMES}, {_percentiles("wait_ms", "wait")}, {_percentiles("run_ms", "run")}
FROM messages GROUP BY 1, 2 ORDER BY 1, 2
"""

ARRIVALS = """
SELECT queue, cast(floor(unix_millis(enqueued_at) / {step}000) AS bigint) * {step}000 AS at_ms, count(*) AS enqueued
FROM messages GROUP BY 1, 2 ORDER BY 1, 2
"""

ERRORS = """
SELECT queue, substr(coalesce(error, how), 1, 200) AS error, how, count(*) AS times, count(DISTINCT ref) AS messages,
       max(ended_at) AS last_at
FROM attempts WHERE how IN ('nacked', 'expired')
GROUP BY 1, 2, 3 ORDER BY times DESC, queue, error LIMIT 20
"""

SLOWEST = """
SELECT queue, id, outcome, attempts, wait_ms, run_ms, total_ms, worker, started_at
FROM messages WHERE run_ms IS NOT NULL ORDER BY run_ms DESC, id LIMIT 20
"""

WORKERS = """
SELECT owner, count(*) AS leases, sum(CASE WHEN how = 'acked' THEN 1 ELSE 0 END) AS acked,
       sum(CASE WHEN how = 'nacked' THEN 1 ELSE 0 END) AS nacked,
       sum(CASE WHEN how = 'expired' THEN 1 ELSE 0 END) AS expired,
       sum(CASE WHEN how = 'released' THEN 1 ELSE 0 END) AS released,
       min(claimed_at) AS first_at, max(ended_at) AS last_at,
       count(*) * 1.0 / sum(count(*)) OVER () AS share
FROM attempts GROUP BY owner ORDER BY leases DESC, owner LIMIT 50
"""

REQUESTS = """
SELECT m.queue, count(*) AS segments, coalesce(sum(m.claims), 0) AS claims, coalesce(sum(m.swaps), 0) AS swaps
FROM (
    SELECT s.queue, s.segment, max(c.claims) AS claims, max(c.swaps) AS swaps
    FROM (SELECT DISTINCT queue, segment FROM messages WHERE segment IS NOT NULL) s
    LEFT JOIN (
        SELECT a.queue, x.segment, count(DISTINCT a.version) AS claims, count(DISTINCT a.ended_at) AS swaps
        FROM attempts a JOIN messages x ON x.queue = a.queue AND x.ref = a.ref
        WHERE x.segment IS NOT NULL GROUP BY a.queue, x.segment
    ) c ON c.queue = s.queue AND c.segment = s.segment
    GROUP BY s.queue, s.segment
) m
GROUP BY m.queue ORDER BY m.queue
"""

QUESTIONS = {
    "queues": QUEUES,
    "timeline": TIMELINE,
    "arrivals": ARRIVALS,
    "minutes": MINUTES,
    "errors": ERRORS,
    "slowest": SLOWEST,
    "workers": WORKERS,
    "requests": REQUESTS,
}
