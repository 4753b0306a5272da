"""Who looks, and what they may do: the seam between pages and whatever checks tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brigade.errors import PermissionDenied
from brigade.server.gate import Gate, OpenGate, Right

__all__ = ["EVERYBODY", "Access", "Forbidden", "Visitor"]


class Forbidden(Exception):
    """The visitor may not do that."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who looks. `allows(verb, queue)` knows the verbs read, enqueue and admin; no queue means all of them."""

    name: str
    allows: Callable[[str, str | None], bool]

    def may(self, verb: str, queue: str | None = None) -> bool:
        return self.allows(verb, queue)

    def need(self, verb: str, queue: str | None = None) -> None:
        if not self.allows(verb, queue):
            where = "everywhere" if queue is None else f"on queue {queue}"
            raise Forbidden(f"{self.name} may not {verb} {where}; ask for a token with that scope")


EVERYBODY = Visitor("everybody", lambda _verb, _queue: True)
RIGHTS = {
    "read": frozenset((Right.READ,)),
    "enqueue": frozenset((Right.ENQUEUE,)),
    "admin": frozenset((Right.ADMIN,)),
}
"""What a visitor needs one of, for each verb of the pages."""


class Access:
    """Asks the server's gate. A token comes in the session cookie, or as a bearer token from a program."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.required = not isinstance(gate, OpenGate)

    async def visitor(self, token: str | None) -> Visitor | None:
        """Who has this token; None where nobody has, or where it is good for nothing here."""
        try:
            caller = await self._gate.admit([] if token is None else [f"Bearer {token}"])
        except PermissionDenied:
            return None
        if not caller.may_some(RIGHTS["read"]):
            return None

        def allows(verb: str, queue: str | None) -> bool:
            rights = RIGHTS[verb]
            return caller.may_all(rights) if queue is None else caller.may(rights, queue)

        return Visitor(caller.name or "everybody", allows)
