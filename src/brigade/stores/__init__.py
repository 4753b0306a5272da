"""What keeps messages. `Store` is the port that the bucket store implements and other stores will."""

from __future__ import annotations

import operator
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload, runtime_checkable

import msgspec

from brigade.clock import Clock
from brigade.errors import BrigadeError
from brigade.machine import State
from brigade.model import Ack, FailedMessage, Grant, Lease, Message, MessageInfo, Receipt, Settlement, Stats
from brigade.policy import QueuePolicy

if TYPE_CHECKING:
    from brigade.crypto.fields import Fields

__all__ = [
    "Block",
    "ChoosingStore",
    "Column",
    "Failed",
    "Joined",
    "JoiningStore",
    "LeasingStore",
    "NotingStore",
    "Outgoing",
    "Pace",
    "PacedStore",
    "PairingStore",
    "PatientStore",
    "Payloads",
    "ProtectedStore",
    "RepeatingStore",
    "Same",
    "ScannedTable",
    "ScanningStore",
    "Settled",
    "SharingStore",
    "Staged",
    "StagingStore",
    "Store",
    "Taker",
    "TokenStore",
    "seating",
    "sizes_of",
]

ScannedTable = Literal["messages", "leases", "failed", "history"]


class Outgoing(msgspec.Struct, gc=False):
    """A checked message on its way in. A payload too large to sit with others comes as a stream."""

    payload: bytes | AsyncIterator[bytes]
    content_type: str
    priority: int = 5
    delay: float = 0.0
    id: str | None = None
    group: str | None = None
    ttl: float | None = None
    max_attempts: int | None = None
    attributes: dict[str, Any] | None = None
    correlation_id: str | None = None


class Payloads(Sequence[Outgoing]):
    """Messages on their way in that differ in nothing but their payloads: those one after the other, and their bounds.

    To a store that knows nothing of it, a sequence like any other.
    """

    def __init__(self, data: memoryview, bounds: Sequence[int], content_type: str) -> None:
        self.data = data
        self.bounds = bounds
        self.content_type = content_type

    @cached_property
    def sizes(self) -> list[int]:
        return list(map(operator.sub, self.bounds[1:], self.bounds))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, place: int) -> Outgoing: ...

    @overload
    def __getitem__(self, place: slice) -> list[Outgoing]: ...

    def __getitem__(self, place: int | slice) -> Outgoing | list[Outgoing]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        one = range(len(self))[place]
        return Outgoing(bytes(self.data[self.bounds[one] : self.bounds[one + 1]]), self.content_type)


class Failed(msgspec.Struct, frozen=True):
    """A message that failed while nobody held it: its last lease ran out, or it waited beyond its ttl."""

    queue: str
    id: str
    status: str
    error: str
    attempts: int
    correlation_id: str | None = None
    max_attempts: int | None = None
    original_id: str | None = None


class Settled(msgspec.Struct, frozen=True):
    """How a message stands after a settlement; `lease` is set where it is still leased."""

    state: State
    lease: Lease | None
    attempts: int
    max_attempts: int
    due_at_ms: int = 0


class Staged(msgspec.Struct, frozen=True):
    """Messages that are durable and that nobody sees yet. Plain data: another process may publish them."""

    count: int
    at_ms: int
    detail: bytes


class Same(msgspec.Struct, frozen=True):
    """A column with one value for all rows."""

    value: Any


