"""Workers on Spark's executors."""

from brigade.spark.fleet.fleet import Fleet, Progress, run

__all__ = ["Fleet", "Progress", "run"]
