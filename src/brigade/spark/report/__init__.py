"""Reports over history: tables, and a page with charts."""

from brigade.spark.report.page import page
from brigade.spark.report.report import Report, report, save_tables

__all__ = ["Report", "page", "report", "save_tables"]
