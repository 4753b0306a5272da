"""`settle(df)`: ack, retry or dead-letter leased messages, as a DataFrame says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brigade.spark.source.options import Settings
from brigade.spark.source.settling import COUNTED, COUNTS, Outcomes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["settle"]


def settle(df: DataFrame, *, url: str, queue: str, **options: str) -> dict[str, int]:
    """Settle the messages of a micro-batch one by one; returns how many were `ok`, `retry`, `dead` and `stale`.

    The rows keep `id`, `ref` and `lease_token` of the stream, and add `outcome`: `ok` (with `result`), `retry`
    (with `delay` and `reason`) or `dead` (with `reason`). What no row names is acked with its batch.
    """
    given = Settings({"url": url, "queue": queue, **options})
    outcomes = Outcomes.of(given.place(), given.queue(), df.schema)
    chosen: Any = df.select(*outcomes.columns)
    rows = chosen.mapInArrow(outcomes.counted, COUNTED).groupBy().sum(*COUNTS).collect()
    return {name: int(rows[0][f"sum({name})"] or 0) for name in COUNTS}
