"""Who looks, and what they may do: the seam between pages and whatever checks tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import HTTPConnection

__all__ = ["EVERYBODY", "Access", "Forbidden", "OpenAccess", "Visitor"]


class Forbidden(Exception):
    """The visitor may not do that."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who looks. `allows(verb, queue)` knows the verbs read, enqueue and admin; no queue means all of them."""

    name: str
    allows: Callable[[str, str | None], bool]
    signed_in: bool = False

    def may(self, verb: str, queue: str | None = None) -> bool:
        return self.allows(verb, queue)

    def need(self, verb: str, queue: str | None = None) -> None:
        if not self.allows(verb, queue):
            where = "everywhere" if queue is None else f"on queue {queue}"
            raise Forbidden(f"{self.name} may not {verb} {where}; ask for a token with that scope")


EVERYBODY = Visitor("everybody", lambda _verb, _queue: True)


class Access(Protocol):
    """What tells who sent a request."""

    required: bool
    """Whether a token is needed at all; without, there is no login page."""

    async def visitor(self, token: str | None, connection: HTTPConnection) -> Visitor | None:
        """Who has this token, which came in the session cookie or as a bearer token; None where nobody has."""
        ...


class OpenAccess:
    """A server without authentication: whoever reaches it may do everything."""

    required = False

    async def visitor(self, token: str | None, connection: HTTPConnection) -> Visitor | None:
        return EVERYBODY
