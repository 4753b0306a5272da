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
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from brigade.blobs import Blobs
from brigade.clock import FOREVER, Clock, SystemClock, to_ms
from brigade.crypto.places import binding_of, crc_of
from brigade.errors import BrigadeError, CannotDecrypt, CorruptObject, MessageNotFound, QueueNotFound, StaleLease
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
    Release,
    Settlement,
    Stats,
)
from brigade.policy import QueuePolicy
from brigade.stores import Block, Failed, Outgoing, Pace, ScannedTable, Settled, Staged, Taker, seating
from brigade.stores.bucket import admin, browse, bulk, inspect, records, scan, state
from brigade.stores.bucket.claim import Loaded, Seats, claim, load
from brigade.stores.bucket.convert import SettleGroup, entry_of, held_by, messages_of, to_change
from brigade.stores.bucket.driver import perform
from brigade.stores.bucket.finish import finish
from brigade.stores.bucket.held import HeldQueue
from brigade.stores.bucket.incoming import inline_drafts, take_in
from brigade.stores.bucket.keys import QueueKeys, SegmentName, parse_message_ref
from brigade.stores.bucket.override import override
from brigade.stores.bucket.redrive import redrive_letters, redrive_parked
from brigade.stores.bucket.settle import Change, settle
from brigade.stores.bucket.settle import Settled as Applied
from brigade.stores.bucket.steps import Env, Proto
from brigade.stores.bucket.sweep import sweep
from brigade.stores.bucket.tokens import KnownTokens, drop_token, list_tokens, write_token
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import BulkPart
from brigade.stores.operating import Action, Match
from brigade.survey import Day, GroupInfo, Held, Page, Story, Tail, Upkeep

if TYPE_CHECKING:
    from brigade.crypto.fields import Fields

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
UNREADABLE_FOR = 60.0
"""Seconds before messages that could not be opened are handed out again."""
_parts = msgspec.msgpack.Encoder()
_read_parts = msgspec.msgpack.Decoder(list[BulkPart])


