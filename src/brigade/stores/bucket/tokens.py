"""Tokens of servers in front of a bucket: one small object each, under `auth/token/`."""

from __future__ import annotations

from brigade.blobs import Create
from brigade.stores.bucket.keys import TOKENS
from brigade.stores.bucket.steps import Env, Lost, Proto, delete, get, list_all, side_by_side, write

__all__ = ["KnownTokens", "drop_token", "list_tokens", "write_token"]

KnownTokens = dict[str, tuple[str, bytes]]
"""Key, etag and body of each token as last read: what has not changed is not read again."""


def write_token(env: Env, id: str, body: bytes) -> Proto[bool]:
    """Keep a token under a new id; False where the id is taken."""
    answer = yield from write(env, Create(TOKENS + id, body))
    return not isinstance(answer, Lost)


def list_tokens(known: KnownTokens) -> Proto[list[tuple[str, bytes]]]:
    """All tokens by id. `known` is brought up to date."""
    items = yield from list_all(TOKENS)
    changed = [item.key for item in items if known.get(item.key, ("", b""))[0] != item.etag]
    if changed:
        found = yield from side_by_side([get(key) for key in changed])
        known.update(
            {key: (blob.etag, blob.body) for key, blob in zip(changed, found, strict=True) if blob is not None}
        )
    listed = {item.key for item in items}
    for key in [key for key in known if key not in listed]:
        del known[key]
    return [(key.removeprefix(TOKENS), body) for key, (_, body) in sorted(known.items())]


def drop_token(id: str) -> Proto[bool]:
    """Forget a token; False where there is none."""
    found = yield from get(TOKENS + id)
    yield from delete([TOKENS + id])
    return found is not None
