"""Seals on what a server hands out and takes back: nobody can make up a part, a piece or a cursor, or use it elsewhere.

A store tells where staged messages, pieces of a table and parts of history lie in terms of its own. On their way
through a client they carry a keyed hash over what they are, which queue and job or table they belong to, and what they
say. The key lies in the store, so that all servers in front of it, and their successors, know each other's seals.
Whoever can read it there can read the store. Stores check by themselves that a key leads into the queue that is named.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac

from brigade.errors import ConfigError, StoreUnavailable
from brigade.ids import secret_bytes
from brigade.stores import Store, TokenStore

__all__ = ["KEY_ID", "Seal", "Sealer"]

KEY_ID = "seal"
"""Where the key lies among the tokens; no token has such an id."""

KEY_SIZE, TAG_SIZE = 32, 16


class Seal:
    """Seals and opens under one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def close(self, value: bytes, *about: str) -> bytes:
        """A value that only `open` with the same words about it takes back."""
        return self._tag(value, about) + value

    def open(self, sealed: bytes, *about: str, field: str) -> bytes:
        """What was sealed; ConfigError, which starts with the field's name, where it was not sealed here for this."""
        value = sealed[TAG_SIZE:]
        if len(sealed) < TAG_SIZE or not hmac.compare_digest(sealed[:TAG_SIZE], self._tag(value, about)):
            raise _foreign(field)
        return value

    def close_text(self, value: str, *about: str) -> str:
        """`close` for text, which stays readable."""
        return f"{self._tag(value.encode(), about).hex()}!{value}"

    def open_text(self, sealed: str, *about: str, field: str) -> str:
        tag, mark, value = sealed.partition("!")
        try:
            said = bytes.fromhex(tag) if mark else b""
            told = value.encode()
        except ValueError:
            raise _foreign(field) from None
        if not hmac.compare_digest(said, self._tag(told, about)):
            raise _foreign(field)
        return value

    def _tag(self, value: bytes, about: tuple[str, ...]) -> bytes:
        made = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in (*(one.encode() for one in about), value):
            made.update(len(part).to_bytes(8) + part)
        return made.digest()[:TAG_SIZE]


def _foreign(field: str) -> ConfigError:
    return ConfigError(f"{field} is not what this server gave for this queue; send it as it was given")


class Sealer:
    """The seal of a store, made by the first server that needs it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seal: Seal | None = None
        self._making = asyncio.Lock()

    async def seal(self) -> Seal:
        async with self._making:
            if self._seal is None:
                self._seal = Seal(await self._key())
            return self._seal

    async def _key(self) -> bytes:
        fresh = secret_bytes(KEY_SIZE)
        store = self._store
        if not isinstance(store, TokenStore):
            return fresh
        for _ in range(2):
            known = dict(await store.tokens()).get(KEY_ID)
            if known is not None and len(known) == KEY_SIZE:
                return known
            if await store.write_token(KEY_ID, fresh):
                return fresh
        raise StoreUnavailable(
            "the key for seals can't be read; try again, or remove it from the store: it is made anew"
        )
