"""History as tables: `messages`, one row a message, and `attempts`, one row a lease; Parquet by queue and date.

What needs Spark is imported when it is used: DuckDB reads the same tables without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brigade.spark.history.pipeline import Collected, collect
    from brigade.spark.history.tables import attempts, messages
    from brigade.spark.history.upkeep import Tidied, compact, drop_old

__all__ = ["Collected", "Tidied", "attempts", "collect", "compact", "drop_old", "messages"]

_PLACES = {
    "Collected": "pipeline",
    "Tidied": "upkeep",
    "attempts": "tables",
    "collect": "pipeline",
    "compact": "upkeep",
    "drop_old": "upkeep",
    "messages": "tables",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