class Joined(msgspec.Struct, frozen=True):
    """A column of byte strings, one after the other; `sizes` as `sizes_of` reads them."""

    data: bytes
    sizes: bytes

    def values(self) -> list[bytes]:
        sizes = sizes_of(self.sizes)
        return [self.data[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]


def sizes_of(packed: bytes) -> tuple[int, ...]:
    """Sizes that were written as four bytes each, the lowest first."""
    return struct.unpack(f"<{len(packed) // 4}I", packed)


Column = list[Any] | Same | Joined


class Block(msgspec.Struct, frozen=True):
    """Rows as columns: values as the model has them, times in milliseconds."""

    count: int
    columns: Mapping[str, Column]


class Store(Protocol):
    """Queues of messages with exclusive leases. Every method obeys `brigade.machine` and the guarantees in the docs."""

    clock: Clock
    """The store's time."""

    on_failure: Callable[[Failed], None] | None
    """Called for each message that a claim or a sweep of this process ended."""

    @property
    def prompt(self) -> bool:
        """Whether calls that don't wait for messages hardly wait at all: a thread carries out its own."""
        ...

    async def open(self) -> None:
        """Connect. Raises what keeps the store from being used: StoreUnavailable, PermissionDenied, ConfigError."""
        ...

    async def open_queue(self, name: str, policy: QueuePolicy | None, *, replace: bool, create: bool) -> QueuePolicy:
        """The queue's policy, after creating the queue if need be. A policy that differs is a ConfigError."""
        ...

    async def queues(self) -> list[str]: ...

    async def enqueue(self, queue: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        """Make messages durable; returns when they are."""
        ...

    async def claim(
        self, queue: str, *, limit: int, owner: str, visibility: float, patient: bool = False
    ) -> list[Grant]:
        """Win leases on up to `limit` messages, without waiting and without reading payloads.

        Who is `patient` waits and comes back: what others most likely hold need not be looked into each time.
        """
        ...

    async def load(self, grants: Sequence[Grant]) -> list[Message]:
        """Read the messages of grants, possibly won in another process."""
        ...

    async def wait(self, queue: str, seconds: float) -> None:
        """Return when there may be something to claim, at the latest after `seconds`."""
        ...

    def wake(self, queue: str) -> None:
        """Have waiting claims of this process look at once: somebody knows of something new."""
        ...

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[Settled | BrigadeError]:
        """Ack, nack, extend and release: one answer each, in order.

        StaleLease says that it was refused; another error, that this one may not have been written while others
        were. Where none was written that error is raised.
        """
        ...

    async def paused(self, queue: str) -> bool: ...

    async def stats(self, queue: str) -> Stats: ...

    async def peek(self, queue: str, limit: int) -> list[MessageInfo]: ...

    async def get(self, queue: str, message_id: str) -> MessageInfo: ...

    async def failed(self, queue: str, limit: int) -> list[FailedMessage]: ...

    async def redrive(self, queue: str, ids: AbstractSet[str] | None, limit: int) -> int: ...

    async def purge(self, queue: str, *, failed_only: bool = False) -> int:
        """Drop every message that is not in flight, and every parked failure, or only those; returns how many."""
        ...

    async def pause(self, queue: str) -> None: ...

    async def resume(self, queue: str) -> None: ...

    async def delete(self, queue: str) -> None: ...

    async def load_state(self, queue: str, ref: str) -> tuple[bytes, str] | None: ...

    async def save_state(self, queue: str, ref: str, value: bytes, etag: str | None, correlation: str) -> str: ...

    def open_payload(self, message: Message) -> AsyncIterator[bytes]:
        """The bytes of a payload that is stored apart; CorruptObject at the end where they are not what was sent."""
        ...

    async def forget(self, queue: str) -> None:
        """Drop what this process remembers of a queue. It costs requests and nothing else."""
        ...

    async def sweep(self, queue: str) -> dict[str, int]:
        """Finish what crashes left; returns what was done."""
        ...

    def requests(self) -> dict[str, int]: ...

    async def close(self) -> None:
        """Finish what is under way, then let go."""
        ...


class Pace(msgspec.Struct, frozen=True):
    """How often a store is looked at while somebody waits, in seconds. None: as the store sees fit.

    `poll` is between looks at a store that doesn't tell of changes, `jitter` comes on top of it by chance, `safety` is
    between looks at one that does, 0 being never; without `watch` it is not asked to tell.
    """

    poll: float | None = None
    jitter: float | None = None
    safety: float | None = None
    watch: bool = True


@runtime_checkable
class PacedStore(Protocol):
    """A store that can be told how often to look."""

    pace: Pace


@runtime_checkable
class ChoosingStore(Protocol):
    """A store that can get at messages that somebody has chosen, wherever they are in line."""

    async def claim_these(self, queue: str, refs: Sequence[str], *, owner: str, visibility: float) -> list[Grant]:
        """Lease these very messages, due or not; what is leased, has ended or lies in a lane is left out."""
        ...

    async def reprioritize(self, queue: str, refs: Sequence[str], priority: int) -> int:
        """Give waiting messages another priority; returns how many. What lies in a lane has none to give."""
        ...


@runtime_checkable
class LeasingStore(Protocol):
    """A store whose `claim` brings messages along, and that can leave them for others to load."""

    async def lease(self, queue: str, *, limit: int, owner: str, visibility: float) -> list[Grant]:
        """`claim`, of which only the leases come here."""
        ...


@runtime_checkable
class PatientStore(Protocol):
    """A store that can wait for messages where they are kept, instead of being asked again and again."""

    async def claim_within(self, queue: str, *, limit: int, owner: str, visibility: float, wait: float) -> list[Grant]:
        """`claim`, which takes up to `wait` seconds to win the first. Cancelled, it gives back what it won."""
        ...


@runtime_checkable
class PairingStore(Protocol):
    """A store that acks a message and claims the next with one request, where each costs a way there and back."""

    async def claim_after(
        self, queue: str, ack: Ack, *, limit: int, owner: str, visibility: float, wait: float
    ) -> tuple[Settled, list[Grant] | BrigadeError]:
        """Ack a message, then `claim_within`; what became of both. Raises where it can't be acked: nothing is claimed.

        Cancelled, it gives back what it won; the message may be acked or not.
        """
        ...


class Taker(msgspec.Struct, frozen=True):
    """One of several who claim together."""

    owner: str
    limit: int
    patient: bool = False


def seating(takers: Sequence[Taker]) -> list[int]:
    """Which taker gets the first message, the second, …: one each in order, then more in the same order."""
    plan = list(range(len(takers)))
    for number, taker in enumerate(takers):
        plan += [number] * (taker.limit - 1)
    return plan


@runtime_checkable
class SharingStore(Protocol):
    """A store that can claim for several owners in one go."""

    async def claim_for(self, queue: str, takers: Sequence[Taker], *, visibility: float) -> list[list[Grant]]:
        """`claim` for each of them, messages in the order of `seating`: the grants of each taker.

        Every lease is its owner's, under a token that the tokens of the other takers don't tell.
        """
        ...


@runtime_checkable
class RepeatingStore(Protocol):
    """A store that can tell whether a settlement was carried out before."""

    async def settle_again(self, queue: str, settlements: Sequence[Settlement]) -> list[Settled | BrigadeError]:
        """`settle` of what may have been settled before, by whoever died before they could say so.

        A lease that ended in just this way, under this token and version, is no stale one: the answer is how the
        message stands. That needs the lease's version, not only its token.
        """
        ...


@runtime_checkable
class ProtectedStore(Protocol):
    """A store that can seal what it keeps."""

    def protect(self, fields: Fields) -> None:
        """Seal what is written from now on. Called before `open`."""
        ...

    async def key_usage(self) -> Counter[str]:
        """How much is sealed under each key, by its id, and under "" how much is not. Looks at everything."""
        ...


@runtime_checkable
class TokenStore(Protocol):
    """A store that keeps the tokens of the servers in front of it, so that they all know the same ones."""

    async def write_token(self, id: str, body: bytes) -> bool:
        """Keep a token under a new id; False where the id is taken."""
        ...

    async def tokens(self) -> list[tuple[str, bytes]]:
        """All tokens, by id."""
        ...

    async def drop_token(self, id: str) -> bool:
        """Forget a token; False where there is none."""
        ...


@runtime_checkable
class JoiningStore(Protocol):
    """A store whose work can join a transaction that the caller has opened: it is done exactly if that commits."""

    async def enqueue_in(self, connection: Any, queue: str, messages: Sequence[Outgoing]) -> list[Receipt]: ...

    async def settle_in(
        self, connection: Any, queue: str, settlements: Sequence[Settlement]
    ) -> list[Settled | BrigadeError]: ...


@runtime_checkable
class StagingStore(Protocol):
    """A store that bulk jobs write to: many processes stage messages, then one publishes them all or none."""

    async def stage(self, queue: str, job: str, messages: Sequence[Outgoing]) -> Staged:
        """Make messages durable without showing them to anybody. What is never published goes after a week."""
        ...

    async def publish(self, queue: str, job: str, staged: Sequence[Staged], *, epoch: int | None = None) -> int:
        """Show all of it, in this order; returns how many messages that are.

        A job is published once: the second time returns 0, changes nothing and drops what it was given. If the
        process dies half-way, the next call of that job, or a sweep, completes it. With `epoch` the job is a
        stream, and each of its epochs is published once, none after a later one.
        """
        ...

    async def discard(self, queue: str, job: str, staged: Sequence[Staged]) -> None:
        """Remove what was staged and won't be published. What has been published is left alone."""
        ...


@runtime_checkable
class ScanningStore(Protocol):
    """A store whose contents can be looked through by several processes, each its share. No lease is taken.

    `messages` are those in the queue, with their leases; `leases` only those that are leased; `failed` the parked
    failures; `history` what has finished.
    """

    async def pieces(self, queue: str, table: ScannedTable, most: int, *, since: int = 0) -> list[bytes]:
        """About `most` pieces of similar size, plain data; 0: as many as are worth a task each.

        Of history, only what was written at `since` or later.
        """
        ...

    def scan(self, queue: str, table: ScannedTable, piece: bytes) -> AsyncIterator[Block]:
        """The rows of a piece. What ended since it was made is left out."""
        ...


@runtime_checkable
class NotingStore(Protocol):
    """A store that keeps notes beside a queue: what a stream of Spark has leased, under a name of its own.

    A note that is neither written anew nor dropped goes after a week.
    """

    async def write_note(self, queue: str, name: str, value: bytes) -> bytes:
        """Write a note unless there is one of that name; returns the one that is there."""
        ...

    async def read_note(self, queue: str, name: str) -> bytes | None: ...

    async def drop_note(self, queue: str, name: str) -> None: ...
