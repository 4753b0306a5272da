"""The gate that asks for a token. What the store keeps is read now and then, never for a request of its own."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Sequence

from brigade.clock import Clock, SystemClock
from brigade.errors import BrigadeError, ConfigError, CorruptObject, StoreUnavailable
from brigade.hub import AsyncHub
from brigade.server.auth.tokens import Token, is_token_id, parse_bearer, read_token
from brigade.server.gate import Caller, Gate, OpenGate
from brigade.stores import TokenStore
from brigade.stores.remote.faults import Unauthenticated

__all__ = ["FRESH_FOR", "TokenGate", "gate_for"]

log = logging.getLogger("brigade.server")
FRESH_FOR = 5.0
"""Seconds after which tokens are read again: a revoked one is refused that soon."""

LOOK_AGAIN = 1.0
"""Seconds before an unknown token makes the gate look again: one that was just made is let in that soon."""

STALE_FOR = 60.0
"""Seconds for which tokens that can't be read again still count. Then nobody is let in."""

_NOBODY = hashlib.sha256(b"").hexdigest()
_REFUSED = "this server needs a token: send `Authorization: Bearer brg_…`, or set BRIGADE_TOKEN; "


class TokenGate:
    """Lets in whoever sends a token that the store knows and that has not expired."""

    def __init__(self, store: TokenStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._monotonic = SystemClock().monotonic
        self._tokens: dict[str, Token] = {}
        self._read_at = float("-inf")
        self._tried_at = float("-inf")
        self._reading = asyncio.Lock()
        self._said: set[str] = set()

    async def admit(self, credentials: Sequence[str]) -> Caller:
        found = parse_bearer(credentials[0]) if len(credentials) == 1 else None
        if found is None:
            raise Unauthenticated(_REFUSED + "`brigade token create` makes one")
        id, secret = found
        await self._refresh(FRESH_FOR)
        token = self._tokens.get(id)
        if token is None:
            await self._refresh(LOOK_AGAIN)
            token = self._tokens.get(id)
        if token is None:
            hmac.compare_digest(hashlib.sha256(secret.encode()).hexdigest(), _NOBODY)
            raise Unauthenticated(_REFUSED + "the one that was sent is unknown or was revoked")
        if not token.matches(secret):
            raise Unauthenticated(_REFUSED + "the one that was sent is unknown or was revoked")
        if token.expired(self._clock.now()):
            raise Unauthenticated(_REFUSED + "the one that was sent has expired, make another")
        return token

    async def load(self) -> int:
        """Read the tokens; returns how many there are."""
        await self._refresh(0)
        return len(self._tokens)

    async def _refresh(self, age: float) -> None:
        if self._monotonic() - self._tried_at <= age:
            self._check()
            return
        async with self._reading:
            if self._monotonic() - self._tried_at > age:
                self._tried_at = self._monotonic()
                try:
                    self._tokens = self._read(await self._store.tokens())
                    self._read_at = self._monotonic()
                except BrigadeError as error:
                    log.warning("tokens could not be read (%s)", error)
        self._check()

    def _check(self) -> None:
        if self._monotonic() - self._read_at > STALE_FOR:
            raise StoreUnavailable("the server can't read its tokens now, so nobody is let in; try again")

    def _read(self, stored: list[tuple[str, bytes]]) -> dict[str, Token]:
        tokens: dict[str, Token] = {}
        for id, body in stored:
            if not is_token_id(id):
                continue
            try:
                tokens[id] = read_token(id, body)
            except CorruptObject as error:
                if id not in self._said:
                    self._said.add(id)
                    log.error("%s", error)
        return tokens


async def gate_for(hub: AsyncHub, auth: str) -> Gate:
    """The gate of a server that is configured like this, ready to be asked."""
    if auth == "none":
        return OpenGate()
    if not isinstance(hub.store, TokenStore):
        raise ConfigError("this kind of store keeps no tokens; use another one, or auth none on this machine")
    gate = TokenGate(hub.store, hub.clock)
    if not await gate.load():
        log.warning("the store has no tokens, so nobody can get in; `brigade token create` makes one")
    return gate
