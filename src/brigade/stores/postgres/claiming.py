"""Claims of the PostgreSQL store: which statement a claim is worth, what it won, and how long to wait for more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from brigade.clock import FOREVER, to_ms
from brigade.errors import QueueNotFound
from brigade.model import Grant, Message, Release
from brigade.stores import Taker, seating
from brigade.stores.postgres.adapt import Numbers, Tokens
from brigade.stores.postgres.claim import Outlook, Taking, Won, claim_lanes, claim_ready, look, shares, take_over
from brigade.stores.postgres.held import HeldQueue
from brigade.stores.postgres.payloads import one
from brigade.stores.postgres.sealing import open_messages
from brigade.stores.postgres.settling import PostgresSettling
from brigade.stores.postgres.steps import Ask, Rows, Steps
from brigade.stores.postgres.wire import delivered, grants_of, kept, owned, parse_ref, place_of

__all__ = ["PostgresClaiming"]

log = logging.getLogger("brigade")
FIRST_POLL, SAFETY_POLL = 0.1, 30.0
LOOK_EVERY = 1.0
"""Under load, seconds between looks for leases that ran out, and between claims from the very beginning."""

EXPECT = 60.0
LONGEST_WAIT = 45.0
"""Seconds for which others are asked to notify, and for which a wait relies on that before it asks again."""
MOST_CLAIMS_KEPT = 1024
UNREADABLE_FOR = 60.0
"""Seconds before messages that could not be opened are handed out again."""


class PostgresClaiming(PostgresSettling):
    """Claim, load and wait."""

    async def claim(
        self, queue: str, *, limit: int, owner: str, visibility: float, patient: bool = False
    ) -> list[Grant]:
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
            if won.next_at is not None:
                held.wake_in(max(won.next_at - self.clock.monotonic(), 0.001))
            return None
        # There may be more, also for who looked before it was there and is about to wait.
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
        if len(won.rows) < limit and known is not None and not looks:
            await self._claim_overdue(held, taking, limit, won, since=known.now)
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

    async def _claim_overdue(
        self, held: HeldQueue, taking: Taking, limit: int, won: Won, *, since: int = FOREVER
    ) -> None:
        """What time has made claimable or has ended, and lanes."""
        outlook = await self._look(held, won, since)
        if outlook.paused:
            return
        if outlook.overdue:
            won.add(await self._won(taking, lambda: take_over(taking, limit - len(won.rows))))
        if outlook.has_lanes and len(won.rows) < limit:
            await self._claim_both(held, taking, limit - len(won.rows), won)
            if not won.rows:
                await self._look(held, won, since=outlook.now)

    async def _look(self, held: HeldQueue, won: Won, since: int) -> Outlook:
        """How the queue stands, and when the next thing may be claimed or decided there."""
        began = held.looked_at = self.clock.monotonic()
        held.outlook = outlook = await self.link.run(lambda _: look(held.name, held.id, since))
        won.next_at = None
        if not outlook.paused and outlook.soonest < FOREVER:
            won.next_at = began + (outlook.soonest - outlook.now) / 1000
        return outlook

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
        if not self._closed:
            self._listener.start()
        now = self.clock.monotonic()
        timeout = min(seconds, self._interval(held), LONGEST_WAIT)
        if held.expects_until < now + timeout and await self._expect(held, now):
            return
        held.idle_polls = min(held.idle_polls + 1, 20)
        left = timeout - (self.clock.monotonic() - now)
        if left > 0:
            await held.wait(left)

    async def _expect(self, held: HeldQueue, now: float) -> bool:
        """Have others notify. True where they didn't have to before: what they did meanwhile has to be looked for.

        Whoever was about to commit just then doesn't notify yet: it is found by the first polls, which are soon.
        """
        lapsed = held.expects_until < now
        params = {"queue": held.id, "length": to_ms(EXPECT)}
        await self.link.run(lambda _: one(Ask("expect_messages", params)))
        held.expects_until = now + EXPECT
        if lapsed:
            held.idle_polls = 0
        return lapsed

    def _interval(self, held: HeldQueue) -> float:
        """Seconds until the next poll."""
        safety = SAFETY_POLL if self.pace.safety is None else self.pace.safety or FOREVER
        return min(FIRST_POLL * 2.0**held.idle_polls, safety) * self.ids.uniform(0.8, 1.2)

    def wake(self, queue: str) -> None:
        held = self._queues.get(queue)
        if held is not None:
            held.wake()


def _numbers(queue_id: int, refs: Sequence[str]) -> list[int]:
    """The numbers of these messages, in order: whoever locks them does it in the same order."""
    return sorted(number for ref in refs if (number := parse_ref(ref, queue_id)) is not None)
