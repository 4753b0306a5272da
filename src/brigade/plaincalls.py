"""The plain calls of a queue, made within the call, by a thread that has the turn of the hub's loop.

They do what `AsyncQueue` does for the same arguments where nobody listens, nobody traces, and the store can do it at
once. None says that nothing was done; a coroutine goes on with what has to be waited for.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from brigade.checks import seconds
from brigade.model import Message
from brigade.names import check_owner
from brigade.stores import Outgoing
from brigade.stores.prompt import PlainAck, PlainCall, PlainClaim, PlainEnqueue, PlainNext
from brigade.tracing import NO_TRACER

if TYPE_CHECKING:
    from brigade.hub import AsyncHub
    from brigade.queue import AsyncQueue

__all__ = ["PlainCalls", "make_all", "make_one"]


class PlainCalls:
    """What is wanted of a queue, as plain calls. None: it isn't plain."""

    def __init__(self, queue: AsyncQueue) -> None:
        self._queue = queue
        self._hub = queue.hub

    def enqueue(self, message: Outgoing) -> PlainEnqueue | None:
        if self._hub.tracer is not NO_TRACER or self._hub.twins:
            return None
        return PlainEnqueue(self._queue.name, message)

    def claim(self, owner: str | None, visibility: float | None) -> PlainClaim:
        queue = self._queue
        holder = self._hub.owner if owner is None else check_owner(owner)
        length = queue.policy.visibility_timeout if visibility is None else seconds(visibility, "visibility", low=0.001)
        return PlainClaim(queue.name, holder, length)

    def ack(self, message: Message) -> PlainAck:
        return PlainAck(self._queue.name, message)


def make_one(hub: AsyncHub, call: PlainCall | PlainNext) -> Any:
    """Make a call: what it returns, None, or a coroutine."""
    prompt = hub.prompt
    return None if prompt is None else call.by(prompt)


def make_all(hub: AsyncHub, calls: Sequence[PlainCall]) -> list[Any] | Coroutine[Any, Any, list[Any]]:
    """Make several calls together: what each returns, as above, or raises."""
    return [None] * len(calls) if hub.prompt is None else hub.prompt.together_now(calls)
