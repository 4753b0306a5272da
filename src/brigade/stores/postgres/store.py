"""The PostgreSQL store: queues in a database."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from brigade.clock import to_ms
from brigade.crypto import places
from brigade.errors import QueueNotFound
from brigade.model import FailedMessage, Message, MessageInfo, Receipt, Stats
from brigade.policy import QueuePolicy
from brigade.stores import Outgoing
from brigade.stores.postgres import inspect, queues
from brigade.stores.postgres.claiming import PostgresClaiming
from brigade.stores.postgres.enqueue import COPY_FROM, Draft, Seal, Written, enqueue, find_batch, is_plain
from brigade.stores.postgres.held import HeldQueue
from brigade.stores.postgres.joined import Joined
from brigade.stores.postgres.payloads import one, read_payload, take_in
from brigade.stores.postgres.ports import PostgresPorts
from brigade.stores.postgres.sealing import open_state, seal_drafts
from brigade.stores.postgres.steps import Ask, Steps

__all__ = ["PostgresStore"]

log = logging.getLogger("brigade")


class PostgresStore(PostgresClaiming, PostgresPorts):
    """Queues in a database. One instance belongs to one event loop."""

    async def open_queue(self, name: str, policy: QueuePolicy | None, *, replace: bool, create: bool) -> QueuePolicy:
        if create:
            id, stored = await self.link.run(
                lambda _: queues.ensure_queue(name, policy, replace=replace, fields=self._fields), atomic=replace
            )
        else:
            id, stored = await self.link.run(lambda _: queues.load_queue(name, self._fields))
        self._remember(name, id, stored)
        return stored

    async def queues(self) -> list[str]:
        return [row[0] for row in await self.link.run(lambda _: one(Ask("list_queues")))]

    async def enqueue(self, queue: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        held = await self._queue(queue)
        drafts = await take_in(self._run, queue, held.policy, messages, self._fields)
        try:
            return list(await held.enqueues.submit(drafts))
        except QueueNotFound:
            held = await self._anew(held)
            return list(await held.enqueues.submit(drafts))

    async def _write(self, held: HeldQueue, drafts: list[Draft]) -> Sequence[Receipt]:
        batch, since, seal = self.ids.bits(62) + 1, self.clock.now() - to_ms(3600), self._seal(held)

        def steps(doubt: bool) -> Steps[Written]:
            if doubt:
                found = yield from find_batch(held.name, held.id, drafts, batch, since)
                if found is not None:
                    return found
            return (yield from enqueue(held.name, held.id, drafts, batch, lifo=held.lifo, seal=seal))

        several = seal is not None or len(drafts) >= COPY_FROM or not all(map(is_plain, drafts))
        written = await self.link.run(steps, atomic=several)
        held.wake()
        if written.awaited:
            self._tell(held.id)
        return written.receipts

    def _seal(self, held: HeldQueue) -> Seal | None:
        if self._fields is None:
            return None
        return functools.partial(seal_drafts, self._fields, held.name, held.id)

    async def enqueue_in(self, connection: Any, queue: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        """Enqueue in a transaction that the caller has opened on a connection of its own."""
        joined = Joined(connection, self.link)
        held = await self._queue(queue)
        drafts = await take_in(joined.run, queue, held.policy, messages, self._fields)
        steps = enqueue(held.name, held.id, drafts, self.ids.bits(62) + 1, lifo=held.lifo, seal=self._seal(held))
        written = await joined.run(steps, notify=(self.channel, held.id))
        return written.receipts

    async def paused(self, queue: str) -> bool:
        held = await self._queue(queue)
        rows = await self.link.run(lambda _: one(Ask("is_paused", {"queue": held.id})))
        return bool(rows and rows[0][0])

    async def stats(self, queue: str) -> Stats:
        return await self._on(queue, lambda held: self.link.run(lambda _: inspect.stats(held.name, held.id)))

    async def peek(self, queue: str, limit: int) -> list[MessageInfo]:
        held = await self._queue(queue)
        return await self.link.run(lambda _: inspect.peek(queue, held.id, limit, lifo=held.lifo, fields=self._fields))

    async def get(self, queue: str, message_id: str) -> MessageInfo:
        held = await self._queue(queue)
        return await self.link.run(lambda _: inspect.find(queue, held.id, message_id, fields=self._fields))

    async def failed(self, queue: str, limit: int) -> list[FailedMessage]:
        held = await self._queue(queue)
        return await self.link.run(lambda _: inspect.failed(queue, held.id, limit, fields=self._fields))

    async def redrive(self, queue: str, ids: AbstractSet[str] | None, limit: int) -> int:
        """Parked failures of this queue, its dead letters, and, where it is a dead-letter queue, what lies in it."""
        held = await self._queue(queue)
        total = await self.link.run(lambda _: queues.redrive_parked(held.id, ids, limit, lifo=held.lifo), atomic=True)
        if total:
            self._back(held.id)
        letters = held.policy.failure.dead_letter_queue
        if letters is not None and total < limit:
            total += await self._redrive_from(letters, queue, ids, limit - total)
        if total < limit:
            total += await self._redrive_from(queue, None, ids, limit - total)
        return total

    async def _redrive_from(self, letters: str, origin: str | None, ids: AbstractSet[str] | None, limit: int) -> int:
        try:
            held = await self._queue(letters)
        except QueueNotFound:
            return 0
        count, touched = await self.link.run(lambda _: queues.redrive_letters(held.id, origin, ids, limit), atomic=True)
        for id in touched:
            self._back(id)
        return count

    async def purge(self, queue: str, *, failed_only: bool = False) -> int:
        held = await self._queue(queue)
        return await self.link.run(
            lambda _: queues.purge(held.id, lifo=held.lifo, failed_only=failed_only), atomic=True
        )

    async def pause(self, queue: str) -> None:
        held = await self._queue(queue)
        await self.link.run(lambda _: queues.set_paused(queue, held.id, paused=True))

    async def resume(self, queue: str) -> None:
        held = await self._queue(queue)
        await self.link.run(lambda _: queues.set_paused(queue, held.id, paused=False))
        held.wake_all()
        self._tell(held.id)

    async def delete(self, queue: str) -> None:
        held = await self._queue(queue)
        self._queues.pop(queue, None)
        await self.link.run(lambda _: queues.delete_queue(held.id), atomic=True)
        held.retire()

    async def load_state(self, queue: str, ref: str) -> tuple[bytes, str] | None:
        held = await self._queue(queue)
        found = await self.link.run(lambda _: inspect.load_state(held.id, ref))
        return None if found is None else (open_state(self._fields, queue, ref, found[0]), found[1])

    async def save_state(self, queue: str, ref: str, value: bytes, etag: str | None, correlation: str) -> str:
        held = await self._queue(queue)
        fresh = self.ids.bits(62)
        if self._fields is not None:
            value = self._fields.vault.seal(value, places.place_of("state", queue, ref), carry=True)
        return await self.link.run(lambda _: inspect.save_state(held.id, ref, value, etag, fresh))

    async def open_payload(self, message: Message) -> AsyncIterator[bytes]:
        held = await self._queue(message.queue)
        async for chunk in read_payload(self._run, held.id, message, self._fields):
            yield chunk