class BucketStore:
    """Queues in a bucket. One instance belongs to one event loop."""

    def __init__(self, blobs: Blobs, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        self._blobs = blobs
        self.env = Env(clock or SystemClock(), ids or Ids())
        self._queues: dict[str, HeldQueue] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.pace = Pace()
        self._tokens: KnownTokens = {}
        self.on_failure: Callable[[Failed], None] | None = None

    def protect(self, fields: Fields) -> None:
        """Seal everything from now on. Called before `open`."""
        from brigade.crypto.blobs import SealedBlobs

        self._blobs = SealedBlobs(self._blobs, fields.vault)
        self.env.fields = fields

    async def key_usage(self) -> Counter[str]:
        from brigade.crypto.usage import count_keys

        return await count_keys(self._blobs)

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
            while self.env.unreadable:
                log.error("passed over: %s", self.env.unreadable.pop())

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
            stored = await self.run(admin.load_policy(self.env, keys))
        self._remember(name, stored)
        return stored

    async def queues(self) -> list[str]:
        return await self.run(admin.list_queues())

    async def enqueue(self, queue: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        held = await self._queue(queue)
        drafts = await take_in(self.env, self._blobs, held.view, messages)
        return list(await held.enqueues.submit(drafts))

    async def claim(self, queue: str, *, limit: int, owner: str, visibility: float) -> list[Grant]:
        return await self._claim(queue, Seats([owner], [0] * limit), visibility)

    async def claim_for(self, queue: str, takers: Sequence[Taker], *, visibility: float) -> list[list[Grant]]:
        seats = Seats([taker.owner for taker in takers], seating(takers))
        shares: list[list[Grant]] = [[] for _ in takers]
        for grant in await self._claim(queue, seats, visibility):
            shares[seats.taker[grant.token]].append(grant)
        return shares

    async def _claim(self, queue: str, seats: Seats, visibility: float) -> list[Grant]:
        held = await self._queue(queue, refresh=True)
        self._sweep_sometimes(held)
        held.woken.clear()
        won = await self.run(
            claim(
                self.env,
                held.view,
                limit=len(seats.left),
                owner=seats.owners[0],
                visibility=visibility,
                listing_ttl=self._blobs.listing_ttl,
                seats=seats,
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
            try:
                found = await self.run(load(self.env, held.view, members))
            except CannotDecrypt:
                found = await self._load_readable(held, members)
            for loaded in found:
                messages += messages_of(queue, loaded)
        return messages

    async def _load_readable(self, held: HeldQueue, grants: Sequence[Grant]) -> list[Loaded]:
        """What can be opened of these. The rest goes back, uncounted; if that is all, it is raised."""
        found: list[Loaded] = []
        refused: CannotDecrypt | None = None
        for grant in grants:
            try:
                found += await self.run(load(self.env, held.view, [grant]))
            except CannotDecrypt as error:
                refused = error
                log.error("not delivered, and given back: %s", error)
                await self.settle(
                    grant.queue, [Release(held_by(grant, place), UNREADABLE_FOR) for place in grant.members]
                )
        if refused is not None and not found:
            raise refused
        return found

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
            soonest = min((at for at in (view.next_due, *known) if at > now), default=FOREVER)
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

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[Settled | BrigadeError]:
        return await self._settle(queue, settlements, again=False)

    async def settle_again(self, queue: str, settlements: Sequence[Settlement]) -> list[Settled | BrigadeError]:
        return await self._settle(queue, settlements, again=True)

    async def _settle(
        self, queue: str, settlements: Sequence[Settlement], *, again: bool
    ) -> list[Settled | BrigadeError]:
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
        await self._settle_groups(held, list(groups.values()), answers, settlements, again=again)
        self._finish_soon(held)
        return answers

    async def _settle_groups(
        self,
        held: HeldQueue,
        groups: Sequence[SettleGroup],
        answers: list[Settled | BrigadeError],
        settlements: Sequence[Settlement],
        *,
        again: bool = False,
    ) -> None:
        """Each segment for itself: one that can't be written doesn't hide what became of the others."""
        work = [self._settle_group(held, group, answers, settlements, tried=again) for group in groups]
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

    async def browse(self, queue: str, match: Match, *, limit: int, most: int, after: str | None, held: bool) -> Page:
        view = (await self._queue(queue)).view
        return await self.run(browse.browse(self.env, view, match, limit=limit, most=most, after=after, held=held))

    async def story(self, queue: str, message_id: str) -> Story:
        return await self.run(browse.story(self.env, (await self._queue(queue)).view, message_id))

    async def leases(self, queue: str, limit: int) -> list[Held]:
        return await self.run(browse.leases(self.env, (await self._queue(queue)).view, limit))

    async def groups(self, queue: str, limit: int) -> list[GroupInfo]:
        return await self.run(browse.groups(self.env, (await self._queue(queue)).view, limit))

    def upkeep(self) -> Upkeep:
        now = self.env.clock.monotonic()
        swept = {name: now - held.swept_at for name, held in self._queues.items() if held.swept_at is not None}
        return Upkeep(self.env.conflicts, swept)

    async def tail(self, queue: str, after: str | None, *, since_ms: int, limit: int) -> Tail:
        view = (await self._queue(queue)).view
        return await self.run(records.tail(self.env, view, after, since_ms=since_ms, limit=limit))

    async def outcomes(self, queue: str, days: Sequence[str], sample: int) -> list[Day]:
        return await self.run(records.outcomes(self.env, (await self._queue(queue)).view, days, sample))

    async def override(self, queue: str, ids: Sequence[str], action: Action) -> int:
        held = await self._queue(queue)
        count, changed = await self.run(override(self.env, held.view, ids, action))
        for name in changed:
            held.returned(name)
        await self._finish_now(held)
        return count

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

    async def write_token(self, id: str, body: bytes) -> bool:
        return await self.run(write_token(self.env, id, body))

    async def tokens(self) -> list[tuple[str, bytes]]:
        return await self.run(list_tokens(self._tokens))

    async def drop_token(self, id: str) -> bool:
        return await self.run(drop_token(id))

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

    async def forget(self, queue: str) -> None:
        held = await self._queue(queue)
        await self._finish_now(held)
        held.view.forget_all()

    async def sweep(self, queue: str) -> dict[str, int]:
        held = await self._queue(queue)
        await self._finish_now(held)
        done = await self.run(sweep(self.env, held.view))
        held.swept_at = self.env.clock.monotonic()
        self._tell_failures(held)
        await self._finish_now(held)
        return {
            "finished": done.finished,
            "decided": done.decided,
            "orphans": done.orphans,
            "expired": done.expired,
        }

    async def stage(self, queue: str, job: str, messages: Sequence[Outgoing]) -> Staged:
        held = await self._queue(queue)
        now = self.env.now()
        drafts = inline_drafts(held.view, messages, now)
        parts = await self.run(bulk.stage(self.env, held.view, job, drafts))
        return Staged(len(drafts), now, _parts.encode(parts))

    async def publish(self, queue: str, job: str, staged: Sequence[Staged], *, epoch: int | None = None) -> int:
        held = await self._queue(queue)
        count = await self.run(
            bulk.publish_job(
                self.env,
                held.view,
                job,
                epoch or 0,
                [part for one in staged for part in _read_parts.decode(one.detail)],
                since=min((one.at_ms for one in staged), default=self.env.now()),
                count=sum(one.count for one in staged),
                keep=epoch is not None,
            )
        )
        held.wake()
        return count

    async def discard(self, queue: str, job: str, staged: Sequence[Staged]) -> None:
        held = await self._queue(queue)
        parts = [part for one in staged for part in _read_parts.decode(one.detail)]
        await self.run(bulk.discard(self.env, held.view, job, parts))

    async def pieces(self, queue: str, table: ScannedTable, most: int, *, since: int = 0) -> list[bytes]:
        held = await self._queue(queue)
        return await self.run(scan.pieces(held.view, table, most, since))

    async def scan(self, queue: str, table: ScannedTable, piece: bytes) -> AsyncIterator[Block]:
        held = await self._queue(queue)
        for step in scan.steps(self.env, held.view, table, piece):
            for block in await self.run(step):
                yield block

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
        return self._remember(name, await self.run(admin.load_policy(self.env, QueueKeys(name))))

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
        size = len(result)
        if self.env.fields is not None:
            result = self.env.fields.vault.seal(result, key)
        await self._blobs.put_stream(key, once())
        return replace(change, result=msgspec.json.encode({"blob": key, "size": size}))

    async def _settle_group(
        self,
        held: HeldQueue,
        group: SettleGroup,
        answers: list[Settled | BrigadeError],
        settlements: Sequence[Settlement],
        *,
        tried: bool = False,
    ) -> None:
        name = group.name
        if tried:
            results = await self.run(settle(self.env, held.view, name, group.changes, tried=True))
        else:
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
                await asyncio.wait_for(held.finish_now.wait(), FINISH_LINGER)
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
