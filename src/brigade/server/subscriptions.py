"""The streams that are open on this server, and what each of their consumers holds."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from brigade.queue import AsyncQueue
from brigade.server.dispatcher import Held

__all__ = ["Subscription", "Subscriptions"]


@dataclass(slots=True, eq=False)
class Subscription:
    """One consumer's stream, and what it holds: tokens, and when their leases run out."""

    id: str
    queue: AsyncQueue
    owner: str
    visibility: float
    credits: int
    left: int | None
    stateful: bool
    holds: dict[str, int] = field(default_factory=dict[str, int])
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def room(self, now: int) -> int:
        """How many messages it may be sent now."""
        for token in [token for token, expires in self.holds.items() if expires <= now]:
            del self.holds[token]
        room = self.credits - len(self.holds)
        return room if self.left is None else min(room, self.left)


class Subscriptions:
    """The streams that are open here, by id and by the tokens they have sent."""

    def __init__(self) -> None:
        self._open: dict[str, Subscription] = {}
        self._by_token: dict[str, Subscription] = {}

    def __len__(self) -> int:
        return len(self._open)

    def get(self, id: str) -> Subscription | None:
        return self._open.get(id)

    def add(self, one: Subscription) -> None:
        self._open[one.id] = one

    def remove(self, one: Subscription) -> None:
        self._open.pop(one.id, None)
        for token in one.holds:
            self._by_token.pop(token, None)

    def sent(self, one: Subscription, held: Sequence[Held]) -> None:
        for message in (item.message for item in held):
            one.holds[message.lease.token] = message.lease.expires_at_ms
            self._by_token[message.lease.token] = one

    def settled(self, token: str, expires: int | None) -> None:
        """A lease has ended, or has been extended until `expires`: the credit comes back, or stays away."""
        one = self._by_token.get(token)
        if one is None or token not in one.holds:
            self._by_token.pop(token, None)
        elif expires is not None:
            one.holds[token] = expires
        else:
            del self._by_token[token], one.holds[token]
            one.changed.set()
