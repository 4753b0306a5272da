"""A bucket whose objects are sealed. The protocol above and the storage below know nothing of it.

Everything with contents of messages is sealed whole, bound to its key: segments, ledgers, lanes, parked failures,
workflow states, markers. Left clear are policies and flags, the voids that a listing tells by their size, history
(whose lines are sealed one by one, so that other tools still read the rest) and payload streams (sealed as they pass).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING

from brigade.blobs import Blob, Blobs, Create, Get, Op, Swap
from brigade.errors import CannotDecrypt

if TYPE_CHECKING:
    from brigade.clock import Clock
    from brigade.crypto.vault import Vault

from brigade.crypto.vault import is_sealed

__all__ = ["SealedBlobs", "stays_clear"]

VOID_SIZE = 48
"""As in the bucket store: no segment with a message in it is smaller, and a void holds nothing."""


def stays_clear(key: str, body: bytes | None = None) -> bool:
    """Whether an object is stored as it is."""
    parts = key.split("/", 3)
    if len(parts) < 3 or parts[0] not in ("q", "corrupt"):
        return True
    if parts[0] == "corrupt":
        return "/hist/" in key
    kind = parts[2]
    if kind in ("policy.json", "hist", "blob"):
        return True
    if kind in ("seg", "lseg"):
        return parts[3].startswith("!") or (body is not None and len(body) <= VOID_SIZE)
    return False


class SealedBlobs:
    """Blobs that seal what is written and open what is read."""

    def __init__(self, inner: Blobs, vault: Vault) -> None:
        self._inner = inner
        self._vault = vault
        self.poll_interval = inner.poll_interval
        self.patience = inner.patience
        self.immediate = self.prompt = inner.immediate
        self.pledges = False

    @property
    def listing_ttl(self) -> float:
        return self._inner.listing_ttl

    @property
    def inner(self) -> Blobs:
        """The storage itself, with everything as it is stored."""
        return self._inner

    async def open(self, clock: Clock) -> None:
        self._vault.unlock()
        await self._inner.open(clock)
        self.poll_interval = self._inner.poll_interval
        self.patience = self._inner.patience
        self.immediate = self.prompt = self._inner.immediate

    async def perform(self, op: Op) -> object:
        if isinstance(op, Create | Swap):
            op = self._sealed(op)
        return self._opened(op, await self._inner.perform(op))

    def try_now(self, op: Op) -> object:
        if isinstance(op, Create | Swap):
            if not self._inner.immediate:
                return NotImplemented
            op = self._sealed(op)
        return self._opened(op, self._inner.try_now(op))

    def _sealed(self, op: Create | Swap) -> Create | Swap:
        if stays_clear(op.key, op.body):
            return op
        sealed = self._vault.seal(op.body, op.key)
        return Create(op.key, sealed) if isinstance(op, Create) else Swap(op.key, sealed, op.etag)

    def _opened(self, op: Op, answer: object) -> object:
        if not isinstance(answer, Blob) or not isinstance(op, Get):
            return answer
        if is_sealed(answer.body):
            if stays_clear(op.key):
                return answer
            return Blob(self._vault.open(answer.body, op.key), answer.etag, answer.modified)
        if self._vault.strict and not stays_clear(op.key, answer.body):
            raise CannotDecrypt(
                f"object {op.key!r} is not sealed, and encryption_strict is on: somebody else wrote it, or it is from "
                "before encryption; connect without encryption_strict to read it"
            )
        return answer

    async def put_stream(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        return await self._inner.put_stream(key, chunks)

    def get_stream(self, key: str, *, chunk: int = 1024 * 1024) -> AsyncGenerator[bytes]:
        return self._inner.get_stream(key, chunk=chunk)

    def watch(self, prefix: str, wake: Callable[[str], None]) -> Callable[[], None] | None:
        return self._inner.watch(prefix, wake)

    def requests(self) -> dict[str, int]:
        return self._inner.requests()

    async def close(self) -> None:
        await self._inner.close()
