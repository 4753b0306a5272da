"""Bulk operations on what SQL chooses: failures brought back, waiting messages cancelled or given another priority."""

from brigade.spark.bulk.chosen import Done, backlog, cancel, choose, failures, redrive, reprioritize

__all__ = ["Done", "backlog", "cancel", "choose", "failures", "redrive", "reprioritize"]
