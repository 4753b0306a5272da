"""The plain calls of a queue, made within the call, by a thread that has the turn of the hub's loop.

They do what `AsyncQueue` does for the same arguments where nobody listens, nobody traces, and the store can do it at
once. None says that nothing was done; a coroutine goes on with what has to be waited for.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from brigade.checks import seconds
from brigade.model import Message, Receipt
from brigade.names import check_owner
from brigade.queue import AsyncQueue
from brigade.stores import Outgoing
from brigade.tracing import NO_TRACER

__all__ = ["PlainCalls"]


class PlainCalls:
    """Enqueue, claim and ack of one message."""

    def __init__(self, queue: AsyncQueue) -> None:
        self._queue = queue
        self._hub = queue.hub

    def enqueue(self, message: Outgoing) -> Receipt | Coroutine[Any, Any, Receipt] | None:
        hub = self._hub
        if hub.prompt is None or hub.tracer is not NO_TRACER or hub.twins:
            return None
        return hub.prompt.enqueue_now(self._queue.name, message)

    def claim(
        self, owner: str | None, visibility: float | None
    ) -> list[Message] | Coroutine[Any, Any, list[Message] | None] | None:
        hub, queue = self._hub, self._queue
        if hub.prompt is None:
            return None
        holder = hub.owner if owner is None else check_owner(owner)
        length = queue.policy.visibility_timeout if visibility is None else seconds(visibility, "visibility", low=0.001)
        return hub.prompt.claim_now(queue.name, holder, length)

    def ack(self, message: Message) -> bool | Coroutine[Any, Any, bool | None] | None:
        prompt = self._hub.prompt
        return None if prompt is None else prompt.ack_now(self._queue.name, message)
