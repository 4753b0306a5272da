"""The queue as async programs use it. The sync classes in `brigade.sync` are thin covers over these."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec.structs import force_setattr, replace

from brigade.checks import as_json, check_ids, check_limit, error_text, seconds
from brigade.errors import BrigadeError, ConfigError, QueuePaused, StaleLease
from brigade.inline import Begun, alone, on_the_loop
from brigade.machine import State
from brigade.model import (
    Ack,
    Extend,
    FailedMessage,
    Grant,
    Lease,
    Message,
    MessageInfo,
    Nack,
    Receipt,
    Release,
    Settlement,
    Stats,
)
from brigade.names import check_owner
from brigade.payload import NewMessage, outgoing, outgoing_many
from brigade.policy import QueuePolicy
from brigade.stores import JoiningStore, Outgoing, PairingStore, PatientStore, RepeatingStore, Settled, Store
from brigade.telling import tell_claimed, tell_enqueued, tell_settled

if TYPE_CHECKING:
    from brigade.hub import AsyncHub
    from brigade.worker import Worker

__all__ = ["AsyncQueue", "AsyncReader", "AsyncState", "Result", "give_back"]

Result = Lease | State | StaleLease
"""What became of one settlement: the new lease, the message's new state, or why it was refused."""

MOST_CLAIMED = 10_000
MOST_LISTED = 1_000_000_000


