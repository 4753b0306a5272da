"""What a handler knows beside its message: who it is, which try this is, and whether it should stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from brigade.model import Lease, Message
from brigade.worker.stopping import StopSign

__all__ = ["AsyncContext", "Context"]


class _Known:
    """What both kinds of context tell."""

    def __init__(self, message: Message, worker_id: str, stop: StopSign) -> None:
        self.worker_id = worker_id
        self.queue = message.queue
        self.message_id = message.id
        self.attempt = message.attempt
        self.max_attempts = message.max_attempts
        self.correlation_id = message.correlation_id
        self.lease_version = message.lease.version
        self._stop = stop

    @property
    def cancelled(self) -> bool:
        """True once the result no longer counts: the lease was lost, time is up, or the worker stops."""
        return self._stop.is_set()


class Context(_Known):
    """The context of a `def` handler."""

    def __init__(
        self,
        message: Message,
        worker_id: str,
        stop: StopSign,
        extend: Callable[[Message, float | None], Lease],
    ) -> None:
        super().__init__(message, worker_id, stop)
        self._message = message
        self._extend = extend

    def extend(self, seconds: float | None = None) -> Lease:
        """Hold the message for `seconds` from now. The worker does this by itself; StaleLease if it is lost."""
        return self._extend(self._message, seconds)

    def wait_cancelled(self, seconds: float) -> bool:
        """Sleep up to `seconds`, less if the handler should stop; returns `cancelled`."""
        return self._stop.wait(seconds)


class AsyncContext(_Known):
    """The context of an `async def` handler. It is cancelled as a task, too."""

    def __init__(
        self,
        message: Message,
        worker_id: str,
        stop: StopSign,
        extend: Callable[[Message, float | None], Awaitable[Any]],
    ) -> None:
        super().__init__(message, worker_id, stop)
        self._message = message
        self._extend = extend

    async def extend(self, seconds: float | None = None) -> Lease:
        """Hold the message for `seconds` from now. The worker does this by itself; StaleLease if it is lost."""
        return await self._extend(self._message, seconds)
