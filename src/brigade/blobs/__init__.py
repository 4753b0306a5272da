"""The port that a bucket stands on: a handful of conditional object operations, and the contract they keep.

- **Atomic visibility.** An object is seen whole or not at all; a read returns the bytes of one write.
- **Mutual exclusion.** Of many `Create`s of one key exactly one is applied; of many `Swap`s that expect one
  etag exactly one is applied. Every successful write of bytes that the key never held gives it an etag that it
  never had; the same bytes may have the same etag, so every body carries a fresh nonce.
- **Consistent reads.** A `Get` or `List` that begins after a write was answered sees that write.
- **Ordered listing.** `List` yields keys in order, strictly after `after`: byte order of the keys, or, in storage
  that keeps folders, of their parts between slashes, one after the other. Within a folder both are the same.
- **Honest failure.** A write answers `CONFLICT` only if the condition did not hold when it was tried (or the
  client library tried twice), `UNKNOWN` if it may or may not have been applied; the caller reads back.
- **Durable answers.** What was answered outlasts the process and the machine; a `Create` that is to be made durable
  `later` outlasts the process, and is undone, if at all, by the end of the machine, with all that came after it.
- **Deletes** are unconditional and may be repeated; `DeleteIf` removes a key only under the given etag, or answers
  `UNSUPPORTED` and does nothing, always, where storage has no such thing.

The protocol yields these operations; a driver performs them. Nothing here does I/O.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from brigade.clock import Clock

__all__ = [
    "CONFLICT",
    "UNKNOWN",
    "UNSUPPORTED",
    "Blob",
    "Blobs",
    "Copy",
    "Create",
    "Delete",
    "DeleteIf",
    "Gathering",
    "Get",
    "Item",
    "List",
    "Op",
    "Page",
    "Pledge",
    "Refused",
    "Swap",
    "WriteResult",
]


class Get(msgspec.Struct, frozen=True, gc=False):
    """Read an object: `Blob`, or None where there is none."""

    key: str


class Pledge(msgspec.Struct, frozen=True, gc=False):
    """Objects that are about to be created, each with the key of the object that it is about; and what they may hold.

    Should the machine die, storage creates those of them that are not there under this body, before anybody writes in
    its next life, as long as what they are about is there. It takes the place of this process's last one of that name.
    """

    name: str
    keys: tuple[tuple[str, str], ...]
    body: bytes


class Create(msgspec.Struct, frozen=True, gc=False):
    """Write an object that must not exist: its etag, or `Refused`.

    A `pledge` is made durable with it. With `later` the object is seen by all, and durable with the next write that is:
    what was pledged for its key stands in for it until then. Both are for storage that `pledges`.
    """

    key: str
    body: bytes
    pledge: Pledge | None = None
    later: bool = False


class Swap(msgspec.Struct, frozen=True, gc=False):
    """Replace an object that must still have `etag`: its new etag, or `Refused`."""

    key: str
    body: bytes
    etag: str


class List(msgspec.Struct, frozen=True, gc=False):
    """A page of keys that start with `prefix` and come after `after`, which is not the name of a folder."""

    prefix: str
    after: str = ""
    limit: int = 1000


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Remove these keys, whatever they hold; missing ones are fine."""

    keys: tuple[str, ...]


class DeleteIf(msgspec.Struct, frozen=True, gc=False):
    """Remove a key if it still has `etag`: the etag, or `Refused`."""

    key: str
    etag: str


class Copy(msgspec.Struct, frozen=True, gc=False):
    """Copy an object inside the store; True, or False where there is no source. What is there is written anew."""

    source: str
    target: str


Op = Get | Create | Swap | List | Delete | DeleteIf | Copy


class Refused(Enum):
    """Why a conditional write has no etag to show."""

    CONFLICT = "conflict"
    UNKNOWN = "unknown"
    UNSUPPORTED = "unsupported"


CONFLICT = Refused.CONFLICT
UNKNOWN = Refused.UNKNOWN
UNSUPPORTED = Refused.UNSUPPORTED
WriteResult = str | Refused


class Blob(msgspec.Struct, frozen=True, gc=False):
    """An object as read: its bytes, its etag and when it was written, in milliseconds by the store's clock."""

    body: bytes
    etag: str
    modified: int


class Item(msgspec.Struct, frozen=True, gc=False):
    """An object as listed."""

    key: str
    etag: str
    size: int
    modified: int


class Page(msgspec.Struct, frozen=True):
    """Part of a listing; `more` says that it goes on after the last item. After a full page it may turn out not to."""

    items: Sequence[Item]
    more: bool


class Blobs(Protocol):
    """What a kind of storage implements. `perform` may be called from the loop at any time."""

    @property
    def listing_ttl(self) -> float:
        """For how many seconds a claimer may work from one listing before it lists again."""
        ...

    poll_interval: float
    """Seconds between looks of a waiting claimer, when nothing wakes it."""

    patience: float
    """For how many seconds a ledger that another process has just written is taken to be in use, without a look."""

    immediate: bool
    """Whether `try_now` answers every operation, so that running things side by side gains nothing."""

    prompt: bool
    """Whether `try_now` answers most operations of a thread that isn't the loop's: there it may wait for a disk."""

    pledges: bool
    """Whether a `Create` may have a pledge, or be made durable later: where waiting for a disk is what it costs."""

    async def open(self, clock: Clock) -> None:
        """Connect, and set the clock's offset where the store keeps a time of its own."""
        ...

    async def perform(self, op: Op) -> object:
        """Do one operation. Raises StoreUnavailable or PermissionDenied where the store doesn't answer."""
        ...

    def try_now(self, op: Op) -> object:
        """The result at once, without waiting, or NotImplemented where the store must be waited for."""
        ...

    async def put_stream(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        """Create an object from a stream; nothing is visible until the stream has ended. Returns its size.

        Its name must not have been used before: a large object may replace one that is there.
        """
        ...

    def get_stream(self, key: str, *, chunk: int = 1024 * 1024) -> AsyncGenerator[bytes]:
        """An object's bytes, in chunks. Raises MessageNotFound where there is none."""
        ...

    def watch(self, prefix: str, wake: Callable[[str], None]) -> Callable[[], None] | None:
        """Call `wake(key)` when a key under `prefix` is written; returns how to stop, or None if it can't tell."""
        ...

    def requests(self) -> dict[str, int]:
        """How many operations of each kind this process made."""
        ...

    async def close(self) -> None:
        """Let go of files, threads and connections."""
        ...


class Gathering(ABC):
    """Storage for which several writes are little more work than one."""

    @abstractmethod
    def try_now(self, op: Op) -> object: ...

    def try_all(self, ops: Sequence[Op]) -> Sequence[object]:
        """`try_now` for each, with writes that share a commit. The answer to one that failed is its error."""
        return [self._tried(op) for op in ops]

    def _tried(self, op: Op) -> object:
        try:
            return self.try_now(op)
        except Exception as error:
            return error
