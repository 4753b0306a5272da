"""Bearer tokens: what they look like, what is kept of them, and which rights they give on which queues.

A token is `brg_<id>_<secret>`. The secret is 256 random bits, so a plain SHA-256 of it is all that has to be kept:
there is nothing to guess that a slow hash would protect.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence

import msgspec

from brigade.errors import ConfigError, CorruptObject
from brigade.ids import secret_bytes
from brigade.server.gate import Right

__all__ = ["Scope", "Token", "is_token_id", "mint", "parse_bearer", "parse_scope", "read_token"]

_TOKEN = re.compile(r"brg_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_ID = re.compile(r"[0-9a-f]{16}")
_PATTERN = re.compile(r"[A-Za-z0-9_*][A-Za-z0-9._*-]{0,99}")
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,100}")
MOST_STARS, MOST_SCOPES = 3, 100


class Scope(msgspec.Struct, frozen=True):
    """Rights on the queues whose name fits a pattern: `*` stands for any number of characters."""

    queues: str
    rights: tuple[Right, ...]

    def fits(self, queue: str) -> bool:
        """Whether the queue is one of these."""
        parts = self.queues.split("*")
        if len(parts) == 1:
            return queue == self.queues
        first, *middle, last = parts
        if len(queue) < len(first) + len(last) or not queue.startswith(first) or not queue.endswith(last):
            return False
        at, end = len(first), len(queue) - len(last)
        for part in middle:
            found = queue.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True

    def __str__(self) -> str:
        return f"{self.queues}:{','.join(self.rights)}"


class Token(msgspec.Struct, frozen=True):
    """What is kept of a token. The secret is not."""

    id: str
    name: str
    hash: str
    scopes: tuple[Scope, ...]
    created_at_ms: int
    expires_at_ms: int | None = None

    def __repr__(self) -> str:
        return f"Token({self.id!r}, {self.name!r})"

    def matches(self, secret: str) -> bool:
        """Whether this is its secret, in a time that tells nothing."""
        return hmac.compare_digest(_hash(secret), self.hash)

    def may(self, rights: frozenset[Right], queue: str) -> bool:
        return any(not rights.isdisjoint(scope.rights) and scope.fits(queue) for scope in self.scopes)

    def may_all(self, rights: frozenset[Right]) -> bool:
        return any(not rights.isdisjoint(scope.rights) and not scope.queues.strip("*") for scope in self.scopes)

    def may_some(self, rights: frozenset[Right]) -> bool:
        return any(not rights.isdisjoint(scope.rights) for scope in self.scopes)

    def expired(self, now_ms: int) -> bool:
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms

    def body(self) -> bytes:
        """As it is stored."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2)


def _hash(secret: str) -> str:
    return hashlib.sha256(b"brigade token\0" + secret.encode()).hexdigest()


def parse_scope(text: str) -> Scope:
    """A scope as users write it: `PATTERN:RIGHT,RIGHT`; `all` is every right."""
    pattern, mark, rights = text.rpartition(":")
    names = [name.strip() for name in rights.split(",")]
    known = [right.value for right in Right]
    if not mark or not _PATTERN.fullmatch(pattern):
        raise ConfigError(
            f"scope {text[:120]!r} is not of the form PATTERN:RIGHT,RIGHT; write for example 'orders-*:enqueue,read'"
        )
    if pattern.count("*") > MOST_STARS:
        raise ConfigError(f"scope {text[:120]!r} has more than {MOST_STARS} stars; use several scopes instead")
    for name in names:
        if name not in (*known, "all"):
            raise ConfigError(f"scope {text[:120]!r}: {name!r} is not a right; use {', '.join(known)} or all")
    chosen = known if "all" in names else [right for right in known if right in names]
    return Scope(pattern, tuple(Right(right) for right in chosen))


def mint(
    name: str, scopes: Sequence[str] | Iterable[str], *, now_ms: int, expires_in: float | None = None
) -> tuple[Token, str]:
    """A new token: what is to be kept, and the text that its holder sends. That text exists nowhere else."""
    if not _NAME.fullmatch(name):
        raise ConfigError("a token's name must have 1 to 100 characters and no control characters")
    parsed = tuple(parse_scope(scope) for scope in scopes)
    if not parsed:
        raise ConfigError("a token needs a scope; write for example 'orders-*:enqueue,read', or '*:all'")
    if len(parsed) > MOST_SCOPES:
        raise ConfigError(f"a token takes {MOST_SCOPES} scopes at most; make several tokens")
    if expires_in is not None and expires_in <= 0:
        raise ConfigError("a token must expire in the future; give a length of time above 0")
    secret = base64.urlsafe_b64encode(secret_bytes(32)).rstrip(b"=").decode()
    id = secret_bytes(8).hex()
    until = None if expires_in is None else now_ms + round(expires_in * 1000)
    return Token(id, name, _hash(secret), parsed, now_ms, until), f"brg_{id}_{secret}"


def parse_bearer(header: str | None) -> tuple[str, str] | None:
    """Id and secret from an Authorization header; None where it holds no token of ours."""
    scheme, _, text = (header or "").partition(" ")
    found = _TOKEN.fullmatch(text.strip()) if scheme.lower() == "bearer" else None
    return (found[1], found[2]) if found else None


def is_token_id(id: str) -> bool:
    """Whether this is the id of a token. Servers keep other things beside them."""
    return bool(_ID.fullmatch(id))


def read_token(id: str, body: bytes) -> Token:
    """A token as stored."""
    try:
        token = msgspec.json.decode(body, type=Token)
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptObject(f"token {id}", f"it is not one ({error})", "revoke it and make another") from None
    if token.id != id:
        raise CorruptObject(f"token {id}", "it tells of another id", "revoke it and make another")
    return token
