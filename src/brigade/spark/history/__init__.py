"""History as tables: `messages`, one row a message, and `attempts`, one row a lease; Parquet by queue and date."""

from brigade.spark.history.pipeline import Collected, collect
from brigade.spark.history.tables import attempts, messages
from brigade.spark.history.upkeep import Tidied, compact, drop_old

__all__ = ["Collected", "Tidied", "attempts", "collect", "compact", "drop_old", "messages"]
