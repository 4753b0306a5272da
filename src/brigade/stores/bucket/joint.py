"""Plain calls of several threads, made together: those of one kind share a write, and all writes share a commit."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from brigade.blobs import Gathering
from brigade.errors import BrigadeError, CannotDecrypt, StaleLease
from brigade.model import Grant
from brigade.stores.bucket.claim import claim
from brigade.stores.bucket.claiming import BucketClaiming
from brigade.stores.bucket.convert import SettleGroup, messages_of
from brigade.stores.bucket.driver import Unfinished
from brigade.stores.bucket.enqueue import Draft, enqueue
from brigade.stores.bucket.held import HeldQueue
from brigade.stores.bucket.incoming import plain_entry
from brigade.stores.bucket.keys import SegmentName, parse_message_ref
from brigade.stores.bucket.load import load
from brigade.stores.bucket.settle import settle
from brigade.stores.bucket.steps import Env, Parallel, Proto
from brigade.stores.bucket.turn import Seats
from brigade.stores.bucket.view import QueueView
from brigade.stores.prompt import PlainAck, PlainCall, PlainClaim, PlainEnqueue

__all__ = ["BucketJoint"]

Outcomes = list[Any]
"""What each call came to: what it returns, its error, or None where it has to go the general way."""


class BucketJoint(BucketClaiming):
    """`together_now` of `PromptStore`."""

    @property
    def gathers(self) -> bool:
        return isinstance(self._blobs, Gathering)

    def together_now(self, calls: Sequence[PlainCall]) -> Outcomes | Coroutine[Any, Any, Outcomes]:
        outcomes: Outcomes = [None] * len(calls)
        work = _Work(self.env, outcomes)
        for place, call in enumerate(calls):
            held = self._queues.get(call.queue)
            if held is None or self._closed:
                continue
            if isinstance(call, PlainEnqueue):
                work.add_enqueue(held, call, place)
            elif isinstance(call, PlainAck):
                work.add_ack(held, call, place)
            elif self.may_claim_now(held):
                work.add_claim(held, call, place)
        parts = work.parts(self._blobs.listing_ttl)
        if not parts:
            return outcomes
        done: list[None] | Unfinished[list[None]] = self.run_now(_all(parts))
        if isinstance(done, Unfinished):
            return self._later(done, work)
        self._made(work)
        return outcomes

    async def _later(self, rest: Unfinished[list[None]], work: _Work) -> Outcomes:
        await self.finish(rest)
        self._made(work)
        return work.outcomes

    def _made(self, work: _Work) -> None:
        """Do what those who come after have to know."""
        for held in work.enqueues:
            held.wake()
        for held in {held for held, _ in (*work.claims, *work.acks)}:
            self._tell_failures(held)
            self._finish_soon(held)
        for place, outcome in enumerate(work.outcomes):
            if isinstance(outcome, Grant):
                work.outcomes[place] = self.load([outcome])


class _Work:
    """Calls sorted by what they can share."""

    def __init__(self, env: Env, outcomes: Outcomes) -> None:
        self._env = env
        self.outcomes = outcomes
        self.enqueues: dict[HeldQueue, tuple[list[int], list[Draft]]] = {}
        self.claims: dict[tuple[HeldQueue, float], tuple[list[int], list[str]]] = {}
        self.acks: dict[tuple[HeldQueue, SegmentName], SettleGroup] = {}

    def add_enqueue(self, held: HeldQueue, call: PlainEnqueue, place: int) -> None:
        try:
            entry = plain_entry(held.view, call.message, self._env.now())
        except BrigadeError as error:
            self.outcomes[place] = error
            return
        if entry is not None:
            places, drafts = self.enqueues.setdefault(held, ([], []))
            places.append(place)
            drafts.append(Draft(entry))

    def add_claim(self, held: HeldQueue, call: PlainClaim, place: int) -> None:
        places, owners = self.claims.setdefault((held, call.visibility), ([], []))
        places.append(place)
        owners.append(call.owner)

    def add_ack(self, held: HeldQueue, call: PlainAck, place: int) -> None:
        message = call.message
        found = parse_message_ref(message.ref)
        token, _, number = message.lease.token.rpartition(".")
        if found is None or held.settles or found[0].lane or number != str(found[1]):
            return
        name, member = found
        group = self.acks.get((held, name)) or self.acks.setdefault((held, name), SettleGroup(name))
        group.ack(token, message.lease.version, member, place)

    def parts(self, listing_ttl: float) -> list[Proto[None]]:
        """What has to be done, each part for itself: an error is the outcome of its own calls alone."""
        env, outcomes = self._env, self.outcomes
        found = [
            _each(outcomes, places, _enqueue(env, held.view, outcomes, places, drafts))
            for held, (places, drafts) in self.enqueues.items()
        ]
        found += [
            _each(outcomes, places, _claim(env, held.view, outcomes, places, owners, visibility, listing_ttl))
            for (held, visibility), (places, owners) in self.claims.items()
        ]
        for (held, _), group in self.acks.items():
            places = [place for several in group.positions for place in several]
            found.append(_each(outcomes, places, _ack(env, held.view, outcomes, group)))
        return found


def _all(parts: Sequence[Proto[None]]) -> Proto[list[None]]:
    return (yield Parallel(parts, len(parts)))


def _each(outcomes: Outcomes, places: Sequence[int], work: Proto[None]) -> Proto[None]:
    try:
        yield from work
    except Exception as error:
        for place in places:
            outcomes[place] = error


def _enqueue(
    env: Env, view: QueueView, outcomes: Outcomes, places: Sequence[int], drafts: Sequence[Draft]
) -> Proto[None]:
    receipts = yield from enqueue(env, view, drafts)
    for place, receipt in zip(places, receipts, strict=True):
        outcomes[place] = receipt


def _claim(
    env: Env,
    view: QueueView,
    outcomes: Outcomes,
    places: Sequence[int],
    owners: Sequence[str],
    visibility: float,
    listing_ttl: float,
) -> Proto[None]:
    """A message for each, as far as there are any. Grants stand for those that a key that isn't at hand keeps back."""
    count, seats = len(owners), Seats(owners, range(len(owners)))
    won = yield from claim(
        env, view, limit=count, owner=owners[0], visibility=visibility, listing_ttl=listing_ttl, seats=seats
    )
    for grant in won:
        outcomes[places[seats.taker[grant.token]]] = grant
    try:
        loaded = yield from load(env, view, won)
    except CannotDecrypt:
        return
    for grant in won:
        outcomes[places[seats.taker[grant.token]]] = None
    for one in loaded:
        outcomes[places[seats.taker[one.grant.token]]] = messages_of(view.keys.queue, one) or None


def _ack(env: Env, view: QueueView, outcomes: Outcomes, group: SettleGroup) -> Proto[None]:
    answers = yield from settle(env, view, group.name, group.changes)
    for places, several in zip(group.positions, answers, strict=True):
        for place, answer in zip(places, several, strict=True):
            outcomes[place] = answer if isinstance(answer, StaleLease) else True
