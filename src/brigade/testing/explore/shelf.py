"""A store that never changes: every write gives a new one, so that a search can go back to where it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from brigade.blobs import CONFLICT, Blob, Copy, Create, Delete, DeleteIf, Get, Item, List, Op, Page, Swap

__all__ = ["EMPTY", "Shelf"]


@dataclass(frozen=True, slots=True)
class Shelf:
    """Objects, and for every key that ever was there a digest of all that was written to it, in order.

    An etag is that digest: two ways to the same shelf have written the same bytes in the same order to each key.
    `mark` stands for all of them together.
    """

    objects: Mapping[str, Blob]
    written: Mapping[str, str]
    mark: int = 0

    def apply(self, op: Op, now: int) -> tuple[object, Shelf]:
        """The answer, and the shelf after it."""
        match op:
            case Get(key):
                return self.objects.get(key), self
            case Create(key, body):
                return self.write(key, body, None, now)
            case Swap(key, body, etag):
                return self.write(key, body, etag, now)
            case List(prefix, after, limit):
                return self._list(prefix, after, limit), self
            case Delete(keys):
                return None, self._without(keys)
            case DeleteIf(key, etag):
                found = self.objects.get(key)
                if found is None or found.etag != etag:
                    return CONFLICT, self
                return etag, self._without((key,))
            case Copy(source, target):
                found, there = self.objects.get(source), self.objects.get(target)
                if found is None:
                    return False, self
                return True, self.write(target, found.body, there.etag if there else None, now)[1]

    def write(self, key: str, body: bytes, etag: str | None, now: int) -> tuple[object, Shelf]:
        found = self.objects.get(key)
        if (found.etag if found else None) != etag:
            return CONFLICT, self
        new = self._next(key, b"%d " % now + body)
        return new, self._with({**self.objects, key: Blob(body, new, now)}, {key: new})

    def _without(self, keys: tuple[str, ...]) -> Shelf:
        gone = {key: self._next(key, b"") for key in keys if key in self.objects}
        left = {key: blob for key, blob in self.objects.items() if key not in gone}
        return self._with(left, gone)

    def _with(self, objects: Mapping[str, Blob], news: Mapping[str, str]) -> Shelf:
        mark = self.mark
        for key, new in news.items():
            mark ^= _mark(key, self.written.get(key)) ^ _mark(key, new)
        return Shelf(objects, {**self.written, **news}, mark)

    def _next(self, key: str, body: bytes) -> str:
        return blake2b(self.written.get(key, "").encode() + body, digest_size=8).hexdigest()

    def _list(self, prefix: str, after: str, limit: int) -> Page:
        found = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        items = [
            Item(key, blob.etag, len(blob.body), blob.modified)
            for key in found[:limit]
            for blob in (self.objects[key],)
        ]
        return Page(items, len(found) > limit)


def _mark(key: str, etag: str | None) -> int:
    if etag is None:
        return 0
    return int.from_bytes(blake2b(f"{key} {etag}".encode(), digest_size=16).digest())


EMPTY = Shelf({}, {})
