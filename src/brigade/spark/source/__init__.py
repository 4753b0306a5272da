"""`format("brigade")`: queues as something that Spark reads and writes."""

from brigade.spark.source.source import BrigadeSource

__all__ = ["BrigadeSource"]
