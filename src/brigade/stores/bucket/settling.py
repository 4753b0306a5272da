"""Settlements of the bucket store, gathered segment by segment and written together."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence

import msgspec
from msgspec.structs import replace

from brigade.errors import BrigadeError, MessageNotFound, StaleLease
from brigade.machine import State
from brigade.model import (
    Ack,
    Message,
    Settlement,
)
from brigade.stores import Settled
from brigade.stores.bucket import inspect
from brigade.stores.bucket.convert import SettleGroup, to_change
from brigade.stores.bucket.held import HeldQueue
from brigade.stores.bucket.keys import SegmentName, parse_message_ref
from brigade.stores.bucket.process import BucketProcess
from brigade.stores.bucket.settle import Change, settle
from brigade.stores.bucket.settle import Settled as Applied

__all__ = ["BucketSettling"]

RESULT_LIMIT = 4096
RESULTS_LIMIT = 64 * 1024


class BucketSettling(BucketProcess):
    """Ack, nack, extend and release."""

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
            results = await held.settles.submit(name, group.changes)
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


_NOT_SETTLED = StaleLease("the settlement was not carried out")


def _foreign(message: Message) -> StaleLease:
    return StaleLease(
        f"token {message.lease.token!r} does not belong to message {message.id!r}; settle with the message as claimed"
    )
