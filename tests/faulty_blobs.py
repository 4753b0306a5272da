"""Blobs that break one promise each, for the doctor to find out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from brigade.blobs import CONFLICT, Blob, Copy, Create, Delete, DeleteIf, Get, Item, List, Op, Page, Swap
from brigade.blobs.memory import Bucket, MemoryBlobs
from brigade.errors import MessageNotFound, StoreUnavailable

BETWEEN = 0.05
"""Seconds between the look and the write of stores that race: enough for a busy machine to start the other writers."""


class Faulty(MemoryBlobs):
    """Blobs that break one promise: a subclass says how."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket=bucket)
        self.bucket = bucket

    def put(self, key: str, body: bytes) -> object:
        """Write whatever is there."""
        self.bucket.apply(Delete((key,)))
        return self.bucket.apply(Create(key, body))


class OverwritingCreate(Faulty):
    def try_now(self, op: Op) -> object:
        return self.put(op.key, op.body) if isinstance(op, Create) else super().try_now(op)


class RacyCreate(Faulty):
    """Looks, then writes: what many an emulation of conditional writes does."""

    async def perform(self, op: Op) -> object:
        if isinstance(op, Create):
            if self.try_now(Get(op.key)) is not None:
                return CONFLICT
            await asyncio.sleep(BETWEEN)
            return self.put(op.key, op.body)
        return await super().perform(op)


class BlindSwap(Faulty):
    """Ignores the etag, as stores do that don't know If-Match."""

    def try_now(self, op: Op) -> object:
        return self.put(op.key, op.body) if isinstance(op, Swap) else super().try_now(op)


class RacySwap(Faulty):
    async def perform(self, op: Op) -> object:
        if isinstance(op, Swap):
            blob = self.try_now(Get(op.key))
            if not isinstance(blob, Blob) or blob.etag != op.etag:
                return CONFLICT
            await asyncio.sleep(BETWEEN)
            return self.put(op.key, op.body)
        return await super().perform(op)


class ForgetfulCreate(Faulty):
    """Says that it wrote, and didn't, now and then."""

    def try_now(self, op: Op) -> object:
        if isinstance(op, Create) and b"creator 0" in op.body:
            return "etag"
        return super().try_now(op)


class StaleGet(Faulty):
    """Reads what was there before the last write, once."""

    old: dict[str, Blob]

    def try_now(self, op: Op) -> object:
        before = self.__class__.old
        if isinstance(op, Swap | Delete):
            for key in op.keys if isinstance(op, Delete) else (op.key,):
                blob = self.bucket.apply(Get(key))
                if isinstance(blob, Blob):
                    before[key] = blob
        if isinstance(op, Get) and op.key in before:
            return before.pop(op.key)
        return super().try_now(op)


class StaleList(Faulty):
    """Lists what was there at the listing before."""

    last: dict[str, Page]

    def try_now(self, op: Op) -> object:
        fresh = super().try_now(op)
        if isinstance(op, List):
            kept = self.__class__.last
            stale, kept[op.prefix] = kept.get(op.prefix, Page([], False)), fresh
            return stale
        return fresh


class WrongOrder(Faulty):
    def try_now(self, op: Op) -> object:
        answer = super().try_now(op)
        return Page(list(reversed(answer.items)), answer.more) if isinstance(answer, Page) else answer


class RepeatingPages(Faulty):
    """Starts a page with the name that it should start after."""

    def try_now(self, op: Op) -> object:
        answer = super().try_now(op)
        if isinstance(op, List) and isinstance(answer, Page) and op.after:
            blob = self.bucket.apply(Get(op.after))
            if isinstance(blob, Blob):
                return Page([Item(op.after, blob.etag, 1, blob.modified), *answer.items], answer.more)
        return answer


class BlindDelete(Faulty):
    def try_now(self, op: Op) -> object:
        if isinstance(op, DeleteIf):
            self.bucket.apply(Delete((op.key,)))
            return op.etag
        return super().try_now(op)


class RacyDelete(Faulty):
    async def perform(self, op: Op) -> object:
        if isinstance(op, DeleteIf):
            blob = self.try_now(Get(op.key))
            if not isinstance(blob, Blob) or blob.etag != op.etag:
                return CONFLICT
            await asyncio.sleep(BETWEEN)
            self.bucket.apply(Delete((op.key,)))
            return op.etag
        return await super().perform(op)


class NoDelete(Faulty):
    def try_now(self, op: Op) -> object:
        return None if isinstance(op, Delete) else super().try_now(op)


class FoldedKeys(Faulty):
    """A file system that takes `A` for `a`."""

    def try_now(self, op: Op) -> object:
        if isinstance(op, Create | Swap):
            same = super().try_now(Get(op.key.lower()))
            if isinstance(op, Create) and same is None:
                return super().try_now(Create(op.key.lower(), op.body))
            return super().try_now(Swap(op.key.lower(), op.body, same.etag if isinstance(same, Blob) else ""))
        return super().try_now(Get(op.key.lower()) if isinstance(op, Get) else op)


class LyingCopy(Faulty):
    def try_now(self, op: Op) -> object:
        return True if isinstance(op, Copy) else super().try_now(op)


class ShortStream(Faulty):
    """Loses the end of what is streamed."""

    async def put_stream(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        body = b"".join([chunk async for chunk in chunks])
        self.try_now(Create(key, body[:-1]))
        return len(body)


class EarlyStream(Faulty):
    """Shows a stream before it has ended."""

    async def put_stream(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        body = b""
        async for chunk in chunks:
            body += chunk
            self.put(key, body)
        return len(body)


class UndeadStream(Faulty):
    kept: dict[str, bytes]

    async def get_stream(self, key: str, *, chunk: int = 1024 * 1024) -> AsyncGenerator[bytes]:
        blob = self.bucket.apply(Get(key))
        if isinstance(blob, Blob):
            self.__class__.kept[key] = blob.body
        if key not in self.__class__.kept:
            raise MessageNotFound(key)
        yield self.__class__.kept[key]


class Refusing(Faulty):
    def try_now(self, op: Op) -> object:
        if isinstance(op, Swap):
            raise StoreUnavailable("no swaps here")
        return super().try_now(op)


class Breaking(Faulty):
    def try_now(self, op: Op) -> object:
        if isinstance(op, Copy):
            raise ZeroDivisionError("inside a library")
        return super().try_now(op)
