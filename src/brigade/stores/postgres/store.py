"""The PostgreSQL store: runs the statements, and adds what is only about this process.

Group commit for enqueue and settlements, wake-ups for waiting claimers, and the sweeper that runs now and then.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from brigade.clock import FOREVER, Clock, SystemClock, to_ms, wall_ns
from brigade.crypto import places
from brigade.errors import BrigadeError, ConfigError, QueueNotFound, StaleLease
from brigade.ids import Ids
from brigade.model import FailedMessage, Grant, Message, MessageInfo, Receipt, Release, Settlement, Stats
from brigade.policy import QueuePolicy
from brigade.stores import Block, Failed, Outgoing, Pace, ScannedTable, Settled, Staged, Taker, seating
from brigade.stores.history import HistoryPart, Record
from brigade.stores.operating import Action, Match
from brigade.stores.postgres import bulk, history, inspect, operate, queues, scan
from brigade.stores.postgres.adapt import Numbers, Tokens
from brigade.stores.postgres.claim import Taking, Won, claim_lanes, claim_ready, look, shares, take_over
from brigade.stores.postgres.enqueue import COPY_FROM, Draft, Seal, Written, enqueue, find_batch, is_plain
from brigade.stores.postgres.held import HeldQueue
from brigade.stores.postgres.joined import Joined
from brigade.stores.postgres.link import Link, explained
from brigade.stores.postgres.listener import Listener
from brigade.stores.postgres.migrate import migrate, standing
from brigade.stores.postgres.partitions import tend_partitions
from brigade.stores.postgres.payloads import one, read_payload, take_in
from brigade.stores.postgres.queries import Queries
from brigade.stores.postgres.sealing import (
    open_block,
    open_messages,
    open_record,
    open_state,
    seal_change,
    seal_drafts,
)
from brigade.stores.postgres.settle import NOT_SETTLED, Answer, Change, Outcome, needs_transaction, settle, to_change
from brigade.stores.postgres.steps import Ask, Rows, Steps
from brigade.stores.postgres.sweep import decide_all, sweep_leftovers
from brigade.stores.postgres.wire import delivered, grants_of, kept, owned, parse_ref, place_of
from brigade.survey import Day, GroupInfo, Held, Page, Story, Tail, Upkeep

if TYPE_CHECKING:
    from brigade.crypto.fields import Fields

__all__ = ["PostgresStore"]

log = logging.getLogger("brigade")
T = TypeVar("T")
POLICY_TTL = 30.0
SWEEP_EVERY = 300.0
LOOK_EVERY = 1.0
"""Under load, seconds between looks for leases that ran out, and between claims from the very beginning."""

FIRST_POLL, SAFETY_POLL = 0.1, 30.0
EXPECT = 60.0
MOST_CLAIMS_KEPT = 1024
UNREADABLE_FOR = 60.0
"""Seconds before messages that could not be opened are handed out again."""


class PostgresStore:
    """Queues in a database. One instance belongs to one event loop."""

    def __init__(
        self,
        settings: dict[str, Any],
        *,
        schema: str = "brigade",
        pool_size: int = 4,
        install: bool = True,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.schema = schema
        self.ids = ids or Ids()
        self._own_clock = SystemClock()
        self.clock: Clock = clock or self._own_clock
        self.pace = Pace()
        self.on_failure: Callable[[Failed], None] | None = None
        self._install = install
        self.link = Link(settings, Queries(schema), self.ids, size=pool_size)
        self._listener = Listener(self.link, self.channel, self._heard)
        self._queues: dict[str, HeldQueue] = {}
        self._claimed: OrderedDict[str, list[Message]] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._telling: set[int] = set()
        self._teller: asyncio.Task[None] | None = None
        self._closed = False
        self._fields: Fields | None = None

    def protect(self, fields: Fields) -> None:
        """Seal contents of messages from now on. Called before `open`."""
        self._fields = fields

    async def key_usage(self) -> Counter[str]:
        rows = await self.link.run(lambda _: one(Ask("key_usage")))
        return Counter({name: int(count) for name, count in rows})

    @property
    def channel(self) -> str:
        """Where news of this schema's queues is told."""
        return f"brigade_{self.schema}"

    async def open(self) -> None:
        """Connect, install or check the schema, and set the clock by the server's."""
        if self._fields is not None:
            self._fields.vault.unlock()
        conn = await self.link.connect()
        try:
            now = await standing(conn, self.schema)
            if now.pending:
                if not self._install:
                    raise ConfigError(
                        f"schema {self.schema!r} has version {now.version}, this program needs {now.newest}; "
                        "run `brigade migrate up`, or connect with install=true"
                    )
                await migrate(conn, self.schema)
            best = FOREVER
            for _ in range(3):
                before = wall_ns()
                rows = await self.link.feed(conn, one(Ask("clock")))
                after = wall_ns()
                if after - before < best:
                    best = after - before
                    self._own_clock.offset_ms = rows[0][0] - (before + after) // 2_000_000
        except psycopg.Error as error:
            raise explained(error) from None
        finally:
            await conn.close()
        await self.link.open()

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

    async def claim(self, queue: str, *, limit: int, owner: str, visibility: float) -> list[Grant]:
        taken = await self._taken(queue, limit, owner, visibility)
        if taken is None:
            return []
        held, token, messages, recovered = taken
        self._keep(token, messages)
        return grants_of(queue, held.id, token, messages, recovered)

    async def claim_for(self, queue: str, takers: Sequence[Taker], *, visibility: float) -> list[list[Grant]]:
        """Claimed together, then shared out under the names and tokens of the takers, all with two statements."""
        if len(takers) == 1:
            only = takers[0]
            return [await self.claim(queue, limit=only.limit, owner=only.owner, visibility=visibility)]
        shares: list[list[Grant]] = [[] for _ in takers]
        plan = seating(takers)
        taken = await self._taken(queue, len(plan), takers[0].owner, visibility)
        if taken is None:
            return shares
        held, token, messages, recovered = taken
        parts: dict[int, list[Message]] = {}
        for number, message in zip(plan, messages, strict=False):
            parts.setdefault(number, []).append(message)
        tokens = {number: self.ids.token() for number in parts}
        params = {
            "queue": held.id,
            "token": token,
            "ids": Numbers([place_of(message) for part in parts.values() for message in part]),
            "tokens": Tokens([tokens[number] for number, part in parts.items() for _ in part]),
            "owners": [kept(takers[number].owner) for number, part in parts.items() for _ in part],
        }
        rows = await self.link.run(lambda _: one(Ask("share_out", params)))
        ours = {row[0] for row in rows}
        for number, part in parts.items():
            mine = [
                owned(message, tokens[number], takers[number].owner) for message in part if place_of(message) in ours
            ]
            self._keep(tokens[number], mine)
            shares[number] = grants_of(queue, held.id, tokens[number], mine, recovered)
        return shares

    def _keep(self, token: str, messages: list[Message]) -> None:
        """What was read in claiming needs not be read again in loading."""
        self._claimed[token] = messages
        while len(self._claimed) > MOST_CLAIMS_KEPT:
            self._claimed.popitem(last=False)

    async def _taken(
        self, queue: str, limit: int, owner: str, visibility: float
    ) -> tuple[HeldQueue, str, list[Message], set[int]] | None:
        held = await self._queue(queue, refresh=True)
        self._sweep_sometimes(held)
        held.news = False
        token = self.ids.token()
        taking = Taking(queue, held.id, held.lifo, token, kept(owner), to_ms(visibility))
        try:
            won = await self._claim(held, taking, limit)
        except QueueNotFound:
            await self._anew(held)
            return None
        self._tell_failures(won)
        if not won.rows:
            return None
        held.idle_polls = 0
        if held.waiting:
            held.wake()
        return held, token, await self._opened(held, token, won.rows), won.recovered

    async def _claim(self, held: HeldQueue, taking: Taking, limit: int) -> Won:
        """Ready messages, from where the last claim stopped; all else now and then, or when that is not enough."""
        won = Won()
        now = self.clock.monotonic()
        known = held.outlook
        looks = known is None or known.has_lanes or held.policy.ordering_guarantee or now - held.looked_at > LOOK_EVERY
        if looks:
            await self._claim_overdue(held, taking, limit, won)
        if len(won.rows) < limit and not (held.outlook and held.outlook.has_lanes):
            if now - held.whole_at > LOOK_EVERY:
                held.forget()
                held.whole_at = now
            wanted = limit - len(won.rows)
            rows = await self._ready(held, taking, wanted)
            if len(rows) < wanted and any(held.low):
                held.forget()
                rows = [*rows, *await self._ready(held, taking, wanted - len(rows))]
            won.rows += rows
        if len(won.rows) < limit and not looks:
            await self._claim_overdue(held, taking, limit, won)
        return won

    async def _ready(self, held: HeldQueue, taking: Taking, limit: int) -> Rows:
        rows = await self._leased(taking, lambda: claim_ready(taking, limit, held.low))
        held.learn(rows, limit)
        return rows

    async def _leased(self, taking: Taking, make: Callable[[], Steps[Rows]]) -> Rows:
        def steps(doubt: bool) -> Steps[Rows]:
            if doubt:
                found = yield Ask("find_claimed", {"queue": taking.queue_id, "token": taking.token})
                if found:
                    return found
            return (yield from make())

        return await self.link.run(steps)

    async def _claim_overdue(self, held: HeldQueue, taking: Taking, limit: int, won: Won) -> None:
        """What time has made claimable or has ended, and lanes."""
        held.looked_at = self.clock.monotonic()
        held.outlook = outlook = await self.link.run(lambda _: look(held.name, held.id))
        if outlook.paused:
            return
        if outlook.overdue:
            won.add(await self._won(taking, lambda: take_over(taking, limit - len(won.rows))))
        if outlook.has_lanes and len(won.rows) < limit:
            await self._claim_both(held, taking, limit - len(won.rows), won)
            held.outlook = await self.link.run(lambda _: look(held.name, held.id)) if not won.rows else outlook

    async def _claim_both(self, held: HeldQueue, taking: Taking, limit: int, won: Won) -> None:
        """Heads of lanes and messages in no lane, as many of each as come first."""
        lanes, others = await self.link.run(lambda _: shares(taking, limit))
        before = len(won.rows)
        if lanes:
            won.add(await self._won(taking, lambda: claim_lanes(taking, lanes)))
        if others or len(won.rows) - before < min(lanes, limit):
            wanted = limit - (len(won.rows) - before)
            if wanted > 0:
                won.rows += await self._ready(held, taking, wanted)

    async def _won(self, taking: Taking, make: Callable[[], Steps[Won]]) -> Won:
        """A claim in several statements; where its commit was in doubt, what it has leased is looked up."""

        def steps(doubt: bool) -> Steps[Won]:
            if doubt:
                found = yield Ask("find_claimed", {"queue": taking.queue_id, "token": taking.token})
                if found:
                    return Won(list(found), {row[0] for row in found if row[4] > 1})
            return (yield from make())

        return await self.link.run(steps, atomic=True)

    async def claim_these(self, queue: str, refs: Sequence[str], *, owner: str, visibility: float) -> list[Grant]:
        held = await self._queue(queue)
        token = f"{self.ids.bits(128):032x}"
        taking = Taking(queue, held.id, held.lifo, token, kept(owner), to_ms(visibility))
        params = taking.params(ids=_numbers(held.id, refs))
        rows = await self._leased(taking, lambda: one(Ask("claim_chosen", params)))
        messages = delivered(queue, held.id, token, rows, lifo=held.lifo)
        self._claimed[token] = messages
        return grants_of(queue, held.id, token, messages, set())

    async def reprioritize(self, queue: str, refs: Sequence[str], priority: int) -> int:
        held = await self._queue(queue)
        params = {"queue": held.id, "ids": _numbers(held.id, refs), "priority": priority}
        held.forget()
        return len(await self.link.run(lambda _: one(Ask("reprioritize", params))))

    async def load(self, grants: Sequence[Grant]) -> list[Message]:
        messages: list[Message] = []
        by_token: dict[str, list[Grant]] = {}
        for grant in grants:
            by_token.setdefault(grant.token, []).append(grant)
        for token, members in by_token.items():
            known = self._claimed.pop(token, None)
            ids = {id for grant in members for id in grant.members}
            if known is not None:
                prefix = f"{members[0].segment}-"
                whole = len(ids) == len(known)
                messages += known if whole else [m for m in known if int(m.ref.removeprefix(prefix)) in ids]
                continue
            held = await self._queue(members[0].queue)
            params = {"queue": int(members[0].segment), "ids": sorted(ids), "token": token}
            rows = await self.link.run(lambda _, params=params: one(Ask("load", params)))
            messages += await self._opened(held, token, rows)
        return messages

    async def _opened(self, held: HeldQueue, token: str, rows: Rows) -> list[Message]:
        """Claimed rows as messages. What no key at hand opens goes back, uncounted; if that is all, it is raised."""
        messages = delivered(held.name, held.id, token, rows, lifo=held.lifo)
        moved = {f"{held.id}-{row[0]}" for row in rows if row[-1]}
        found, refused = open_messages(self._fields, messages, moved)
        if refused:
            for _, error in refused:
                log.error("not delivered, and given back: %s", error)
            await self.settle(held.name, [Release(message, UNREADABLE_FOR) for message, _ in refused])
            if not found:
                raise refused[0][1]
        return found

    async def wait(self, queue: str, seconds: float) -> None:
        """Until a notification, the next moment that something is due, or the next poll."""
        held = await self._queue(queue)
        now = self.clock.monotonic()
        timeout = min(seconds, self._interval(held, now))
        heard = self._listener.ready
        if not heard:
            await self._listener.start(timeout)
        if held.expects_until - now < EXPECT / 2 or self._listener.ready != heard:
            first = held.expects_until < now or not heard
            params = {"queue": held.id, "length": to_ms(EXPECT)}
            await self.link.run(lambda _: one(Ask("expect_messages", params)))
            held.expects_until = now + EXPECT
            if first:
                return
        held.idle_polls = min(held.idle_polls + 1, 20)
        left = timeout - (self.clock.monotonic() - now)
        if left > 0 and await held.wait(left):
            held.idle_polls = 0

    def _interval(self, held: HeldQueue, now: float) -> float:
        """Seconds until the next poll, or until something is due before that."""
        safety = SAFETY_POLL if self.pace.safety is None else self.pace.safety or FOREVER
        interval = min(FIRST_POLL * 2.0**held.idle_polls, safety) * self.ids.uniform(0.8, 1.2)
        outlook = held.outlook
        if outlook is None or outlook.paused or outlook.soonest == FOREVER:
            return interval
        elapsed = now - held.looked_at
        return min(interval, max((outlook.soonest - outlook.now) / 1000 - elapsed, 0.001))

    def wake(self, queue: str) -> None:
        held = self._queues.get(queue)
        if held is not None:
            held.wake()

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[Settled | BrigadeError]:
        held = await self._queue(queue)
        answers, changes, places = self._changes(held, settlements)
        if changes:
            for place, answer in zip(places, await held.settles.submit(changes), strict=True):
                answers[place] = answer
        return [*answers]

    async def settle_again(self, queue: str, settlements: Sequence[Settlement]) -> list[Settled | BrigadeError]:
        held = await self._queue(queue)
        answers, changes, places = self._changes(held, settlements)
        if changes:
            for place, answer in zip(places, await self._settle(held, changes, again=True), strict=True):
                answers[place] = answer
        return [*answers]

    def _changes(
        self, held: HeldQueue, settlements: Sequence[Settlement]
    ) -> tuple[list[Answer], list[Change], list[int]]:
        """What can be settled here, and the answers to what cannot."""
        answers: list[Answer] = []
        changes: list[Change] = []
        places: list[int] = []
        for place, settlement in enumerate(settlements):
            change = to_change(held.id, held.policy, settlement, self.ids.uniform)
            if isinstance(change, StaleLease):
                answers.append(change)
            else:
                answers.append(NOT_SETTLED)
                changes.append(change if self._fields is None else seal_change(self._fields, held.name, change))
                places.append(place)
        return answers, changes, places

    async def _settle(self, held: HeldQueue, changes: list[Change], *, again: bool = False) -> Sequence[Answer]:
        atomic = again or needs_transaction(changes)
        outcome: Outcome = await self.link.run(
            lambda doubt: settle(held.id, changes, self.clock.now(), lifo=held.lifo, tried=doubt or again),
            atomic=atomic,
        )
        if any(change.kind in ("release", "nack") for change in changes):
            held.forget()
            held.wake()
        for id in outcome.awaited:
            self._tell(id)
        return outcome.answers

    async def settle_in(
        self, connection: Any, queue: str, settlements: Sequence[Settlement]
    ) -> list[Settled | BrigadeError]:
        """Settle in a transaction that the caller has opened on a connection of its own."""
        joined = Joined(connection, self.link)
        held = await self._queue(queue)
        answers, changes, places = self._changes(held, settlements)
        if changes:
            slot = -1 - self.ids.bits(62)
            steps = settle(held.id, changes, self.clock.now(), lifo=held.lifo, tried=False, slot=slot)
            lanes = any(change.lane is not None for change in changes)
            outcome = await joined.run(steps, notify=(self.channel, held.id) if lanes else None)
            for place, answer in zip(places, outcome.answers, strict=True):
                answers[place] = answer
        return [*answers]

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

    async def browse(self, queue: str, match: Match, *, limit: int, most: int, after: str | None, held: bool) -> Page:
        one = await self._queue(queue)
        return await self.link.run(
            lambda _: operate.browse(
                queue, one.id, match, limit=limit, most=most, after=after, only_held=held, fields=self._fields
            )
        )

    async def story(self, queue: str, message_id: str) -> Story:
        held = await self._queue(queue)
        return await self.link.run(lambda _: operate.story(queue, held.id, message_id, self._fields))

    async def leases(self, queue: str, limit: int) -> list[Held]:
        held = await self._queue(queue)
        return await self.link.run(lambda _: operate.leases(held.id, limit))

    async def groups(self, queue: str, limit: int) -> list[GroupInfo]:
        held = await self._queue(queue)
        return await self.link.run(lambda _: operate.groups(held.id, limit))

    def upkeep(self) -> Upkeep:
        now = self.clock.monotonic()
        swept = {name: now - held.swept_at for name, held in self._queues.items() if held.swept_at is not None}
        return Upkeep(self.link.conflicts, swept)

    async def tail(self, queue: str, after: str | None, *, since_ms: int, limit: int) -> Tail:
        held = await self._queue(queue)
        return await self.link.run(
            lambda _: operate.tail(queue, held.id, after, since_ms=since_ms, limit=limit, fields=self._fields)
        )

    async def outcomes(self, queue: str, days: Sequence[str], sample: int) -> list[Day]:
        held = await self._queue(queue)
        return await self.link.run(lambda _: operate.outcomes(queue, held.id, days, sample, self._fields))

    async def override(self, queue: str, ids: Sequence[str], action: Action) -> int:
        held = await self._queue(queue)
        count = await self.link.run(lambda _: operate.override(held.id, ids, action, lifo=held.lifo), atomic=True)
        if count and action != "discard":
            self._back(held.id)
        return count

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

    def _back(self, queue_id: int) -> None:
        """Messages came back to a queue."""
        for held in self._queues.values():
            if held.id == queue_id:
                held.forget()
                held.wake()
        self._tell(queue_id)

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

    async def write_token(self, id: str, body: bytes) -> bool:
        return bool(await self.link.run(lambda _: one(Ask("write_token", {"id": id, "value": body}))))

    async def tokens(self) -> list[tuple[str, bytes]]:
        return [(id, value) for id, value in await self.link.run(lambda _: one(Ask("list_tokens")))]

    async def drop_token(self, id: str) -> bool:
        return bool(await self.link.run(lambda _: one(Ask("drop_token", {"id": id}))))

    async def open_payload(self, message: Message) -> AsyncIterator[bytes]:
        held = await self._queue(message.queue)
        async for chunk in read_payload(self._run, held.id, message, self._fields):
            yield chunk

    async def history_parts(self, queue: str, since: int) -> list[HistoryPart]:
        held = await self._queue(queue)
        return await self.link.run(lambda _: history.list_parts(queue, held.id, since))

    async def read_history(self, part: HistoryPart) -> list[Record]:
        held = await self._queue(part.queue)
        records = await self.link.run(lambda _: history.read_part(part, held.id))
        return [open_record(self._fields, record) for record in records]

    async def forget(self, queue: str) -> None:
        held = self._queues.get(queue)
        if held is not None:
            held.forget()
            held.policy_at = float("-inf")

    async def sweep(self, queue: str) -> dict[str, int]:
        held = await self._queue(queue)
        won = await self.link.run(lambda _: decide_all(queue, held.id, lifo=held.lifo), atomic=True)
        self._tell_failures(won)
        now = self.clock.now()
        orphans, expired = await self.link.run(lambda _: sweep_leftovers(held.id, held.policy, now))
        dropped = await tend_partitions(self.link, self.schema)
        held.swept_at = self.clock.monotonic()
        return {"finished": 0, "decided": len(won.failures), "orphans": orphans, "expired": expired + dropped}

    async def stage(self, queue: str, job: str, messages: Sequence[Outgoing]) -> Staged:
        held = await self._queue(queue)
        part = self.ids.bits(62) + 1
        now = await self.link.run(
            lambda doubt: bulk.stage(queue, held.id, held.policy, part, messages, self._fields, doubt=doubt),
            atomic=True,
        )
        return Staged(len(messages), now, str(part).encode())

    async def publish(self, queue: str, job: str, staged: Sequence[Staged], *, epoch: int | None = None) -> int:
        held = await self._queue(queue)
        token = self.ids.bits(62) + 1
        published = await self.link.run(
            lambda _: bulk.publish(
                queue,
                held.id,
                job,
                [int(one.detail) for one in staged],
                count=sum(one.count for one in staged),
                epoch=epoch or 0,
                keep=epoch is not None,
                token=token,
                lifo=held.lifo,
            ),
            atomic=True,
        )
        held.forget()
        held.wake()
        if published.awaited:
            self._tell(held.id)
        return published.count

    async def discard(self, queue: str, job: str, staged: Sequence[Staged]) -> None:
        held = await self._queue(queue)
        await self.link.run(lambda _: bulk.discard(held.id, [int(one.detail) for one in staged]))

    async def write_note(self, queue: str, name: str, value: bytes) -> bytes:
        held = await self._queue(queue)
        return await self.link.run(lambda _: bulk.write_note(queue, held.id, name, value))

    async def read_note(self, queue: str, name: str) -> bytes | None:
        held = await self._queue(queue)
        return await self.link.run(lambda _: bulk.read_note(held.id, name))

    async def drop_note(self, queue: str, name: str) -> None:
        held = await self._queue(queue)
        await self.link.run(lambda _: one(Ask("drop_note", {"queue": held.id, "name": name})))

    async def pieces(self, queue: str, table: ScannedTable, most: int, *, since: int = 0) -> list[bytes]:
        held = await self._queue(queue)
        return await self.link.run(lambda _: scan.pieces(held.id, table, most, since))

    async def scan(self, queue: str, table: ScannedTable, piece: bytes) -> AsyncIterator[Block]:
        held = await self._queue(queue)
        block = await self.link.run(lambda _: scan.scan(queue, held.id, table, piece))
        if block is not None:
            yield open_block(self._fields, queue, block)

    def requests(self) -> dict[str, int]:
        return dict(self.link.requests)

    async def close(self) -> None:
        self._closed = True
        if self._teller is not None:
            await asyncio.gather(self._teller, return_exceptions=True)
        await self._listener.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.link.close()

    async def _run(self, steps: Steps[Rows]) -> Rows:
        """A single statement that may be repeated."""
        ask = next(steps)
        steps.close()
        assert isinstance(ask, Ask)
        return await self.link.run(lambda _: one(ask))

    async def _on(self, queue: str, work: Callable[[HeldQueue], Awaitable[T]]) -> T:
        """Work on a queue; where it was deleted and made again meanwhile, on the new one."""
        held = await self._queue(queue)
        try:
            return await work(held)
        except QueueNotFound:
            return await work(await self._anew(held))

    async def _anew(self, held: HeldQueue) -> HeldQueue:
        if self._queues.get(held.name) is held:
            del self._queues[held.name]
        return await self._queue(held.name)

    async def _queue(self, name: str, *, refresh: bool = False) -> HeldQueue:
        held = self._queues.get(name)
        if held is not None and not (refresh and self.clock.monotonic() - held.policy_at > POLICY_TTL):
            return held
        id, policy = await self.link.run(lambda _: queues.load_queue(name, self._fields))
        return self._remember(name, id, policy)

    def _remember(self, name: str, id: int, policy: QueuePolicy) -> HeldQueue:
        held = self._queues.get(name)
        if held is None or held.id != id:
            held = self._queues[name] = HeldQueue(name, id, self._write, self._settle)
        held.policy = policy
        held.policy_at = self.clock.monotonic()
        return held

    def _tell_failures(self, won: Won) -> None:
        for failure in won.failures if self.on_failure is not None else ():
            assert self.on_failure is not None
            self.on_failure(failure)
        for id in won.awaited:
            self._tell(id)

    def _heard(self, queue_id: int | None) -> None:
        """There is news in a queue; None: there may be some in any."""
        for held in self._queues.values():
            if queue_id is None:
                held.wake_all()
            elif held.id == queue_id:
                held.wake()

    def _tell(self, queue_id: int) -> None:
        """Tell other processes of news, soon: what arrives while one notification is on its way goes out as one."""
        self._telling.add(queue_id)
        if (self._teller is None or self._teller.done()) and not self._closed:
            self._teller = asyncio.get_running_loop().create_task(self._tell_all())

    async def _tell_all(self) -> None:
        while self._telling:
            id = self._telling.pop()
            params = {"channel": self.channel, "payload": str(id)}
            try:
                await self.link.run(lambda _, params=params: one(Ask("notify", params)))
            except BrigadeError as error:
                log.info("others could not be notified (%s); they will see it at their next poll", error)

    def _sweep_sometimes(self, held: HeldQueue) -> None:
        now = self.clock.monotonic()
        if held.sweep_at is None:
            held.sweep_at = now + SWEEP_EVERY * self.ids.uniform(0.2, 1.0)
        elif now >= held.sweep_at and not self._closed:
            held.sweep_at = now + SWEEP_EVERY * self.ids.uniform(0.8, 1.2)
            self._spawn(self._sweep_quietly(held.name))

    async def _sweep_quietly(self, queue: str) -> None:
        try:
            await self.sweep(queue)
        except BrigadeError as error:
            log.warning("sweep of queue %s stopped (%s); it is tried again later", queue, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _numbers(queue_id: int, refs: Sequence[str]) -> list[int]:
    """The numbers of these messages, in order: whoever locks them does it in the same order."""
    return sorted(number for ref in refs if (number := parse_ref(ref, queue_id)) is not None)
