"""The bucket store: runs the protocol on blobs, and adds what is only about this process.

Group commit for enqueue and settlements, the finisher that writes history in the background, the sweeper that
runs now and then, and the wake-ups of waiting claimers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from brigade.blobs import Blobs
from brigade.clock import Clock, SystemClock, to_ms
from brigade.errors import BrigadeError, CorruptObject, MessageNotFound, PayloadTooLarge, StaleLease
from brigade.ids import Ids
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
    Settlement,
    Stats,
)
from brigade.policy import INLINE_LIMIT, QueuePolicy
from brigade.stores import Failed, Outgoing, Settled
from brigade.stores.bucket import admin, inspect, state
from brigade.stores.bucket.claim import Loaded, claim, load
from brigade.stores.bucket.driver import perform
from brigade.stores.bucket.enqueue import Draft, enqueue
from brigade.stores.bucket.finish import finish
from brigade.stores.bucket.keys import QueueKeys, SegmentName, lane_name, parse_message_ref
from brigade.stores.bucket.redrive import redrive_letters, redrive_parked
from brigade.stores.bucket.settle import Answers, Change, settle
from brigade.stores.bucket.settle import Settled as Applied
from brigade.stores.bucket.specs import is_special
from brigade.stores.bucket.steps import Env, Proto, delete
from brigade.stores.bucket.sweep import sweep
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import Entry
from brigade.stores.groupcommit import GroupCommit

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
        self._queues: dict[str, _Queue] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.on_failure: Callable[[Failed], None] | None = None

    async def run(self, proto: Proto[T]) -> T:
        """Carry out a protocol function, and say what it found damaged."""
        try:
            return await perform(proto, self._blobs)
        finally:
            while self.env.damaged:
                log.error("%s", self.env.damaged.pop())

    def _tell_failures(self, held: _Queue) -> None:
        """Tell of messages that failed while nobody held them."""
        decided, held.view.failures = held.view.failures, []
        if self.on_failure is None:
            return
        for one in decided:
            found = parse_message_ref(one.ref)
            known = held.view.entries.get(found[0]) if found else None
            entry = known.entries[found[1]] if found and known else None
            own_id = entry.own_id if entry else None
            status = "failed" if one.dead_letter_queue is None else "dead-lettered"
            self.on_failure(
                Failed(held.view.keys.queue, own_id or one.ref, status, one.error or one.reason, one.attempts)
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
        now = self.env.now()
        drafts: list[Draft] = []
        try:
            for message in messages:
                if isinstance(message.payload, bytes):
                    drafts.append(self._draft(held.view, message, now))
                else:
                    drafts.append(await self._streamed(held, message))
        except BaseException:
            await self._drop_payloads(held, drafts)
            raise
        return list(await held.enqueues.submit(drafts))

    async def _drop_payloads(self, held: _Queue, drafts: Sequence[Draft]) -> None:
        """A batch that is refused leaves no payload behind, as far as the store lets us; the sweeper does the rest."""
        keys = [held.view.keys.blob(f"{draft.planned}-0") for draft in drafts if draft.planned is not None]
        if keys:
            with contextlib.suppress(BrigadeError):
                await self.run(delete(keys))

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
                messages += _messages(queue, loaded)
        return messages

    async def wait(self, queue: str, seconds: float) -> None:
        """Claims that wait together look together: each polls the less often the more they are, and wakes the rest."""
        held = await self._queue(queue)
        listening = held.listening
        longest = SAFETY_POLL if held.watch(self._blobs) else self._blobs.poll_interval
        if held.listening and not listening:
            held.view.stale()
            return
        interval = min(FIRST_POLL * 2.0**held.idle_polls, longest * (2 if held.view.has_lanes else 1))
        known = [one.next_at for one in (*held.view.ledgers.values(), *held.view.lanes.values())]
        soonest = min([held.view.next_due, *known]) - self.env.now()
        interval *= (held.waiting + 1) * self.env.ids.uniform(0.8, 1.2)
        timeout = min(seconds, max(soonest / 1000, 0.001), interval)
        held.idle_polls = min(held.idle_polls + 1, 20)
        held.waiting += 1
        try:
            await asyncio.wait_for(held.woken.wait(), timeout)
            held.idle_polls = 0
        except TimeoutError:
            pass
        finally:
            held.waiting -= 1

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[Settled | StaleLease]:
        held = await self._queue(queue)
        answers: list[Settled | StaleLease] = [_NOT_SETTLED] * len(settlements)
        groups: dict[str, _Group] = {}
        now = self.env.now()
        for position, settlement in enumerate(settlements):
            message = settlement.message
            segment, _, index = message.ref.rpartition("-")
            token, _, number = message.lease.token.rpartition(".")
            group = groups.get(segment)
            if group is None:
                name = await self._segment_of(held, message)
                group = None if name is None else groups.setdefault(segment, _Group(name))
            if group is None or number != index:
                answers[position] = _foreign(message)
            elif isinstance(settlement, Ack) and settlement.result is None:
                group.ack(token, message.lease.version, int(index), position)
            else:
                change = self._change(held, settlement, int(index), token, now)
                if change.result is not None:
                    change = await self._shrink(held, message, change)
                group.add(change, position)
        work = [self._settle_group(held, group, answers, settlements) for group in groups.values()]
        await (work[0] if len(work) == 1 else asyncio.gather(*work))
        self._finish_soon(held)
        return answers

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

    async def purge(self, queue: str) -> int:
        held = await self._queue(queue)
        count = await self.run(admin.purge(self.env, held.view))
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
        for held in self._queues.values():
            held.close()
            await self._finish_now(held)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._blobs.close()

    async def _queue(self, name: str, *, refresh: bool = False) -> _Queue:
        held = self._queues.get(name)
        now = self.env.clock.monotonic()
        if held is not None and not (refresh and now - held.policy_at > POLICY_TTL):
            return held
        return self._remember(name, await self.run(admin.load_policy(QueueKeys(name))))

    def _remember(self, name: str, policy: QueuePolicy) -> _Queue:
        held = self._queues.get(name)
        if held is None:
            held = self._queues[name] = _Queue(self, QueueView(name, policy))
        held.view.policy = policy
        held.policy_at = self.env.clock.monotonic()
        return held

    def _draft(self, view: QueueView, message: Outgoing, now: int) -> Draft:
        payload = message.payload
        assert isinstance(payload, bytes)
        if len(payload) > view.policy.max_payload:
            raise _too_large(len(payload), view)
        return Draft(_entry(message, payload, len(payload), now))

    async def _streamed(self, held: _Queue, message: Outgoing) -> Draft:
        """Read a payload as it comes: a small one joins others, a large one goes to a blob as it is read."""
        assert not isinstance(message.payload, bytes)
        view = held.view
        head = bytearray()
        chunks = aiter(message.payload)
        async for chunk in chunks:
            head += chunk
            if len(head) > INLINE_LIMIT:
                break
        else:
            if len(head) > view.policy.max_payload:
                raise _too_large(len(head), view)
            return Draft(_entry(message, bytes(head), len(head), self.env.now()))
        entry = _entry(message, None, 0, self.env.now())
        strict = view.policy.ordering_guarantee or message.group is not None
        lane = lane_name(message.group) if strict else ""
        name = SegmentName.make(
            self.env.ids,
            now=self.env.now(),
            due=entry.due,
            priority=0 if lane else message.priority,
            lane=lane,
            size=1,
            lifo=view.policy.ordering == "lifo",
            special=not lane and is_special(entry),
        )

        async def all_chunks() -> AsyncIterator[bytes]:
            size, entry.checksum = len(head), zlib.crc32(head)
            yield bytes(head)
            head.clear()
            async for chunk in chunks:
                size += len(chunk)
                entry.checksum = zlib.crc32(chunk, entry.checksum)
                if size > view.policy.max_payload:
                    raise _too_large(size, view)
                yield chunk

        entry.size = await self._blobs.put_stream(view.keys.blob(f"{name}-0"), all_chunks())
        return Draft(entry, name)

    async def _segment_of(self, held: _Queue, message: Message) -> SegmentName | None:
        located = parse_message_ref(message.ref)
        if located is None:
            try:
                located = await self.run(inspect.locate(self.env, held.view, message.id))
            except MessageNotFound:
                return None
        return located[0]

    def _change(self, held: _Queue, settlement: Settlement, place: int, token: str, now: int) -> Change:
        """A settlement as the protocol takes it: with times instead of durations."""
        message, policy = settlement.message, held.view.policy
        version = message.lease.version
        if isinstance(settlement, Ack):
            result = None if settlement.result is None else msgspec.json.encode(settlement.result)
            return Change("ack", [place], token, version, result=result)
        if isinstance(settlement, Extend):
            length = policy.visibility_timeout if settlement.seconds is None else settlement.seconds
            return Change("extend", [place], token, version, now + to_ms(length))
        if isinstance(settlement, Nack):
            wait = settlement.delay
            if wait is None and settlement.penalize:
                wait = policy.backoff.delay(max(message.attempt - 1, 0), self.env.ids.uniform)
            kind = "nack" if settlement.penalize or settlement.reject else "release"
            due = now + to_ms(wait or 0.0)
            return Change(kind, [place], token, version, due, settlement.error, settlement.reject)
        return Change("release", [place], token, version, now + to_ms(settlement.delay))

    async def _shrink(self, held: _Queue, message: Message, change: Change) -> Change:
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
        held: _Queue,
        group: _Group,
        answers: list[Settled | StaleLease],
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
                target = await self._queue(queue)
                entries = [(message.ref, _entry_of(message)) for message in members]
                await self.run(redrive_letters(self.env, held.view.keys, target.view, entries))
                await self.settle(letters, [Ack(message) for message in members])
                target.wake()
                total += len(members)
        if kept:
            await self.settle(letters, [Nack(message, delay=0, penalize=False) for message in kept])
        return total

    def _finish_soon(self, held: _Queue) -> None:
        if not held.view.finished or self._closed:
            return
        if len(held.view.finished) >= FINISH_BATCH:
            held.finish_now.set()
        if held.finisher is None or held.finisher.done():
            held.finisher = self._spawn(self._finish_later(held))

    async def _finish_later(self, held: _Queue) -> None:
        while held.view.finished:
            held.finish_now.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(held.finish_now.wait(), FINISH_LINGER)
            await self._finish_now(held)

    async def _finish_now(self, held: _Queue) -> None:
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

    def _sweep_sometimes(self, held: _Queue) -> None:
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


class _Group:
    """The settlements of one segment; acks under one token are one change."""

    def __init__(self, name: SegmentName) -> None:
        self.name = name
        self.changes: list[Change] = []
        self.positions: list[list[int]] = []
        self._acks: dict[str, tuple[list[int], list[int]]] = {}

    def ack(self, token: str, version: int, place: int, position: int) -> None:
        known = self._acks.get(token)
        if known is None:
            known = self._acks[token] = ([], [])
            self.changes.append(Change("ack", known[0], token, version))
            self.positions.append(known[1])
        known[0].append(place)
        known[1].append(position)

    def add(self, change: Change, position: int) -> None:
        self.changes.append(change)
        self.positions.append([position])


class _Queue:
    """What this process holds open for one queue."""

    def __init__(self, store: BucketStore, view: QueueView) -> None:
        self._store = store
        self.view = view
        self.policy_at = 0.0
        self.sweep_at: float | None = None
        self.idle_polls = 0
        self.waiting = 0
        self.woken = asyncio.Event()
        self.finishing = asyncio.Lock()
        self.finish_now = asyncio.Event()
        self.finisher: asyncio.Task[None] | None = None
        self.enqueues: GroupCommit[Draft, Receipt] = GroupCommit(self._write_drafts)
        self._settles: dict[str, GroupCommit[Change, Answers]] = {}
        self.listening = False
        self._stops: list[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()

    async def _write_drafts(self, drafts: list[Draft]) -> list[Receipt]:
        placed = await self._store.run(enqueue(self._store.env, self.view, drafts))
        self.wake()
        return placed

    def settles(self, name: SegmentName) -> GroupCommit[Change, Answers]:
        key = str(name)
        found = self._settles.get(key)
        if found is None:

            async def write(changes: list[Change]) -> list[Answers]:
                return await self._store.run(settle(self._store.env, self.view, name, changes))

            found = self._settles[key] = GroupCommit(write)
        return found

    def tidy(self, name: SegmentName) -> None:
        found = self._settles.get(str(name))
        if found is not None and found.idle:
            del self._settles[str(name)]

    def wake(self) -> None:
        self.woken.set()

    def returned(self, name: SegmentName) -> None:
        """A message of this segment may be claimed again: no listing is needed to know that."""
        if not name.lane:
            self.view.add_candidate(name)
        self.wake()

    def watch(self, blobs: Blobs) -> bool:
        """Listen to the store for new segments; False where it can't tell."""
        if not self.listening:
            self.listening = True
            keys = self.view.keys
            stops = [blobs.watch(prefix, self._told) for prefix in (keys.segments, keys.lanes)]
            self._stops = [stop for stop in stops if stop is not None]
        return bool(self._stops)

    def _told(self, key: str) -> None:
        """Called from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changed, key)

    def _changed(self, key: str) -> None:
        name = self.view.keys.parse(key)
        if name is not None and name.due <= self._store.env.now():
            self.view.add_candidate(name)
        else:
            self.view.stale()
        self.wake()

    def close(self) -> None:
        for stop in self._stops:
            stop()
        self._stops = []
        self.listening = False


_NOT_SETTLED = StaleLease("the settlement was not carried out")


def _foreign(message: Message) -> StaleLease:
    return StaleLease(
        f"token {message.lease.token!r} does not belong to message {message.id!r}; settle with the message as claimed"
    )


def _too_large(size: int, view: QueueView) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"the payload has {size} bytes or more, but queue {view.keys.queue!r} takes {view.policy.max_payload}; "
        "raise max_payload in its policy, or send a reference"
    )


def _messages(queue: str, loaded: Loaded) -> list[Message]:
    grant, segment = loaded.grant, loaded.grant.segment
    token, version, owner, expires = grant.token, grant.version, grant.owner, grant.expires_at_ms
    messages: list[Message] = []
    for place, attempt, limit, entry in zip(
        grant.members, grant.attempts, grant.max_attempts, loaded.entries, strict=True
    ):
        ref = f"{segment}-{place}"
        messages.append(
            Message(
                entry.own_id or ref,
                queue,
                entry.payload,
                entry.content_type,
                entry.size,
                entry.priority,
                attempt,
                limit,
                entry.correlation or entry.own_id or ref,
                entry.attributes or {},
                entry.group,
                entry.enqueued,
                Lease(f"{token}.{place}", version, owner, expires),
                entry.failure,
                ref,
                grant.claimed_at_ms,
                entry.checksum,
            )
        )
    return messages


def _entry(message: Outgoing, payload: bytes | None, size: int, now: int) -> Entry:
    return Entry(
        payload,
        size,
        now,
        message.content_type,
        message.correlation_id,
        message.attributes,
        message.group,
        now + to_ms(message.delay) if message.delay else 0,
        None if message.ttl is None else to_ms(message.ttl),
        message.max_attempts,
        message.id,
        None,
        message.priority,
    )


def _entry_of(message: Message) -> Entry:
    return Entry(
        message.body,
        message.size,
        message.enqueued_at_ms,
        message.content_type,
        message.correlation_id,
        dict(message.attributes) or None,
        message.group,
        failure=message.failure,
        priority=message.priority,
        checksum=message.checksum,
    )
