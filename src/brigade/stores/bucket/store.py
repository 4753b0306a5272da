"""The bucket store: runs the protocol on blobs, and adds what is only about this process.

Group commit for enqueue and settlements, the finisher that writes history in the background, the sweeper that
runs now and then, and the wake-ups of waiting claimers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from brigade.blobs import Blobs
from brigade.clock import FOREVER, Clock, SystemClock, to_ms
from brigade.errors import BrigadeError, CorruptObject, MessageNotFound, QueueNotFound, StaleLease
from brigade.ids import Ids
from brigade.machine import State
from brigade.model import (
    Ack,
    FailedMessage,
    Grant,
    Message,
    MessageInfo,
    Nack,
    Receipt,
    Settlement,
    Stats,
)
from brigade.policy import QueuePolicy
from brigade.stores import Failed, Outgoing, Settled
from brigade.stores.bucket import admin, inspect, state
from brigade.stores.bucket.claim import claim, load
from brigade.stores.bucket.convert import SettleGroup, entry_of, messages_of, to_change
from brigade.stores.bucket.driver import perform
from brigade.stores.bucket.finish import finish
from brigade.stores.bucket.held import HeldQueue
from brigade.stores.bucket.incoming import take_in
from brigade.stores.bucket.keys import QueueKeys, SegmentName, parse_message_ref
from brigade.stores.bucket.redrive import redrive_letters, redrive_parked
from brigade.stores.bucket.settle import Change
from brigade.stores.bucket.settle import Settled as Applied
from brigade.stores.bucket.steps import Env, Proto
from brigade.stores.bucket.sweep import sweep
from brigade.stores.bucket.view import QueueView

__all__ = ["BucketStore"]

log = logging.getLogger("brigade")
T = TypeVar("T")
FINISH_LINGER = 0.5
FINISH_BATCH = 256
SWEEP_EVERY = 300.0
POLICY_TTL = 30.0
FIRST_POLL = 0.1
SAFETY_POLL = 30.0
RESULT_LIMIT = 4096
RESULTS_LIMIT = 64 * 1024


class BucketStore:
    """Queues in a bucket. One instance belongs to one event loop."""

    def __init__(self, blobs: Blobs, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        self._blobs = blobs
        self.env = Env(clock or SystemClock(), ids or Ids())
        self._queues: dict[str, HeldQueue] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.on_failure: Callable[[Failed], None] | None = None

    @property
    def blobs(self) -> Blobs:
        """What the bucket stands on."""
        return self._blobs

    @property
    def clock(self) -> Clock:
        return self.env.clock

    @clock.setter
    def clock(self, clock: Clock) -> None:
        self.env.clock = clock

    async def open(self) -> None:
        await self._blobs.open(self.env.clock)

    async def run(self, proto: Proto[T]) -> T:
        """Carry out a protocol function, and say what it found damaged."""
        try:
            return await perform(proto, self._blobs)
        finally:
            while self.env.damaged:
                log.error("%s", self.env.damaged.pop())

    def _tell_failures(self, held: HeldQueue) -> None:
        """Tell of messages that failed while nobody held them."""
        decided, held.view.failures = held.view.failures, []
        if self.on_failure is None:
            return
        for one in decided:
            found = parse_message_ref(one.ref)
            known = held.view.entries.get(found[0]) if found else None
            entry = known.entries[found[1]] if found and known else None
            own_id, correlation = (entry.own_id, entry.correlation) if entry else (None, None)
            limit = (entry.max_attempts if entry else None) or held.view.policy.failure.max_attempts
            origin = entry.failure.id if entry and entry.failure else None
            self.on_failure(
                Failed(
                    queue=held.view.keys.queue,
                    id=own_id or one.ref,
                    status="failed" if one.dead_letter_queue is None else "dead-lettered",
                    error=one.error or one.reason,
                    attempts=one.attempts,
                    correlation_id=correlation or own_id or one.ref,
                    max_attempts=limit,
                    original_id=origin or own_id or one.ref,
                )
            )

    async def open_queue(self, name: str, policy: QueuePolicy | None, *, replace: bool, create: bool) -> QueuePolicy:
        keys = QueueKeys(name)
        if create:
            stored = await self.run(admin.ensure_queue(self.env, keys, policy, replace=replace))
        else:
            stored = await self.run(admin.load_policy(keys))
        self._remember(name, stored)
        return stored

    async def queues(self) -> list[str]:
        return await self.run(admin.list_queues())

    async def enqueue(self, queue: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        held = await self._queue(queue)
        drafts = await take_in(self.env, self._blobs, held.view, messages)
        return list(await held.enqueues.submit(drafts))

    async def claim(self, queue: str, *, limit: int, owner: str, visibility: float) -> list[Grant]:
        held = await self._queue(queue, refresh=True)
        self._sweep_sometimes(held)
        held.woken.clear()
        won = await self.run(
            claim(
                self.env,
                held.view,
                limit=limit,
                owner=owner,
                visibility=visibility,
                listing_ttl=self._blobs.listing_ttl,
            )
        )
        if won and held.waiting:
            held.wake()
        self._tell_failures(held)
        self._finish_soon(held)
        return won

    async def load(self, grants: Sequence[Grant]) -> list[Message]:
        messages: list[Message] = []
        by_queue: dict[str, list[Grant]] = {}
        for grant in grants:
            by_queue.setdefault(grant.queue, []).append(grant)
        for queue, members in by_queue.items():
            held = await self._queue(queue)
            for loaded in await self.run(load(self.env, held.view, members)):
                messages += messages_of(queue, loaded)
        return messages

    async def wait(self, queue: str, seconds: float) -> None:
        """Claims that wait together look together: each polls the less often the more they are, and wakes the rest."""
        held = await self._queue(queue)
        listening = held.listening
        longest = SAFETY_POLL if held.watch(self._blobs) else self._blobs.poll_interval
        if held.listening and not listening:
            held.view.stale()
            return
        view, now = held.view, self.env.now()
        if view.paused:
            longest, soonest = min(longest, self._blobs.poll_interval), FOREVER
        else:
            known = [one.next_at for one in (*view.ledgers.values(), *view.lanes.values())]
            soonest = min((at for at in (view.next_due, *known) if at > now), default=FOREVER)
        interval = min(FIRST_POLL * 2.0**held.idle_polls, longest * (2 if view.has_lanes else 1))
        interval *= (held.waiting + 1) * self.env.ids.uniform(0.8, 1.2)
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

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[Settled | BrigadeError]:
        held = await self._queue(queue)
        answers: list[Settled | BrigadeError] = [_NOT_SETTLED] * len(settlements)
        groups: dict[str, SettleGroup] = {}
        now = self.env.now()
        for position, settlement in enumerate(settlements):
            message = settlement.message
            segment, _, index = message.ref.rpartition("-")
            token, _, number = message.lease.token.rpartition(".")
            group = groups.get(segment)
            if group is None:
                name = await self._segment_of(held, message)
                group = None if name is None else groups.setdefault(segment, SettleGroup(name))
            if group is None or number != index or not index.isdecimal():
                answers[position] = _foreign(message)
            elif isinstance(settlement, Ack) and settlement.result is None:
                group.ack(token, message.lease.version, int(index), position)
            else:
                change = to_change(self.env, held.view.policy, settlement, int(index), token, now)
                if change.result is not None:
                    change = await self._shrink(held, message, change)
                group.add(change, position)
        await self._settle_groups(held, list(groups.values()), answers, settlements)
        self._finish_soon(held)
        return answers

    async def _settle_groups(
        self,
        held: HeldQueue,
        groups: Sequence[SettleGroup],
        answers: list[Settled | BrigadeError],
        settlements: Sequence[Settlement],
    ) -> None:
        """Each segment for itself: one that can't be written doesn't hide what became of the others."""
        work = [self._settle_group(held, group, answers, settlements) for group in groups]
        if len(work) == 1:
            await work[0]
            return
        ends = await asyncio.gather(*work, return_exceptions=True)
        failures = [end for end in ends if end is not None]
        for group, end in zip(groups, ends, strict=True):
            if end is None:
                continue
            if not isinstance(end, BrigadeError) or len(failures) == len(groups):
                raise end
            for place in itertools.chain.from_iterable(group.positions):
                answers[place] = end

    async def paused(self, queue: str) -> bool:
        return (await self._queue(queue)).view.paused

    async def stats(self, queue: str) -> Stats:
        held = await self._queue(queue)
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
        await self.run(admin.delete_queue(held.view))
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
        async with contextlib.aclosing(self._blobs.get_stream(key)) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                checksum = zlib.crc32(chunk, checksum)
                yield chunk
        if size != message.size or (message.checksum is not None and checksum != message.checksum):
            reason = f"it has {size} bytes, {message.size} were sent" if size != message.size else "it was altered"
            raise CorruptObject(key, reason, "discard what was read, and restore it or reject the message")

    async def forget(self, queue: str) -> None:
        held = await self._queue(queue)
        await self._finish_now(held)
        held.view.forget_all()

    async def sweep(self, queue: str) -> dict[str, int]:
        held = await self._queue(queue)
        await self._finish_now(held)
        done = await self.run(sweep(self.env, held.view))
        self._tell_failures(held)
        await self._finish_now(held)
        return {
            "finished": done.finished,
            "decided": done.decided,
            "orphans": done.orphans,
            "expired": done.expired,
        }

    def requests(self) -> dict[str, int]:
        return self._blobs.requests()

    async def close(self) -> None:
        self._closed = True
        for held in list(self._queues.values()):
            held.close()
            await self._finish_now(held)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._blobs.close()

    async def _queue(self, name: str, *, refresh: bool = False) -> HeldQueue:
        held = self._queues.get(name)
        now = self.env.clock.monotonic()
        if held is not None and not (refresh and now - held.policy_at > POLICY_TTL):
            return held
        return self._remember(name, await self.run(admin.load_policy(QueueKeys(name))))

    def _remember(self, name: str, policy: QueuePolicy) -> HeldQueue:
        held = self._queues.get(name)
        if held is None:
            held = self._queues[name] = HeldQueue(self.run, self.env, QueueView(name, policy))
            held.view.patience = to_ms(self._blobs.patience)
        held.view.policy = policy
        held.policy_at = self.env.clock.monotonic()
        return held

    async def _segment_of(self, held: HeldQueue, message: Message) -> SegmentName | None:
        located = parse_message_ref(message.ref)
        if located is None:
            try:
                located = await self.run(inspect.locate(self.env, held.view, message.id))
            except MessageNotFound:
                return None
        return located[0]

    async def _shrink(self, held: HeldQueue, message: Message, change: Change) -> Change:
        """Results stay small in a ledger that is swapped often: a large one goes to a blob, and its place is kept."""
        result = change.result or b""
        name = parse_message_ref(message.ref)
        known = held.view.ledgers.get(name[0]) if name else None
        held_already = sum(map(len, known.ledger.results.values())) if known and known.ledger else 0
        if len(result) <= RESULT_LIMIT and held_already <= RESULTS_LIMIT:
            return change

        async def once() -> AsyncIterator[bytes]:
            yield result

        key = held.view.keys.blob(f"result/{message.ref}-{change.version}")
        await self._blobs.put_stream(key, once())
        return replace(change, result=msgspec.json.encode({"blob": key, "size": len(result)}))

    async def _settle_group(
        self,
        held: HeldQueue,
        group: SettleGroup,
        answers: list[Settled | BrigadeError],
        settlements: Sequence[Settlement],
    ) -> None:
        name = group.name
        results = await held.settles(name).submit(group.changes)
        held.tidy(name)
        again = bool(name.lane)
        for change, positions, several in zip(group.changes, group.positions, results, strict=True):
            before: Applied | None = None
            settled = _NOT_SETTLED
            for position, result in zip(positions, several, strict=True):
                if isinstance(result, StaleLease):
                    answers[position] = result
                    continue
                if result is not before:
                    before = result
                    lease = None
                    if change.kind == "extend":
                        held_lease = settlements[position].message.lease
                        lease = replace(held_lease, expires_at_ms=result.expires)
                    settled = Settled(result.status, lease, result.attempts, result.max_attempts, change.at)
                    again = again or result.status is State.READY
                answers[position] = settled
        if again:
            held.returned(name)

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

    def _finish_soon(self, held: HeldQueue) -> None:
        if not held.view.finished or self._closed:
            return
        if len(held.view.finished) >= FINISH_BATCH:
            held.finish_now.set()
        if held.finisher is None or held.finisher.done():
            held.finisher = self._spawn(self._finish_later(held))

    async def _finish_later(self, held: HeldQueue) -> None:
        while held.view.finished:
            held.finish_now.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FINISH_LINGER):
                    await held.finish_now.wait()
            await self._finish_now(held)

    async def _finish_now(self, held: HeldQueue) -> None:
        """Write history and clean up. What fails here is done later by a sweeper: nothing depends on it."""
        async with held.finishing:
            finals, held.view.finished = held.view.finished, {}
            if not finals:
                return
            try:
                await self.run(finish(self.env, held.view, finals))
            except BrigadeError as error:
                log.warning(
                    "history of queue %s could not be written now (%s); the sweeper will",
                    held.view.keys.queue,
                    error,
                )

    def _sweep_sometimes(self, held: HeldQueue) -> None:
        now = self.env.clock.monotonic()
        if held.sweep_at is None:
            held.sweep_at = now + SWEEP_EVERY * self.env.ids.uniform(0.2, 1.0)
        elif now >= held.sweep_at and not self._closed:
            held.sweep_at = now + SWEEP_EVERY * self.env.ids.uniform(0.8, 1.2)
            self._spawn(self._sweep_quietly(held.view.keys.queue))

    async def _sweep_quietly(self, queue: str) -> None:
        try:
            await self.sweep(queue)
        except BrigadeError as error:
            log.warning("sweep of queue %s stopped (%s); it is tried again later", queue, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


_NOT_SETTLED = StaleLease("the settlement was not carried out")


def _foreign(message: Message) -> StaleLease:
    return StaleLease(
        f"token {message.lease.token!r} does not belong to message {message.id!r}; settle with the message as claimed"
    )
