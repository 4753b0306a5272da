"""Who may ask for what: every request passes here, with the rights that its route declares and the queue it names."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

__all__ = ["ANY_RIGHT", "Caller", "Gate", "OpenGate", "Over", "Right"]


class Right(StrEnum):
    """What a caller may do with a queue."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    READ = "read"
    ADMIN = "admin"


ANY_RIGHT = frozenset(Right)


class Over(StrEnum):
    """What the rights of a route are asked for: nothing at all, a known caller, one queue, some queue, or all."""

    NOTHING = "nothing"
    CALLER = "caller"
    QUEUE = "queue"
    SOME = "some"
    ALL = "all"


class Caller(Protocol):
    """Whoever sent a request."""

    @property
    def name(self) -> str | None: ...

    def may(self, rights: frozenset[Right], queue: str) -> bool:
        """Whether they have one of these rights on a queue."""
        ...

    def may_all(self, rights: frozenset[Right]) -> bool:
        """Whether they have one of these rights on every queue, whatever its name."""
        ...

    def may_some(self, rights: frozenset[Right]) -> bool:
        """Whether there can be a queue on which they have one of these rights."""
        ...


class Gate(Protocol):
    """Tells who sends a request, before its body is read. It is asked for every route but those over nothing."""

    async def admit(self, credentials: Sequence[str]) -> Caller:
        """The caller with these, which the request's headers `Authorization` hold.

        PermissionDenied, or an error made from it, where nobody is to be let in.
        """
        ...


class Anybody:
    """On this machine, without authentication, whoever asks may do everything."""

    name = None

    def may(self, rights: frozenset[Right], queue: str) -> bool:
        return True

    def may_all(self, rights: frozenset[Right]) -> bool:
        return True

    def may_some(self, rights: frozenset[Right]) -> bool:
        return True


EVERYBODY = Anybody()


class OpenGate:
    """Lets everybody in. A server that has no other one listens on loopback only."""

    async def admit(self, credentials: Sequence[str]) -> Caller:
        return EVERYBODY
