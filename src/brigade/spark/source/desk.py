"""The driver's side of a stream: it claims, keeps what it claimed leased while Spark works on it, and acks.

It lives in the one process that Spark runs the source of a query in, on a hub of its own. What a micro-batch has
leased is also noted in the store, under the name that the batch's offset gives, so that whoever takes over after a
crash finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from brigade.errors import BrigadeError, ConfigError, StaleLease, StoreUnavailable
from brigade.model import Ack, Extend, Grant, Release, Settlement
from brigade.policy import QueuePolicy
from brigade.spark.source.options import Place
from brigade.stores import LeasingStore, NotingStore, Settled, Store
from brigade.sync import Hub

__all__ = ["Desk"]

log = logging.getLogger("brigade.spark")
T = TypeVar("T")
PATIENCE = 300.0
"""Seconds for which a store that doesn't answer is asked again before the query fails."""

TOGETHER = 20_000
LOOK = 30.0
NAP = 0.25
"""Spark asks many times a second whether there is something new: an idle desk lets it wait that long each time."""

_grants = msgspec.msgpack.Decoder(list[Grant])


class Desk:
    """Leases of one stream, by the name of the micro-batch they belong to."""

    def __init__(self, place: Place, queue: str, visibility: float | None) -> None:
        self._queue = queue
        self._async = place.connect_async()
        self._hub = Hub.over(self._async).open()
        self.policy: QueuePolicy = self._hub.queue(queue, create=False).policy
        self.visibility = visibility or self.policy.visibility_timeout
        self._held: dict[str, list[Grant]] = {}
        self._news = threading.Event()
        self._news.set()
        self._parent = os.getppid()
        self._beat: Future[None] = self._hub.submit(self._beat_on())

    @property
    def _store(self) -> Store:
        return self._async.store

    @property
    def _notes(self) -> NotingStore:
        store = self._async.store
        if not isinstance(store, NotingStore):
            raise ConfigError("this store takes no streams; give Spark the URL of the store behind it")
        return store

    def backlog(self) -> int:
        """How many messages there are to take, or to take over."""
        stats = self._patiently(lambda: self._store.stats(self._queue))
        return stats.ready + stats.in_flight

    def mean_size(self) -> float:
        """Bytes of a message, by a look at the next few."""
        seen = self._patiently(lambda: self._store.peek(self._queue, 100))
        return sum(info.size for info in seen) / len(seen) if seen else 1.0

    def knows(self, name: str) -> bool:
        """Whether this process has claimed for that micro-batch."""
        return name in self._held

    def wait_for_news(self) -> bool:
        """Whether there may be something to claim; waits a moment where there isn't."""
        return self._news.wait(NAP)

    def claim(self, limit: int, segments: int | None, owner: str) -> list[Grant]:
        """Lease up to `limit` messages, in up to so many segments. Looks again only when there is news."""
        won: list[Grant] = []
        left = limit
        while left > 0 and (segments is None or len(won) < segments):
            share = left if segments is None else min(left, self.policy.segment_messages)
            store = self._store
            claim = store.lease if isinstance(store, LeasingStore) else store.claim
            try:
                more = self._hub.call(claim(self._queue, limit=share, owner=owner, visibility=self.visibility))
            except StoreUnavailable as error:
                log.warning("the store did not answer a claim (%s); it is asked again", error)
                break
            won += more
            left -= sum(map(len, more))
            if not more:
                break
        if segments is not None and len(won) > segments:
            self._settle([Release(message) for grant in won[segments:] for message in grant.held()])
            won = won[:segments]
        if not won:
            self._news.clear()
            self._hub.submit(self._watch())
        return won

    async def _watch(self) -> None:
        with contextlib.suppress(BrigadeError):
            await self._store.wait(self._queue, LOOK)
        self._news.set()

    def note(self, name: str, grants: list[Grant]) -> bool:
        """Write down what a micro-batch has leased. False where somebody else has: theirs counts, ours is released."""
        value = msgspec.msgpack.encode(grants)
        there = self._patiently(lambda: self._notes.write_note(self._queue, name, value))
        if there == value:
            self._held[name] = grants
            return True
        self._settle([Release(message) for grant in grants for message in grant.held()])
        return False

    def recall(self, name: str) -> list[Grant]:
        """What a micro-batch has leased, as far as it is still ours; after a restart, from the note."""
        known = self._held.get(name)
        if known is not None:
            return known
        value = self._patiently(lambda: self._notes.read_note(self._queue, name))
        if value is None:
            return []
        grants = self._still_ours(_grants.decode(value))
        if grants:
            self._held[name] = grants
        return grants

    def ack(self, name: str) -> None:
        """The micro-batch is done: its messages are, too, but those that were settled otherwise or taken over."""
        grants = self._held.get(name)
        if grants is None:
            value = self._patiently(lambda: self._notes.read_note(self._queue, name))
            grants = [] if value is None else _grants.decode(value)
            if value is None:
                return
        answers = self._settle([Ack(message) for grant in grants for message in grant.held()])
        stale = sum(isinstance(answer, StaleLease) for answer in answers)
        if stale:
            log.info("%d of %d messages had been settled or taken over before their batch ended", stale, len(answers))
        self._held.pop(name, None)
        self._patiently(lambda: self._notes.drop_note(self._queue, name))

    def drop(self, name: str) -> None:
        """Forget a micro-batch of which nothing is ours any more."""
        self._held.pop(name, None)
        self._patiently(lambda: self._notes.drop_note(self._queue, name))

    def close(self) -> None:
        """Stop keeping leases; they run out unless somebody takes the stream up again."""
        self._beat.cancel()
        self._hub.close()

    def _still_ours(self, grants: Sequence[Grant]) -> list[Grant]:
        """The grants without the messages that others have taken over, extended from now on."""
        wanted = [(grant, message) for grant in grants for message in grant.held()]
        answers = self._settle([Extend(message, self.visibility) for _, message in wanted])
        lost = {
            message.ref for (_, message), answer in zip(wanted, answers, strict=True) if isinstance(answer, StaleLease)
        }
        if lost:
            log.warning("%d of %d leased messages were taken over by others", len(lost), len(wanted))
        return [kept for grant in grants if (kept := _without(grant, lost)) is not None]

    def _settle(self, settlements: Sequence[Settlement]) -> list[Settled | BrigadeError]:
        return self._patiently(lambda: self._settle_async(settlements))

    async def _settle_async(self, settlements: Sequence[Settlement]) -> list[Settled | BrigadeError]:
        """Settle in portions. A part that could not be written is a reason to try all of it again: that is harmless."""
        answers: list[Settled | BrigadeError] = []
        for start in range(0, len(settlements), TOGETHER):
            answers += await self._store.settle(self._queue, settlements[start : start + TOGETHER])
        for answer in answers:
            if isinstance(answer, BrigadeError) and not isinstance(answer, StaleLease):
                raise answer
        return answers

    async def _beat_on(self) -> None:
        """Extend every lease, three times in its length, as long as Spark is there to work."""
        while os.getppid() == self._parent:
            await asyncio.sleep(self.visibility / 3)
            for name, grants in list(self._held.items()):
                messages = [message for grant in grants for message in grant.held()]
                try:
                    await self._settle_async([Extend(message, self.visibility) for message in messages])
                except BrigadeError as error:
                    log.warning("the leases of %s could not be extended now (%s); it is tried again", name, error)

    def _patiently(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._hub.call(_tried(make))


async def _tried(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What the store answers, asked again while it doesn't."""
    loop = asyncio.get_running_loop()
    end, pause = loop.time() + PATIENCE, 0.2
    while True:
        try:
            return await make()
        except StoreUnavailable as error:
            if loop.time() > end:
                raise
            log.warning("the store did not answer (%s); it is asked again", error)
        await asyncio.sleep(pause)
        pause = min(pause * 2, 10.0)


def _without(grant: Grant, lost: set[str]) -> Grant | None:
    places = [place for place, member in enumerate(grant.members) if f"{grant.segment}-{member}" not in lost]
    if not places:
        return None
    chosen: dict[str, Any] = {
        field: tuple(getattr(grant, field)[place] for place in places)
        for field in ("members", "attempts", "max_attempts")
    }
    return msgspec.structs.replace(grant, **chosen)
