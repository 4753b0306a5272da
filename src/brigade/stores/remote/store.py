"""The remote store: every verb is a request to a server, which does the rest."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec
from msgspec.structs import replace

from brigade.clock import Clock, SystemClock
from brigade.crypto.places import crc_of
from brigade.errors import BrigadeError, CorruptObject, PayloadTooLarge, StoreUnavailable
from brigade.machine import State
from brigade.model import (
    Ack,
    Extend,
    FailedMessage,
    Grant,
    Message,
    MessageInfo,
    Nack,
    Receipt,
    Settlement,
    Stats,
)
from brigade.policy import QueuePolicy, decode_policy, encode_policy
from brigade.stores import Block, Failed, Outgoing, ScannedTable, Settled, Staged
from brigade.stores.history import HistoryPart, Record
from brigade.stores.operating import Action, Match
from brigade.stores.remote import bulk, operating, wire, wire_ports
from brigade.stores.remote.client import Client
from brigade.stores.remote.faults import error_of
from brigade.survey import Day, GroupInfo, Held, Page, Story, Tail, Upkeep

__all__ = ["RemoteStore"]

QUEUE = "/v1/queue/"
MOST_BYTES = 4 * 1024 * 1024
MOST_UNLOADED = 10_000
MARGIN = 30.0
OPENING = 2.0
CLOSING = 2.0


class RemoteStore:
    """Queues behind a server. One instance belongs to one event loop."""

    prompt = False

    def __init__(self, base: str, *, token: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._client = Client(base, token, tls)
        self.clock: Clock = SystemClock()
        self.on_failure: Callable[[Failed], None] | None = None
        self._info = wire.Info("", "", 0, 1000, 100_000, 60.0)
        self._unloaded: OrderedDict[tuple[str, str, tuple[int, ...]], Message] = OrderedDict()
        self._paused: dict[str, bool] = {}
        self._policies: dict[str, QueuePolicy] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended: set[str] = set()
        self._swept: dict[str, float] = {}

    async def open(self) -> None:
        """Ask the server who it is, and what time it has."""
        local = SystemClock()
        before = local.now()
        try:
            self._info = await self._client.get("/v1/info", wire.Info, patience=OPENING)
        except BaseException:
            await self._client.close()
            raise
        after = local.now()
        offset = self._info.now_ms - (before + after) // 2
        if abs(offset) > (after - before) // 2 + 5:
            self.clock = SystemClock(offset)

    async def open_queue(self, name: str, policy: QueuePolicy | None, *, replace: bool, create: bool) -> QueuePolicy:
        if policy is None:
            found = await self._post("open", wire.Opening(queue=name, create=create), wire.Policy)
        else:
            body = wire.OpenQueue(queue=name, policy=encode_policy(policy), replace=replace, create=create)
            found = await self._post("policy", body, wire.Policy)
        stored = decode_policy(found.policy, source=f"the policy of queue {name!r}")
        self._policies[name] = stored
        return stored

    async def queues(self) -> list[str]:
        return (await self._client.get(QUEUE + "list", wire.Names)).queues

    async def enqueue(self, queue: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        self._check_sizes(queue, messages)
        receipts: list[Receipt] = []
        for some in self._batches(messages):
            if any(not isinstance(one.payload, bytes) for one in some):
                receipts += (await self._client.send(QUEUE + "enqueue", _frames(queue, some), wire.Enqueued)).receipts
            else:
                body = wire.Enqueue(queue=queue, messages=[_new(one) for one in some], create=False)
                once = any(one.id is None for one in some)
                receipts += (await self._post("enqueue", body, wire.Enqueued, once=once)).receipts
        return receipts

    def _check_sizes(self, queue: str, messages: Sequence[Outgoing]) -> None:
        """A batch that needs several requests is refused before the first of them."""
        policy = self._policies.get(queue)
        for one in messages if policy is not None and len(messages) > 1 else ():
            if isinstance(one.payload, bytes) and policy is not None and len(one.payload) > policy.max_payload:
                raise PayloadTooLarge(
                    f"the payload has {len(one.payload)} bytes, but queue {queue!r} takes {policy.max_payload}; "
                    "raise max_payload in its policy, or send a reference"
                )

    def _batches(self, messages: Sequence[Outgoing]) -> list[list[Outgoing]]:
        batches: list[list[Outgoing]] = [[]]
        size = 0
        for one in messages:
            length = len(one.payload) if isinstance(one.payload, bytes) else 0
            if batches[-1] and (len(batches[-1]) >= self._info.most_messages or size + length > MOST_BYTES):
                batches.append([])
                size = 0
            batches[-1].append(one)
            size += length
        return batches

    async def claim(
        self, queue: str, *, limit: int, owner: str, visibility: float, patient: bool = False
    ) -> list[Grant]:
        return await self.claim_within(queue, limit=limit, owner=owner, visibility=visibility, wait=0)

    async def claim_within(self, queue: str, *, limit: int, owner: str, visibility: float, wait: float) -> list[Grant]:
        """The server does the waiting."""
        return self._handed_out(queue, await self._dequeue(queue, None, limit, owner, visibility, wait))

    async def claim_after(
        self, queue: str, ack: Ack, *, limit: int, owner: str, visibility: float, wait: float
    ) -> tuple[Settled, list[Grant] | BrigadeError]:
        self._ended.add(queue)
        answer = await self._dequeue(queue, _settlement(ack), limit, owner, visibility, wait)
        if answer.acked is None:
            raise StoreUnavailable(f"{self._client.base} did not say what became of the ack; is it an older server?")
        acked = _settled(answer.acked)
        if isinstance(acked, BrigadeError):
            raise acked
        return acked, error_of(answer.error) if answer.error is not None else self._handed_out(queue, answer)

    async def _dequeue(
        self, queue: str, ack: wire.SettleBody | None, limit: int, owner: str, visibility: float, wait: float
    ) -> wire.Dequeued:
        """An answer that nobody gets to read is given back."""
        body = wire.Dequeue(
            queue=queue,
            limit=min(limit, self._info.most_messages),
            wait=min(wait, self._info.most_wait),
            owner=owner,
            visibility=visibility,
            raw=True,
            ack=ack,
        )
        key = self._client.ids.nonce()
        try:
            return await self._post("dequeue", body, wire.Dequeued, key=key, answering=body.wait + MARGIN)
        except (asyncio.CancelledError, StoreUnavailable):
            self._background(self._abandon(key))
            raise

    def _handed_out(self, queue: str, answer: wire.Dequeued) -> list[Grant]:
        self._paused[queue] = answer.paused
        if self.on_failure is not None:
            for failed in answer.failed:
                self.on_failure(failed)
        return [self._won(one) for one in answer.messages]

    def _won(self, delivered: wire.Delivered) -> Grant:
        message = _message(delivered)
        grant = delivered.grant
        if grant is None:
            lease = message.lease
            grant = Grant(
                message.queue,
                message.ref,
                lease.token,
                lease.version,
                lease.owner,
                lease.expires_at_ms,
                (0,),
                (message.attempt,),
                (message.max_attempts,),
            )
        self._unloaded[grant.segment, grant.token, grant.members] = message
        while len(self._unloaded) > MOST_UNLOADED:
            self._unloaded.popitem(last=False)
        return grant

    async def _abandon(self, key: str) -> None:
        with contextlib.suppress(BrigadeError):
            await self._client.post(QUEUE + "abandon", wire.Abandon(key=key), dict[str, bool])

    async def load(self, grants: Sequence[Grant]) -> list[Message]:
        found = [self._unloaded.pop((grant.segment, grant.token, grant.members), None) for grant in grants]
        if missing := [grant for grant, message in zip(grants, found, strict=True) if message is None]:
            loaded: list[Message] = []
            for some in _shares(missing, self._info.most_messages):
                answer = await self._post("load", wire.Load(grants=some), wire.Loaded)
                loaded += [_message(one) for one in answer.messages]
            return [message for message in found if message is not None] + loaded
        return [message for message in found if message is not None]

    async def wait(self, queue: str, seconds: float) -> None:
        seconds = min(seconds, self._info.most_wait)
        await self._post("wait", wire.Wait(queue, seconds), dict[str, Any], answering=seconds + MARGIN)

    def wake(self, queue: str) -> None:
        """The server knows of what goes through it."""

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[Settled | BrigadeError]:
        answers: list[Settled | BrigadeError] = []
        self._ended.add(queue)
        for start in range(0, len(settlements), self._info.most_messages):
            some = settlements[start : start + self._info.most_messages]
            body = wire.SettleBatch(queue, [_settlement(one) for one in some])
            try:
                answers += map(_settled, (await self._post("settle", body, wire.Answered)).results)
            except BrigadeError as error:
                if not answers and len(some) == len(settlements):
                    raise
                answers += [error] * len(some)
        return answers

    async def paused(self, queue: str) -> bool:
        return self._paused.get(queue, False)

    async def stats(self, queue: str) -> Stats:
        return await self._client.get(QUEUE + "stats", Stats, queue=queue)

    async def peek(self, queue: str, limit: int) -> list[MessageInfo]:
        limit = min(limit, self._info.most_listed)
        return (await self._client.get(QUEUE + "peek", wire.Found, queue=queue, limit=limit)).messages

    async def get(self, queue: str, message_id: str) -> MessageInfo:
        return await self._client.get(QUEUE + "get", MessageInfo, queue=queue, id=message_id)

    async def failed(self, queue: str, limit: int) -> list[FailedMessage]:
        limit = min(limit, self._info.most_listed)
        return (await self._client.get(QUEUE + "failed", wire.Parked, queue=queue, limit=limit)).messages

    async def redrive(self, queue: str, ids: AbstractSet[str] | None, limit: int) -> int:
        body = wire.Redrive(queue, None if ids is None else sorted(ids), limit)
        return (await self._post("redrive", body, wire.Count)).count

    async def purge(self, queue: str, *, failed_only: bool = False) -> int:
        return (await self._post("purge", wire.Purge(queue, failed_only), wire.Count)).count

    async def pause(self, queue: str) -> None:
        await self._post("pause", wire.QueueOnly(queue), dict[str, Any])

    async def resume(self, queue: str) -> None:
        await self._post("resume", wire.QueueOnly(queue), dict[str, Any])

    async def delete(self, queue: str) -> None:
        await self._post("delete", wire.QueueOnly(queue), dict[str, Any])

    async def load_state(self, queue: str, ref: str) -> tuple[bytes, str] | None:
        found = await self._client.get(QUEUE + "state", wire.StateValue, queue=queue, ref=ref)
        return None if found.etag is None else (msgspec.json.encode(found.value), found.etag)

    async def save_state(self, queue: str, ref: str, value: bytes, etag: str | None, correlation: str) -> str:
        body = wire.SaveState(queue, ref, msgspec.Raw(value), etag, correlation)
        return (await self._post("state", body, wire.SavedState)).etag

    async def open_payload(self, message: Message) -> AsyncIterator[bytes]:
        size = checksum = 0
        chunks = self._client.stream(QUEUE + "payload", queue=message.queue, ref=message.ref)
        async with contextlib.aclosing(chunks):  # pyright: ignore[reportArgumentType]
            async for chunk in chunks:
                size += len(chunk)
                checksum = zlib.crc32(chunk, checksum)
                yield chunk
        if size != message.size or (message.checksum is not None and checksum != crc_of(message.checksum)):
            reason = f"it has {size} bytes, {message.size} were sent" if size != message.size else "it was altered"
            raise CorruptObject(message.ref, reason, "discard what was read, and restore it or reject the message")

    async def forget(self, queue: str) -> None:
        self._ended.discard(queue)
        await self._post("forget", wire.QueueOnly(queue), dict[str, Any])

    async def sweep(self, queue: str) -> dict[str, int]:
        swept = await self._post("sweep", wire.QueueOnly(queue), wire.Swept)
        self._swept[queue] = self.clock.monotonic()
        if self.on_failure is not None:
            for failed in swept.failed:
                self.on_failure(failed)
        return swept.done

    async def stage(self, queue: str, job: str, messages: Sequence[Outgoing]) -> Staged:
        self._check_sizes(queue, messages)
        return await bulk.stage(self._client, QUEUE, self._info, queue, job, messages, self.clock.now())

    async def publish(self, queue: str, job: str, staged: Sequence[Staged], *, epoch: int | None = None) -> int:
        return await bulk.publish(self._client, QUEUE, self._info, queue, job, staged, epoch)

    async def discard(self, queue: str, job: str, staged: Sequence[Staged]) -> None:
        await bulk.discard(self._client, QUEUE, self._info, queue, job, staged)

    async def pieces(self, queue: str, table: ScannedTable, most: int, *, since: int = 0) -> list[bytes]:
        found = await self._client.get(
            QUEUE + "pieces", wire_ports.Cut, queue=queue, table=table, most=most, since=since
        )
        return found.pieces

    def scan(self, queue: str, table: ScannedTable, piece: bytes) -> AsyncIterator[Block]:
        return bulk.scan(self._client, QUEUE, queue, table, piece)

    async def history_parts(self, queue: str, since: int) -> list[HistoryPart]:
        found = await self._client.get(QUEUE + "history", wire_ports.PartsOfHistory, queue=queue, since=max(since, 0))
        return found.parts

    async def read_history(self, part: HistoryPart) -> list[Record]:
        return await bulk.read_history(self._client, QUEUE, part)

    async def write_note(self, queue: str, name: str, value: bytes) -> bytes:
        """Repeated after a lost answer it finds the note that it wrote, which is as good."""

        async def body() -> AsyncIterator[bytes]:
            for start in range(0, len(value), wire.FRAME_SIZE):
                yield value[start : start + wire.FRAME_SIZE]

        query = {"queue": queue, "name": name}
        there = await self._client.send_again(QUEUE + "note", body, wire_ports.NoteValue, query)
        return value if there.value is None else there.value

    async def read_note(self, queue: str, name: str) -> bytes | None:
        return (await self._client.get(QUEUE + "note", wire_ports.NoteValue, queue=queue, name=name)).value

    async def drop_note(self, queue: str, name: str) -> None:
        await self._post("dropNote", wire_ports.NoteName(queue=queue, name=name), wire.Nothing)

    async def claim_these(self, queue: str, refs: Sequence[str], *, owner: str, visibility: float) -> list[Grant]:
        """Leases whose answer is lost for good run out; an answer that nobody gets to read is given back."""
        won: list[Grant] = []
        for some in self._some(refs):
            body = wire_ports.ClaimThese(queue=queue, refs=some, owner=owner, visibility=visibility)
            won += await self._leased("claimThese", body)
        return won

    async def lease(self, queue: str, *, limit: int, owner: str, visibility: float) -> list[Grant]:
        body = wire_ports.Leasing(queue=queue, limit=min(limit, 1_000_000), owner=owner, visibility=visibility)
        return await self._leased("lease", body)

    async def _leased(self, path: str, body: Any) -> list[Grant]:
        key = self._client.ids.nonce()
        try:
            return (await self._post(path, body, wire_ports.GrantList, key=key)).grants
        except (asyncio.CancelledError, StoreUnavailable):
            self._background(self._abandon(key))
            raise

    async def reprioritize(self, queue: str, refs: Sequence[str], priority: int) -> int:
        bodies = [wire_ports.Reprioritize(queue=queue, refs=some, priority=priority) for some in self._some(refs)]
        return sum([(await self._post("reprioritize", body, wire.Count)).count for body in bodies])

    def _some(self, refs: Sequence[str]) -> list[list[str]]:
        """Refs in portions that the server takes. What is too long to be one can't be found, so it isn't asked for."""
        known = [ref for ref in refs if len(ref) <= wire.LONGEST]
        most = self._info.most_messages
        return [known[start : start + most] for start in range(0, len(known), most)]

    async def browse(self, queue: str, match: Match, *, limit: int, most: int, after: str | None, held: bool) -> Page:
        return await operating.browse(self._client, QUEUE, queue, match, limit, most, after, held)

    async def story(self, queue: str, message_id: str) -> Story:
        return await self._client.get(QUEUE + "story", Story, queue=queue, id=message_id)

    async def leases(self, queue: str, limit: int) -> list[Held]:
        return (await self._client.get(QUEUE + "leases", wire_ports.HeldList, queue=queue, limit=limit)).leases

    async def groups(self, queue: str, limit: int) -> list[GroupInfo]:
        return (await self._client.get(QUEUE + "groups", wire_ports.GroupList, queue=queue, limit=limit)).groups

    async def override(self, queue: str, ids: Sequence[str], action: Action) -> int:
        return await operating.override(self._client, QUEUE, queue, ids, action)

    async def tail(self, queue: str, after: str | None, *, since_ms: int, limit: int) -> Tail:
        return await operating.tail(self._client, QUEUE, queue, after, since_ms, limit)

    async def outcomes(self, queue: str, days: Sequence[str], sample: int) -> list[Day]:
        return await operating.outcomes(self._client, QUEUE, queue, days, sample)

    def upkeep(self) -> Upkeep:
        """The server does it, and knows; from here only the sweeps are known that were asked for here."""
        now = self.clock.monotonic()
        return Upkeep(0, {queue: now - at for queue, at in self._swept.items()})

    def requests(self) -> dict[str, int]:
        return dict(self._client.counts)

    async def close(self) -> None:
        """See what was called off to its end, and have the server finish what was settled here."""
        for queue in self._ended:
            with contextlib.suppress(BrigadeError):
                body = wire.QueueOnly(queue)
                await self._client.post(QUEUE + "forget", body, dict[str, Any], patience=0, answering=CLOSING)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSING)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._client.close()

    async def _post(self, path: str, body: Any, kind: type[Any], **how: Any) -> Any:
        return await self._client.post(QUEUE + path, body, kind, **how)

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _shares(grants: Sequence[Grant], most: int) -> list[list[Grant]]:
    """Grants in shares of up to `most` messages; one that has more is cut."""
    shares: list[list[Grant]] = []
    room = 0
    for grant in grants:
        start = 0
        while start < len(grant):
            if not room:
                shares.append([])
                room = most
            end = min(start + room, len(grant))
            shares[-1].append(_cut(grant, start, end))
            room -= end - start
            start = end
    return shares


def _cut(grant: Grant, start: int, end: int) -> Grant:
    if end - start == len(grant):
        return grant
    members = grant.members[start:end]
    return replace(
        grant,
        members=members,
        attempts=grant.attempts[start:end],
        max_attempts=grant.max_attempts[start:end],
        recovered=tuple(place for place in grant.recovered if place in members),
    )


def _new(one: Outgoing) -> wire.NewBody:
    small = isinstance(one.payload, bytes)
    made = wire.NewBody(
        streamed=not small,
        priority=one.priority,
        delay=one.delay,
        id=one.id,
        group=one.group,
        ttl=one.ttl,
        max_attempts=one.max_attempts,
        attributes=one.attributes,
        correlation_id=one.correlation_id,
        content_type=one.content_type,
    )
    if isinstance(one.payload, bytes):
        made.payload_base64 = one.payload
    return made


async def _frames(queue: str, messages: Sequence[Outgoing]) -> AsyncIterator[bytes]:
    """The messages as frames: what is known of all, then the streams in order."""
    yield _frame(msgspec.json.encode(wire.Enqueue(queue=queue, messages=[_new(one) for one in messages], create=False)))
    for one in messages:
        if isinstance(one.payload, bytes):
            continue
        async for chunk in one.payload:
            for start in range(0, len(chunk), wire.FRAME_SIZE):
                yield _frame(chunk[start : start + wire.FRAME_SIZE])
        yield _frame(b"")


def _frame(piece: bytes) -> bytes:
    return len(piece).to_bytes(4) + piece


def _message(one: wire.Delivered) -> Message:
    return Message(
        one.id,
        one.queue,
        one.payload_base64,
        one.content_type,
        one.size,
        one.priority,
        one.attempt,
        one.max_attempts,
        one.correlation_id,
        one.attributes,
        one.group,
        one.enqueued_at_ms,
        one.lease,
        one.failure,
        one.ref,
        one.claimed_at_ms,
        one.checksum,
    )


def _settlement(one: Settlement) -> wire.SettleBody:
    message, lease = one.message, one.message.lease
    body = wire.SettleBody(
        id=message.id,
        token=lease.token,
        ref=message.ref,
        version=lease.version,
        owner=lease.owner,
        attempt=message.attempt,
        max_attempts=message.max_attempts,
        correlation_id=message.correlation_id,
        claimed_at_ms=message.claimed_at_ms,
    )
    if isinstance(one, Ack):
        body.op, body.result = "ack", one.result
    elif isinstance(one, Nack):
        body.op, body.error, body.delay, body.reject = "nack", one.error, one.delay, one.reject
        body.intent = "failure" if one.penalize else "defer"
    elif isinstance(one, Extend):
        body.op, body.seconds = "extend", one.seconds
    else:
        body.op, body.delay = "release", one.delay
    return body


def _settled(one: wire.Settled) -> Settled | BrigadeError:
    if one.error is not None:
        return error_of(one.error)
    return Settled(one.state or State.READY, one.lease, one.attempts, one.max_attempts, one.due_at_ms)
