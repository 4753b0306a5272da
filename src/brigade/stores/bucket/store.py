"""The bucket store: queues on blobs, and how waiting claimers of one process share their looking."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet

from brigade.clock import FOREVER
from brigade.crypto.places import binding_of, crc_of
from brigade.errors import BrigadeError, CannotDecrypt, CorruptObject, QueueNotFound
from brigade.model import (
    Ack,
    FailedMessage,
    Grant,
    Message,
    MessageInfo,
    Nack,
    Receipt,
    Release,
    Settlement,
    Stats,
)
from brigade.policy import QueuePolicy
from brigade.stores import Outgoing, Settled
from brigade.stores.bucket import admin, inspect, state
from brigade.stores.bucket.claim import claim, claim_places
from brigade.stores.bucket.convert import again_with, entry_of, messages_of
from brigade.stores.bucket.held import HeldQueue
from brigade.stores.bucket.incoming import take_in
from brigade.stores.bucket.keys import QueueKeys, SegmentName, parse_message_ref
from brigade.stores.bucket.load import load
from brigade.stores.bucket.moves import complete_moves
from brigade.stores.bucket.pairs import BucketPairs
from brigade.stores.bucket.ports import BucketPorts
from brigade.stores.bucket.redrive import redrive_letters, redrive_parked

__all__ = ["BucketStore"]

log = logging.getLogger("brigade")
FIRST_POLL = 0.1
SAFETY_POLL = 30.0
CHOSEN_FOR = 120.0


class BucketStore(BucketPorts, BucketPairs):
    """Queues in a bucket. One instance belongs to one event loop."""

    async def open_queue(self, name: str, policy: QueuePolicy | None, *, replace: bool, create: bool) -> QueuePolicy:
        keys = QueueKeys(name)
        if create:
            stored = await self.run(admin.ensure_queue(self.env, keys, policy, replace=replace))
        else:
            stored = await self.run(admin.load_policy(self.env, keys))
        self._remember(name, stored)
        return stored

    async def queues(self) -> list[str]:
        return await self.run(admin.list_queues())

    async def enqueue(self, queue: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        held = await self._queue(queue)
        drafts = await take_in(self.env, self._blobs, held.view, messages)
        return list(await held.enqueues.submit(drafts))

    async def claim_these(self, queue: str, refs: Sequence[str], *, owner: str, visibility: float) -> list[Grant]:
        held = await self._queue(queue)
        chosen: dict[SegmentName, list[int]] = {}
        for ref in refs:
            found = parse_message_ref(ref)
            if found is not None:
                chosen.setdefault(found[0], []).append(found[1])
        won = await self.run(claim_places(self.env, held.view, chosen, owner, visibility))
        self._tell_failures(held)
        self._finish_soon(held)
        return won

    async def reprioritize(self, queue: str, refs: Sequence[str], priority: int) -> int:
        """Copies are written first, then the originals are acked: who dies in between leaves both."""
        held = await self._queue(queue)
        grants = await self.claim_these(queue, refs, owner="reprioritize", visibility=CHOSEN_FOR)
        found = await self.run(load(self.env, held.view, grants))
        messages = [message for loaded in found for message in messages_of(queue, loaded)]
        entries = [entry for loaded in found for entry in loaded.entries]
        movable = [entry.own_id is None and entry.payload is not None for entry in entries]
        now = self.env.now()
        again = [again_with(entry, priority, now) for entry, can in zip(entries, movable, strict=True) if can]
        if again:
            await self.enqueue(queue, again)
        done = {"reprioritized": priority}
        settlements: list[Settlement] = [
            Ack(one, done) if can else Release(one) for one, can in zip(messages, movable, strict=True)
        ]
        answers = await self.settle(queue, settlements)
        return sum(can and isinstance(one, Settled) for one, can in zip(answers, movable, strict=True))

    async def wait(self, queue: str, seconds: float) -> None:
        """Claims that wait together look together: each polls the less often the more they are, and wakes the rest."""
        held = await self._queue(queue)
        listening = held.listening
        pace = self.pace
        poll = self._blobs.poll_interval if pace.poll is None else pace.poll
        watching = pace.watch and held.watch(self._blobs)
        longest = (SAFETY_POLL if pace.safety is None else pace.safety or FOREVER) if watching else poll
        if held.listening and not listening:
            held.view.stale()
            return
        view, now = held.view, self.env.now()
        if view.paused:
            longest, soonest = min(longest, poll), FOREVER
        else:
            known = [one.next_at for one in (*view.ledgers.values(), *view.lanes.values())]
            # Not what is after now: the last claim was too early for what has come due since it began.
            soonest = min((at for at in (view.next_due, *known) if at > held.looked_at), default=FOREVER)
        interval = min(FIRST_POLL * 2.0**held.idle_polls, longest * (2 if view.has_lanes else 1))
        interval *= held.waiting + 1
        if pace.jitter is None:
            interval *= self.env.ids.uniform(0.8, 1.2)
        else:
            interval += self.env.ids.uniform(0, pace.jitter) if not watching else 0
        timeout = min(seconds, (soonest - now) / 1000, interval)
        held.idle_polls = min(held.idle_polls + 1, 20)
        held.waiting += 1
        try:
            async with asyncio.timeout(timeout):
                await held.woken.wait()
            held.idle_polls = 0
        except TimeoutError:
            pass
        finally:
            held.waiting -= 1

    def wake(self, queue: str) -> None:
        """Where the store itself tells of new segments there is nothing to add."""
        held = self._queues.get(queue)
        if held is not None and not held.watch(self._blobs):
            held.view.stale()
            held.wake()

    async def paused(self, queue: str) -> bool:
        return (await self._queue(queue)).view.paused

    async def stats(self, queue: str) -> Stats:
        held = await self._queue(queue)
        async with held.finishing:
            return await self.run(inspect.stats(self.env, held.view))

    async def peek(self, queue: str, limit: int) -> list[MessageInfo]:
        held = await self._queue(queue)
        return await self.run(inspect.peek(self.env, held.view, limit))

    async def get(self, queue: str, message_id: str) -> MessageInfo:
        held = await self._queue(queue)
        return await self.run(inspect.find(self.env, held.view, message_id))

    async def failed(self, queue: str, limit: int) -> list[FailedMessage]:
        held = await self._queue(queue)
        return await self.run(inspect.failed(self.env, held.view, limit))

    async def redrive(self, queue: str, ids: AbstractSet[str] | None, limit: int) -> int:
        """Parked failures of this queue, its dead letters, and, where it is a dead-letter queue, what lies in it."""
        held = await self._queue(queue)
        await self._see_moved(held)
        total = await self.run(redrive_parked(self.env, held.view, ids, limit))
        letters = held.view.policy.failure.dead_letter_queue
        if letters is not None and total < limit:
            total += await self._redrive_from(letters, queue, ids, limit - total)
        if total < limit:
            total += await self._redrive_from(queue, None, ids, limit - total)
        held.wake()
        return total

    async def purge(self, queue: str, *, failed_only: bool = False) -> int:
        held = await self._queue(queue)
        await self._see_moved(held)
        count = await self.run(admin.purge(self.env, held.view, failed_only=failed_only))
        await self._finish_now(held)
        return count

    async def pause(self, queue: str) -> None:
        held = await self._queue(queue)
        await self.run(admin.pause(self.env, held.view))

    async def resume(self, queue: str) -> None:
        held = await self._queue(queue)
        await self.run(admin.resume(held.view))
        held.wake()

    async def delete(self, queue: str) -> None:
        held = await self._queue(queue)
        async with held.finishing:
            await self.run(admin.delete_queue(held.view))
            held.deleted = True
        held.close()
        self._queues.pop(queue, None)

    async def load_state(self, queue: str, ref: str) -> tuple[bytes, str] | None:
        held = await self._queue(queue)
        return await self.run(state.load_state(self.env, held.view, ref))

    async def save_state(self, queue: str, ref: str, value: bytes, etag: str | None, correlation: str) -> str:
        held = await self._queue(queue)
        return await self.run(state.save_state(self.env, held.view, ref, value, etag, correlation))

    async def open_payload(self, message: Message) -> AsyncIterator[bytes]:
        key = QueueKeys(message.queue).blob(message.ref)
        size = checksum = 0
        binding, fields = binding_of(message.checksum), self.env.fields
        if binding is not None and fields is None:
            raise CannotDecrypt(f"payload {key!r} is sealed; connect with encryption= and the keys of this store")
        async with contextlib.aclosing(self._blobs.get_stream(key)) as stored:
            chunks: AsyncIterator[bytes] = stored
            if binding is not None and fields is not None:
                chunks = fields.open_stream(stored, binding, f"payload {key!r}")
            async for chunk in chunks:
                size += len(chunk)
                checksum = zlib.crc32(chunk, checksum)
                yield chunk
        if size != message.size or (message.checksum is not None and checksum != crc_of(message.checksum)):
            reason = f"it has {size} bytes, {message.size} were sent" if size != message.size else "it was altered"
            raise CorruptObject(key, reason, "discard what was read, and restore it or reject the message")

    async def _see_moved(self, held: HeldQueue) -> None:
        """See failures to their place that are on their way: whoever counted them wants them to be found there."""
        if held.view.unmoved:
            await self.run(complete_moves(self.env, held.view))

    async def _redrive_from(self, letters: str, origin: str | None, ids: AbstractSet[str] | None, limit: int) -> int:
        """Claim dead letters, copy them back to the queue they failed in, and ack them."""
        try:
            held = await self._queue(letters)
        except BrigadeError:
            return 0
        total = 0
        kept: list[Message] = []
        while total < limit:
            grants = await self.run(
                claim(
                    self.env,
                    held.view,
                    limit=min(limit - total, 1000),
                    owner="redrive",
                    visibility=120,
                    listing_ttl=0,
                    only_derived=True,
                )
            )
            messages = await self.load(grants)
            chosen = [
                message
                for message in messages
                if message.failure is not None
                and (origin is None or message.failure.queue == origin)
                and (ids is None or message.failure.id in ids or message.id in ids)
            ]
            taken = {message.ref for message in chosen}
            kept += [message for message in messages if message.ref not in taken]
            if not messages:
                break
            by_origin: dict[str, list[Message]] = {}
            for message in chosen:
                assert message.failure is not None
                by_origin.setdefault(message.failure.queue, []).append(message)
            for queue, members in by_origin.items():
                try:
                    target = await self._queue(queue)
                except QueueNotFound:
                    log.warning("%d dead letters stay in %s: their queue %s is gone", len(members), letters, queue)
                    kept += members
                    continue
                entries = [(message.ref, entry_of(message)) for message in members]
                await self.run(redrive_letters(self.env, held.view.keys, target.view, entries))
                await self.settle(letters, [Ack(message) for message in members])
                target.wake()
                total += len(members)
        if kept:
            await self.settle(letters, [Nack(message, delay=0, penalize=False) for message in kept])
        return total
