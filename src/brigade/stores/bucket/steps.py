"""The words that the protocol is written in: what a generator may yield, and the writes that settle doubt.

A protocol function is a generator. It yields an operation and is resumed with the result; it yields `Parallel`
to have other generators run side by side, and `Sleep` to wait. It never does I/O and never reads a clock but
`env`'s, so the same code runs for real and in simulation.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from brigade.blobs import UNKNOWN, Blob, Copy, Create, Delete, Get, Item, List, Op, Page, Refused, Swap
from brigade.clock import Clock
from brigade.codec import Format, is_sound
from brigade.errors import CannotDecrypt, CorruptObject, StoreUnavailable
from brigade.ids import Ids
from brigade.stores.bucket.keys import corrupt_key

if TYPE_CHECKING:
    from brigade.crypto.fields import Fields

__all__ = [
    "MOST_TRIES",
    "Env",
    "Lost",
    "Parallel",
    "Proto",
    "Sleep",
    "Step",
    "after_refusal",
    "copy",
    "delete",
    "get",
    "list_all",
    "list_page",
    "passing_over",
    "read",
    "reread",
    "side_by_side",
    "write",
]

T = TypeVar("T")
MOST_TRIES = 12
BULK = 1000


class Sleep(msgspec.Struct, frozen=True, gc=False):
    """Wait that many seconds."""

    seconds: float


class Parallel(msgspec.Struct, frozen=True):
    """Run these generators side by side, at most `width` at once; the answer is the list of their results."""

    parts: Sequence[Generator[Any, Any, Any]]
    width: int = 16


Step = Op | Sleep | Parallel
Proto = Generator[Step, Any, T]


@dataclass(slots=True)
class Env:
    """The world as a protocol function sees it: the store's time, unique names, and where damage is reported.

    `unreadable` is what no key at hand opens and was passed over; `fields` is set where encryption is on.
    `conflicts` counts the writes that somebody else's came before.
    """

    clock: Clock
    ids: Ids
    damaged: list[CorruptObject] = field(default_factory=list[CorruptObject])
    unreadable: list[CannotDecrypt] = field(default_factory=list[CannotDecrypt])
    fields: Fields | None = None
    conflicts: int = 0

    def now(self) -> int:
        return self.clock.now()


class Lost(msgspec.Struct, frozen=True):
    """A conditional write that was not ours: what the object holds now, and whether it was in doubt."""

    current: Blob | None
    in_doubt: bool


def get(key: str) -> Proto[Blob | None]:
    return (yield Get(key))


def list_page(prefix: str, after: str = "", limit: int = BULK) -> Proto[Page]:
    return (yield List(prefix, after, limit))


def list_all(prefix: str, after: str = "") -> Proto[list[Item]]:
    """Every key under the prefix. For small sets and for upkeep, not for hot paths."""
    items: list[Item] = []
    while True:
        page = yield from list_page(prefix, after)
        items.extend(page.items)
        if not page.more or not page.items:
            return items
        after = page.items[-1].key


def delete(keys: Sequence[str]) -> Proto[None]:
    """Remove keys in bulk, a thousand a request."""
    for start in range(0, len(keys), BULK):
        yield Delete(tuple(keys[start : start + BULK]))


def copy(source: str, target: str) -> Proto[bool]:
    return (yield Copy(source, target))


def side_by_side(parts: Sequence[Proto[T]], width: int = 16) -> Proto[list[T]]:
    """The results of several protocol functions, run together; one alone is run in place."""
    if len(parts) > 1:
        return (yield Parallel(parts, width))
    return [(yield from parts[0])] if parts else []


def passing_over(refused: list[CannotDecrypt], part: Proto[T]) -> Proto[T | None]:
    """One part of many: where no key at hand opens what it reads, that is noted, and the others go on."""
    try:
        return (yield from part)
    except CannotDecrypt as error:
        refused.append(error)
        return None


def write(env: Env, op: Create | Swap, *, retry_absent: bool = True) -> Proto[str | Lost]:
    """A conditional write whose outcome is certain: the new etag, or `Lost`.

    Every body carries a fresh nonce, so an object with these very bytes is this very write: after a conflict
    or an unknown outcome the object is read back and compared. A write that is seen not to have been applied
    is tried again with the same bytes, so that a late arrival of the first try can only help. With
    `retry_absent=False` an object that is not there is `Lost`: it may have come and gone.
    """
    answer: str | Refused = yield op
    if isinstance(answer, str):
        return answer
    return (yield from after_refusal(env, op, answer, retry_absent=retry_absent))


def after_refusal(env: Env, op: Create | Swap, answer: Refused, *, retry_absent: bool = True) -> Proto[str | Lost]:
    """What became of a write that had that answer, as `write` tells it."""
    expected = op.etag if isinstance(op, Swap) else None
    in_doubt = False
    for attempt in range(MOST_TRIES):
        in_doubt = in_doubt or answer is UNKNOWN
        current = yield from get(op.key)
        if current is not None and is_sound(op.body) and not is_sound(current.body):
            current = yield from get(op.key)
        if current is not None and current.body == op.body:
            return current.etag
        if (current.etag if current else None) != expected:
            env.conflicts += 1
            return Lost(current, in_doubt)
        if current is None and not retry_absent:
            return Lost(None, True)
        yield Sleep(env.ids.uniform(0, min(0.05 * 2**attempt, 5)))
        again: str | Refused = yield op
        if isinstance(again, str):
            return again
        answer = again
    raise StoreUnavailable(f"the store kept failing to write {op.key!r}; check it and try again")


def read(env: Env, form: Format[T], key: str) -> Proto[tuple[T, str] | None]:
    """An object decoded, with its etag. Damaged bytes are read once more, in case the wire was at fault."""
    for again in (True, False):
        blob: Blob | None = yield Get(key)
        if blob is None:
            return None
        try:
            return form.decode(blob.body, key=key), blob.etag
        except CorruptObject as error:
            if not again:
                yield from keep_copy(env, key, blob, error)
                raise
    raise AssertionError("unreachable")


def reread(env: Env, form: Format[T], key: str, blob: Blob | None) -> Proto[tuple[T, str] | None]:
    """What a lost write found in its way, decoded; read anew where those bytes are damaged."""
    if blob is None:
        return None
    try:
        return form.decode(blob.body, key=key), blob.etag
    except CorruptObject:
        return (yield from read(env, form, key))


def keep_copy(env: Env, key: str, blob: Blob, error: CorruptObject) -> Proto[None]:
    """Set a damaged object's bytes aside under `corrupt/`; the original is the caller's to replace or delete."""
    yield from write(env, Create(corrupt_key(key), blob.body))
    env.damaged.append(error)
