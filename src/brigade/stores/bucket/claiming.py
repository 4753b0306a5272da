"""Claims of the bucket store, gathered and made together, and loading what they won."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from brigade.blobs import Blobs
from brigade.clock import Clock
from brigade.errors import BrigadeError, CannotDecrypt
from brigade.ids import Ids
from brigade.model import Grant, Message, Release
from brigade.stores import Taker, seating
from brigade.stores.bucket.claim import claim
from brigade.stores.bucket.convert import messages_of
from brigade.stores.bucket.held import HeldQueue
from brigade.stores.bucket.load import Loaded, load
from brigade.stores.bucket.process import POLICY_TTL
from brigade.stores.bucket.settling import BucketSettling
from brigade.stores.bucket.turn import Seats
from brigade.stores.groupcommit import GroupCommits

__all__ = ["BucketClaiming"]

log = logging.getLogger("brigade")
UNREADABLE_FOR = 60.0
"""Seconds before messages that could not be opened are handed out again."""


class BucketClaiming(BucketSettling):
    """Claim and load."""

    def __init__(self, blobs: Blobs, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        super().__init__(blobs, clock=clock, ids=ids)
        self._claims: GroupCommits[tuple[HeldQueue, float], Taker, list[Grant]] = GroupCommits(self._claim_together)

    async def claim(
        self, queue: str, *, limit: int, owner: str, visibility: float, patient: bool = False
    ) -> list[Grant]:
        """Claims that come while another is under way make the next one together: they would only collide."""
        held = await self._queue(queue, refresh=True)
        (won,) = await self._claims.submit((held, visibility), [Taker(owner, limit, patient)])
        return won

    async def claim_for(self, queue: str, takers: Sequence[Taker], *, visibility: float) -> list[list[Grant]]:
        return await self._claim_for(await self._queue(queue, refresh=True), takers, visibility)

    async def _claim_together(self, key: tuple[HeldQueue, float], takers: Sequence[Taker]) -> list[list[Grant]]:
        """Claim for several, and read each segment that all of them need once."""
        held, visibility = key
        shares = await self._claim_for(held, takers, visibility)
        first = {grant.segment: grant for share in shares for grant in share}
        if sum(map(len, shares)) > len(first):
            with contextlib.suppress(BrigadeError):
                await self.run(load(self.env, held.view, list(first.values())))
        return shares

    async def _claim_for(self, held: HeldQueue, takers: Sequence[Taker], visibility: float) -> list[list[Grant]]:
        seats = Seats([taker.owner for taker in takers], seating(takers))
        shares: list[list[Grant]] = [[] for _ in takers]
        patient = all(taker.patient for taker in takers)
        for grant in await self._claim(held, seats, visibility, patient):
            shares[seats.taker[grant.token]].append(grant)
        return shares

    async def _claim(self, held: HeldQueue, seats: Seats, visibility: float, patient: bool) -> list[Grant]:
        self._sweep_sometimes(held)
        held.woken.clear()
        held.looked_at = self.env.now()
        won = await self.run(
            claim(
                self.env,
                held.view,
                limit=len(seats.left),
                owner=seats.owners[0],
                visibility=visibility,
                listing_ttl=self._blobs.listing_ttl,
                patient=patient,
                seats=seats,
            )
        )
        if won and held.waiting:
            held.wake()
        self._tell_failures(held)
        self._finish_soon(held)
        return won

    def may_claim_now(self, held: HeldQueue) -> bool:
        """Whether a claim has nothing else to see to: nobody waits in line, and no upkeep is due."""
        if held.waiting or self._claims or held.sweep_at is None:
            return False
        now = self.env.clock.monotonic()
        return now - held.policy_at <= POLICY_TTL and now < held.sweep_at

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
                await self.settle(grant.queue, [Release(message, UNREADABLE_FOR) for message in grant.held()])
        if refused is not None and not found:
            raise refused
        return found