class AsyncQueue:
    """A named line of messages. Made by `await hub.queue(name)`."""

    def __init__(self, hub: AsyncHub, name: str, policy: QueuePolicy) -> None:
        self._hub = hub
        self.name = name
        self.policy = policy

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def hub(self) -> AsyncHub:
        return self._hub

    @property
    def _store(self) -> Store:
        return self._hub.store

    async def enqueue(
        self,
        payload: Any,
        *,
        priority: int = 5,
        delay: float = 0.0,
        id: str | None = None,
        group: str | None = None,
        ttl: float | None = None,
        max_attempts: int | None = None,
        attributes: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        content_type: str | None = None,
        connection: Any = None,
    ) -> Receipt:
        """Add one message: bytes, text, JSON values, a file or an iterator of bytes. Returns when it is durable.

        `priority` 0 is the most urgent, 9 the least. A message with an `id` that was enqueued before is not
        added again: the receipt is the first one's, with `duplicate` set. Messages of one `group` are handed
        out strictly in order, one at a time. With a `connection` to the same PostgreSQL database the message
        joins its transaction: it is there exactly if that commits.
        """
        message = NewMessage(
            payload=payload,
            priority=priority,
            delay=delay,
            id=id,
            group=group,
            ttl=ttl,
            max_attempts=max_attempts,
            attributes=attributes,
            correlation_id=correlation_id,
            content_type=content_type,
        )
        return await self.enqueue_checked(outgoing(message), connection)

    async def enqueue_checked(self, message: Outgoing, connection: Any = None) -> Receipt:
        """`enqueue` of a message that is checked already."""
        return (await self._enqueue([message], connection))[0]

    async def enqueue_all(self, messages: Iterable[NewMessage]) -> list[Receipt]:
        """`enqueue_many` of messages that all bring their own options."""
        return await self._enqueue([outgoing(message) for message in messages], None)

    async def enqueue_many(
        self,
        payloads: Iterable[Any],
        *,
        priority: int = 5,
        delay: float = 0.0,
        group: str | None = None,
        ttl: float | None = None,
        max_attempts: int | None = None,
        attributes: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        content_type: str | None = None,
        connection: Any = None,
    ) -> list[Receipt]:
        """Add many messages with few writes. An item may be a `NewMessage` with options of its own."""
        common = NewMessage(
            payload=None,
            priority=priority,
            delay=delay,
            group=group,
            ttl=ttl,
            max_attempts=max_attempts,
            attributes=attributes,
            correlation_id=correlation_id,
            content_type=content_type,
        )
        messages = outgoing_many(payloads, common)
        return await self._enqueue(messages, connection) if messages else []

    async def _enqueue(self, messages: list[Outgoing], connection: Any) -> list[Receipt]:
        with self._hub.tracer.sending(self.name, len(messages)) as carried:
            if carried:
                for message in messages:
                    message.attributes = {**(message.attributes or {}), **carried}
            if connection is not None:
                return await self._joining().enqueue_in(connection, self.name, messages)
            receipts = await self._store.enqueue(self.name, messages)
        tell_enqueued(self._hub.events, self.name, receipts)
        self._hub.wake_twins(self.name)
        return receipts

    def _joining(self) -> JoiningStore:
        store = self._store
        if not isinstance(store, JoiningStore):
            raise ConfigError("connection= joins a transaction of PostgreSQL; this store has none, leave it out")
        return store

    async def claim(
        self,
        limit: int = 1,
        *,
        wait: float = 0.0,
        owner: str | None = None,
        visibility: float | None = None,
        ack: Message | None = None,
    ) -> list[Message]:
        """Lease up to `limit` messages, waiting up to `wait` seconds for the first. An empty list: there was none.

        With `ack` that message is acked before anything is claimed, on `http://` with the same request. Raises
        StaleLease, and claims nothing, where its lease was lost; QueuePaused if nothing was handed out because the
        queue is paused.
        """
        holder = self._hub.owner if owner is None else check_owner(owner)
        length = self.policy.visibility_timeout if visibility is None else seconds(visibility, "visibility", low=0.001)
        check_limit(limit, MOST_CLAIMED)
        patience = seconds(wait, "wait")
        before = None
        if ack is not None:
            if isinstance(self._store, PairingStore):
                before = Ack(ack)
                _checked(before)
            else:
                await self.ack(ack)
        deadline = self._hub.clock.monotonic() + patience
        while True:
            left = max(0.0, deadline - self._hub.clock.monotonic())
            grants, messages = await self._claim(limit, holder, length, left, before)
            before = None
            if messages:
                self.tell_claimed(messages, grants)
                return messages
            if grants:
                continue
            left = deadline - self._hub.clock.monotonic()
            if left <= 0:
                if await self._store.paused(self.name):
                    raise QueuePaused(f"queue {self.name!r} is paused; call resume() to hand messages out again")
                return []
            if not isinstance(self._store, PatientStore):
                await on_the_loop()
                await self._store.wait(self.name, left)

    async def _claim(
        self, limit: int, owner: str, visibility: float, wait: float, before: Ack | None
    ) -> tuple[list[Grant], list[Message]]:
        """A claim that is cancelled half-way gives back what it won."""
        store = self._store
        winning = self._win(limit, owner, visibility, wait, before)
        if alone():
            winning = Begun(winning)
            if winning.ended:
                return winning.result
        claiming = asyncio.ensure_future(winning)
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            if wait and isinstance(store, PatientStore):
                claiming.cancel()
            self._hub.background(self._give_back(claiming))
            raise

    async def _win(
        self, limit: int, owner: str, visibility: float, wait: float, before: Ack | None
    ) -> tuple[list[Grant], list[Message]]:
        store = self._store
        if before is not None:
            grants = await self._win_after(before, limit, owner, visibility, wait)
        elif wait and isinstance(store, PatientStore):
            grants = await store.claim_within(self.name, limit=limit, owner=owner, visibility=visibility, wait=wait)
        else:
            patient = wait > 0
            grants = await store.claim(self.name, limit=limit, owner=owner, visibility=visibility, patient=patient)
        return grants, [self._bound(message) for message in await self._store.load(grants)] if grants else []

    async def _win_after(self, ack: Ack, limit: int, owner: str, visibility: float, wait: float) -> list[Grant]:
        """Ack a message and claim with one request."""
        store = self._store
        assert isinstance(store, PairingStore)
        acked, won = await store.claim_after(self.name, ack, limit=limit, owner=owner, visibility=visibility, wait=wait)
        self._tell_settled([ack], [acked])
        if isinstance(won, BrigadeError):
            raise won
        return won

    async def _give_back(self, claiming: asyncio.Future[tuple[list[Grant], list[Message]]]) -> None:
        _, messages = await claiming
        await self._store.settle(self.name, [Release(message) for message in messages])

    def _bound(self, message: Message) -> Message:
        force_setattr(message, "opener", self.reader)
        return message

    def reader(self, message: Message) -> AsyncReader:
        """A payload as it is read: one that is stored apart, chunk by chunk. `message.open()` is the same."""
        if message.body is not None:
            return AsyncReader.over(message.body)
        return AsyncReader(self._store.open_payload(message))

    async def ack(self, message: Message, *, result: Any = None, connection: Any = None) -> None:
        """The work is done: the message is never delivered again. `result` is kept in history.

        With a `connection` to the same PostgreSQL database the ack joins its transaction: what was written there
        and the ack are committed together. Raises StaleLease where the lease was lost: roll back.
        """
        wanted = Ack(message, result)
        if connection is None:
            await self._one(wanted)
            return
        (answer,) = await self._joining().settle_in(connection, self.name, [_checked(wanted)])
        if isinstance(answer, StaleLease):
            raise answer

    async def nack(
        self,
        message: Message,
        *,
        error: str | BaseException | None = None,
        delay: float | None = None,
        penalize: bool = True,
    ) -> State:
        """The work failed. It is retried after the policy's backoff, or `delay`, until its attempts are spent."""
        answer = await self._one(Nack(message, error_text(error), delay, penalize))
        return answer if isinstance(answer, State) else State.READY

    async def extend(self, message: Message, seconds: float | None = None) -> Lease:
        """Hold the message for `seconds` from now, or for the policy's lease length."""
        answer = await self._one(Extend(message, seconds))
        assert isinstance(answer, Lease)
        return answer

    async def release(self, message: Message, *, delay: float = 0.0) -> None:
        """Give the message back at once, without counting the attempt."""
        await self._one(Release(message, delay))

    async def ack_many(self, messages: Iterable[Message]) -> list[Result]:
        """Ack many messages with few writes; one result each."""
        return await self.settle([Ack(message) for message in messages])

    async def settle(self, settlements: Iterable[Settlement]) -> list[Result]:
        """Ack, nack, extend and release in one batch. A stale lease is a result, not an exception.

        Where the store fails for some of them that error is raised; the others are settled all the same.
        """
        answers = await self.settle_each(settlements)
        for answer in answers:
            if isinstance(answer, BrigadeError) and not isinstance(answer, StaleLease):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BrigadeError) or isinstance(answer, StaleLease)]

    async def settle_each(self, settlements: Iterable[Settlement]) -> list[Lease | State | BrigadeError]:
        """`settle`, but where the store fails for some of them that error is their result."""
        answers = await self.settle_fully(settlements)
        return [answer if isinstance(answer, BrigadeError) else answer.lease or answer.state for answer in answers]

    async def settle_fully(
        self, settlements: Iterable[Settlement], *, again: bool = False
    ) -> list[Settled | BrigadeError]:
        """`settle_each`, with all that the store says about each of them.

        `again` says that they may have been settled before, in just this way, by a process that has died since.
        """
        wanted = [_checked(settlement) for settlement in settlements]
        if not wanted:
            return []
        store = self._store
        if again and isinstance(store, RepeatingStore):
            answers = await store.settle_again(self.name, wanted)
        else:
            answers = await store.settle(self.name, wanted)
        self._tell_settled(wanted, answers)
        return answers

    async def _one(self, settlement: Settlement) -> Lease | State:
        answer = (await self.settle([settlement]))[0]
        if isinstance(answer, StaleLease):
            raise answer
        return answer

    async def stats(self) -> Stats:
        """How many messages are where."""
        return await self._store.stats(self.name)

    async def get(self, id: str) -> MessageInfo:
        """A message by its id, waiting, in flight or ended."""
        if not isinstance(id, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"id must be a message's id, not {id!r}")
        return await self._store.get(self.name, id)

    async def peek(self, limit: int = 10) -> list[MessageInfo]:
        """The messages that a claim would get now, without leasing them."""
        return await self._store.peek(self.name, check_limit(limit, MOST_LISTED))

    async def failed(self, limit: int = 1000) -> list[FailedMessage]:
        """Messages that failed for good and are kept here, oldest first."""
        return await self._store.failed(self.name, check_limit(limit, MOST_LISTED))

    async def redrive(self, ids: Iterable[str] | None = None, *, limit: int = 1_000_000) -> int:
        """Bring failures back: parked ones, this queue's dead letters, or, on a dead-letter queue, what lies in it."""
        return await self._store.redrive(self.name, check_ids(ids), check_limit(limit, MOST_LISTED))

    async def purge(self, *, failed_only: bool = False) -> int:
        """Drop every message that is not in flight, and every parked failure, or only those; returns how many."""
        return await self._store.purge(self.name, failed_only=failed_only)

    async def pause(self) -> None:
        """Hand nothing out until `resume`. What is in flight may still be settled."""
        await self._store.pause(self.name)

    async def resume(self) -> None:
        await self._store.resume(self.name)

    async def delete(self) -> None:
        """Remove the queue and everything in it."""
        await self._store.delete(self.name)

    async def sweep(self) -> dict[str, int]:
        """Finish what crashes left. Claimers do this by themselves, now and then."""
        return await self._store.sweep(self.name)

    async def clear_queue_cache(self) -> None:
        """Forget what this process remembers of the queue. Nothing is lost: it is read again when it is needed."""
        self._hub.processed.forget(self.name)
        await self._store.forget(self.name)

    async def start_processing(self, handler: Callable[..., Any], **options: Any) -> Worker:
        """Run `handler` on this queue's messages from now on; the options are those of `Worker`."""
        from brigade.worker import Worker

        return await self._hub.hire(Worker(self, handler, **options))

    async def stop_processing(self, grace: float | None = None) -> None:
        """Stop what `start_processing` started: handlers that run may finish within `grace` seconds."""
        await self._hub.dismiss(self.name, grace)

    def state(self, message: Message | MessageInfo, *, etag: str | None = None) -> AsyncState:
        """The workflow state beside a message: `load()`, and `save(value)` by compare-and-swap.

        `etag` is what another handle had when it loaded or saved: this one goes on from there.
        """
        return AsyncState(self, message, etag)

    def tell_claimed(self, messages: Sequence[Message], grants: Sequence[Grant]) -> None:
        """Emit what a claim has to tell."""
        tell_claimed(self._hub.events, self.name, messages, grants)

    def _tell_settled(self, settlements: Sequence[Settlement], answers: Sequence[Settled | BrigadeError]) -> None:
        buries = self.policy.failure.dead_letter_queue is not None
        tell_settled(self._hub.events, self.name, settlements, answers, clock=self._hub.clock, buries=buries)


