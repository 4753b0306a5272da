"""Plain calls, and what a store offers that carries them out at once."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from brigade.model import Message, Receipt
from brigade.stores import Outgoing

__all__ = ["PlainAck", "PlainCall", "PlainClaim", "PlainEnqueue", "PlainNext", "PromptStore"]


class PlainEnqueue(msgspec.Struct, frozen=True):
    """Add a message."""

    queue: str
    message: Outgoing

    def by(self, store: PromptStore) -> Receipt | Coroutine[Any, Any, Receipt] | None:
        return store.enqueue_now(self.queue, self.message)


class PlainClaim(msgspec.Struct, frozen=True):
    """Lease and load one message."""

    queue: str
    owner: str
    visibility: float

    def by(self, store: PromptStore) -> list[Message] | Coroutine[Any, Any, list[Message] | None] | None:
        return store.claim_now(self.queue, self.owner, self.visibility)


class PlainAck(msgspec.Struct, frozen=True):
    """Ack one message, without a result."""

    queue: str
    message: Message

    def by(self, store: PromptStore) -> bool | Coroutine[Any, Any, bool | None] | None:
        return store.ack_now(self.queue, self.message)


class PlainNext(msgspec.Struct, frozen=True):
    """Ack one message, and claim another."""

    message: Message
    claim: PlainClaim

    def by(self, store: PromptStore) -> list[Message] | Coroutine[Any, Any, list[Message] | None] | None:
        claim = self.claim
        return store.next_now(claim.queue, self.message, claim.owner, claim.visibility)


PlainCall = PlainEnqueue | PlainClaim | PlainAck


@runtime_checkable
class PromptStore(Protocol):
    """A store that carries out plain calls at once, within the call, for who has the turn of its event loop.

    None says that nothing was done: go the general way. A coroutine goes on with what has to be waited for.
    """

    @property
    def gathers(self) -> bool:
        """Whether calls that are made together are less work than one after the other."""
        ...

    @property
    def pairs(self) -> bool:
        """Whether `next_now` is less work than an ack and then a claim."""
        ...

    def enqueue_now(self, queue: str, message: Outgoing) -> Receipt | Coroutine[Any, Any, Receipt] | None: ...

    def claim_now(
        self, queue: str, owner: str, visibility: float
    ) -> list[Message] | Coroutine[Any, Any, list[Message] | None] | None: ...

    def ack_now(self, queue: str, message: Message) -> bool | Coroutine[Any, Any, bool | None] | None:
        """True; raises StaleLease."""
        ...

    def next_now(
        self, queue: str, message: Message, owner: str, visibility: float
    ) -> list[Message] | Coroutine[Any, Any, list[Message] | None] | None:
        """Ack a message and claim another, in one write. An empty list: it was acked, and the claim is still to make.

        Raises StaleLease, and then holds nothing.
        """
        ...

    def together_now(self, calls: Sequence[PlainCall]) -> list[Any] | Coroutine[Any, Any, list[Any]]:
        """What each of them came to, as the calls above return it, or the error that they would raise."""
        ...
