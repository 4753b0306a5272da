"""Workers: run handlers on claimed messages, keep their leases, settle what comes out.

Worker ── Engine (own thread and event loop: claims, heartbeats, settlements; no user code runs there)
            │
         Backlog (claimed, waiting; by weight)
            │ slots pull
         Executor: threads, an event loop, or processes
"""

from brigade.worker.context import AsyncContext, Context
from brigade.worker.outcomes import Reject, Retry, Snooze
from brigade.worker.restart import Restart
from brigade.worker.worker import Worker, WorkerStatus

__all__ = ["AsyncContext", "Context", "Reject", "Restart", "Retry", "Snooze", "Worker", "WorkerStatus"]
