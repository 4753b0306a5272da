"""What makes `format("brigade")` known to Spark: it looks for packages named `pyspark_…` with a `DefaultSource`."""

from brigade.spark.source import BrigadeSource as DefaultSource

__all__ = ["DefaultSource"]
