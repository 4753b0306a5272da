"""Settlements of the PostgreSQL store, gathered and written together, or in the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brigade.errors import BrigadeError, StaleLease
from brigade.model import Settlement
from brigade.stores import Settled
from brigade.stores.postgres.held import HeldQueue
from brigade.stores.postgres.joined import Joined
from brigade.stores.postgres.process import PostgresProcess
from brigade.stores.postgres.sealing import seal_change
from brigade.stores.postgres.settle import NOT_SETTLED, Answer, Change, Outcome, needs_transaction, settle, to_change

__all__ = ["PostgresSettling"]


class PostgresSettling(PostgresProcess):
    """Ack, nack, extend and release."""

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
