"""The port for traces: what a queue and a worker tell about sending and handling. Without a tracer it costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from brigade.model import Message

__all__ = ["NO_TRACER", "Tracer"]


class Tracer(Protocol):
    """Makes spans. `hub.tracer` is one; `brigade.observe` has the real one."""

    def sending(self, queue: str, count: int) -> AbstractContextManager[Mapping[str, Any]]:
        """Around an enqueue: yields attributes that messages carry to whoever handles them."""
        ...

    def handling(self, message: Message, worker_id: str) -> AbstractContextManager[Mapping[str, Any]]:
        """Around a handler, entered where the handler runs: yields attributes that name its span."""
        ...


class _NoTracer:
    def sending(self, queue: str, count: int) -> AbstractContextManager[Mapping[str, Any]]:
        return _NOTHING

    def handling(self, message: Message, worker_id: str) -> AbstractContextManager[Mapping[str, Any]]:
        return _NOTHING


_NOTHING: AbstractContextManager[Mapping[str, Any]] = nullcontext({})
NO_TRACER: Tracer = _NoTracer()
