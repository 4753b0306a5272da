"""Brigade: a durable job queue that lives in a bucket.

with brigade.connect("file://./jobs") as hub:
    tasks = hub.queue("tasks")
    tasks.enqueue({"type": "email"})
    for message in tasks.claim(limit=10, wait=5):
        tasks.ack(message, result={"ok": True})
"""

from typing import TYPE_CHECKING, Any

from brigade._version import __version__
from brigade.errors import (
    BrigadeError,
    CannotDecrypt,
    ConfigError,
    CorruptObject,
    MessageNotFound,
    PayloadTooLarge,
    PermissionDenied,
    QueueNotFound,
    QueuePaused,
    StaleLease,
    StoreUnavailable,
)
from brigade.events import Event
from brigade.hub import AsyncHub, connect_async
from brigade.machine import State
from brigade.model import (
    Ack,
    Extend,
    FailedMessage,
    FailureInfo,
    Lease,
    Message,
    MessageInfo,
    Nack,
    Receipt,
    Release,
    Stats,
)
from brigade.payload import NewMessage
from brigade.policy import Backoff, Failure, QueuePolicy
from brigade.queue import AsyncQueue
from brigade.sync import Hub, Queue, connect

if TYPE_CHECKING:
    from brigade.worker import AsyncContext, Context, Reject, Restart, Retry, Snooze, Worker, WorkerStatus

__all__ = [
    "Ack",
    "AsyncContext",
    "AsyncHub",
    "AsyncQueue",
    "Backoff",
    "BrigadeError",
    "CannotDecrypt",
    "ConfigError",
    "Context",
    "CorruptObject",
    "Event",
    "Extend",
    "FailedMessage",
    "Failure",
    "FailureInfo",
    "Hub",
    "Lease",
    "Message",
    "MessageInfo",
    "MessageNotFound",
    "Nack",
    "NewMessage",
    "PayloadTooLarge",
    "PermissionDenied",
    "Queue",
    "QueueNotFound",
    "QueuePaused",
    "QueuePolicy",
    "Receipt",
    "Reject",
    "Release",
    "Restart",
    "Retry",
    "Snooze",
    "StaleLease",
    "State",
    "Stats",
    "StoreUnavailable",
    "Worker",
    "WorkerStatus",
    "__version__",
    "connect",
    "connect_async",
]

_OF_WORKERS = {"AsyncContext", "Context", "Reject", "Restart", "Retry", "Snooze", "Worker", "WorkerStatus"}


def __getattr__(name: str) -> Any:
    """Programs that only enqueue or claim don't pay for importing workers."""
    if name in _OF_WORKERS:
        from brigade import worker

        return getattr(worker, name)
    raise AttributeError(f"module 'brigade' has no attribute {name!r}")
