"""The doctor: tries with real operations whether a store keeps its promises, and says what that means.

"S3-compatible" is a claim. Queues are only as safe as the conditional writes that they stand on, so these are raced
from several connections and threads, and judged by what is there afterwards.
"""

from brigade.doctor.examine import connections_to, examine
from brigade.doctor.report import Finding, Latency, Report, Verdict

__all__ = ["Finding", "Latency", "Report", "Verdict", "connections_to", "examine"]