class AsyncReader:
    """A payload, read as it is needed: `async for chunk in reader`, or `await reader.read()`."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    @classmethod
    def over(cls, body: bytes) -> Self:
        """A payload that is here already."""

        async def whole() -> AsyncIterator[bytes]:
            yield body

        return cls(whole())

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, or all that is left; empty at the end."""
        held = bytearray(self._rest)
        while size < 0 or len(held) < size:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                break
            held += chunk
        if size < 0:
            self._rest = b""
            return bytes(held)
        self._rest = bytes(held[size:])
        return bytes(held[:size])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        closing = getattr(self._chunks, "aclose", None)
        if closing is not None:
            await closing()


class AsyncState:
    """Workflow state of one message. `save` succeeds only over what this handle has loaded or saved."""

    def __init__(self, queue: AsyncQueue, message: Message | MessageInfo, etag: str | None = None) -> None:
        self._queue = queue
        self._message = message
        self._etag = etag

    @property
    def etag(self) -> str | None:
        """Stands for the value that was last loaded or saved here; None: there was none."""
        return self._etag

    async def load(self, default: Any = None) -> Any:
        """The value last saved, or `default`."""
        found = await self._queue._store.load_state(self._queue.name, self._message.ref)  # pyright: ignore[reportPrivateUsage]
        if found is None:
            self._etag = None
            return default
        value, self._etag = found
        return msgspec.json.decode(value)

    async def save(self, value: Any) -> None:
        """Store a value. Raises StaleLease if somebody else saved since this handle loaded."""
        encoded = as_json(value, "workflow state")
        if len(encoded) > 1024 * 1024:
            raise ConfigError(f"workflow state takes {len(encoded)} bytes; keep it under 1 MiB")
        store = self._queue._store  # pyright: ignore[reportPrivateUsage]
        self._etag = await store.save_state(
            self._queue.name, self._message.ref, encoded, self._etag, self._message.correlation_id
        )


_SETTLEMENTS = frozenset((Ack, Nack, Extend, Release))


def give_back(queue: AsyncQueue, messages: Sequence[Message]) -> None:
    """Release messages that nobody got to see, in the background."""
    if messages:
        queue.hub.background(queue.settle([Release(message) for message in messages]))


def _checked(settlement: Any) -> Settlement:
    if type(settlement) not in _SETTLEMENTS:
        raise ConfigError(f"a settlement is Ack, Nack, Extend or Release, not {type(settlement).__name__}")
    if not isinstance(settlement.message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"settle a claimed Message, not {type(settlement.message).__name__}")
    if isinstance(settlement, Ack):
        if settlement.result is not None:
            as_json(settlement.result, "the result")
        return settlement
    if isinstance(settlement, Extend):
        if settlement.seconds is not None:
            seconds(settlement.seconds, "seconds", low=0.001)
        return settlement
    if settlement.delay is not None:
        seconds(settlement.delay, "delay")
    if isinstance(settlement, Nack):
        return replace(settlement, error=error_text(settlement.error))
    return settlement
