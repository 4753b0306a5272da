"""A store that writes down what it was asked and what it answered: every enqueue, claim and settlement of a process.

It stands at the port that queues and workers share, so a worker's own claims and acks are in the journal as well.
"""

from __future__ import annotations

import itertools
import time
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import brigade.hub
from brigade.clock import Clock, SystemClock
from brigade.errors import BrigadeError, QueuePaused, StaleLease, StoreUnavailable
from brigade.model import Ack, Extend, Grant, Message, Nack, Receipt, Settlement
from brigade.stores import Failed, Outgoing, Settled, Store
from brigade.stores.opening import open_store
from brigade.testing.chaos.journal import Journal, wall_ms
from brigade.testing.sim import records as r

__all__ = ["CALLS", "RecordingStore", "delivered", "put_off", "record_everything", "returned", "token_of", "told"]

FIRST = 1
"""The begin of a claim that nobody has seen: before everything else."""

CALLS = 1_000_000
"""Calls are numbered by process, then by call."""


def token_of(message: Message) -> str:
    """The token as the store's account has it; in a bucket it stands before the message's place."""
    token = message.lease.token
    return token.rpartition(".")[0] or token


def returned(queue: str, uid: str, receipt: Receipt) -> r.Returned:
    """An enqueue that was answered."""
    return r.Returned(at=wall_ms(), queue=queue, uid=uid, ref=receipt.ref, duplicate=receipt.duplicate)


def delivered(message: Message) -> r.Delivered:
    """A message in somebody's hands."""
    return r.Delivered(
        at=wall_ms(),
        queue=message.queue,
        ref=message.ref,
        uid=message.correlation_id,
        token=token_of(message),
        version=message.lease.version,
        attempt=message.attempt,
        max_attempts=message.max_attempts,
        payload=message.body or b"",
        own_id=message.id if message.id.startswith("own-") else None,
        group=message.group,
        priority=message.priority,
        since=0,
    )


def told(message: Message, kind: str, answer: str) -> r.Told:
    """How a settlement was answered."""
    return r.Told(at=wall_ms(), queue=message.queue, ref=message.ref, token=token_of(message), kind=kind, answer=answer)


def put_off(clock: Clock, skew: int) -> None:
    """Make a clock wrong by so many milliseconds, where it is this process's own."""
    if isinstance(clock, SystemClock):
        clock.offset_ms += skew


def record_everything(journal: Journal, number: int, skew: int) -> None:
    """From here on every hub of this process writes to the journal, and its clock is off by `skew` milliseconds."""
    calls = itertools.count(number * CALLS)

    def opened(url: str, options: dict[str, Any]) -> Store:
        return cast(Store, RecordingStore(open_store(url, options), journal, calls, skew))

    brigade.hub.open_store = opened


class RecordingStore:
    """The store inside, with a journal."""

    def __init__(self, inner: Store, journal: Journal, calls: itertools.count[int], skew: int = 0) -> None:
        self._inner = inner
        self._journal = journal
        self._calls = calls
        self._skew = skew
        self._begun: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._claiming(found) if name == "claim_within" else found

    @property
    def clock(self) -> Clock:
        return self._inner.clock

    @property
    def on_failure(self) -> Callable[[Failed], None] | None:
        return self._inner.on_failure

    @on_failure.setter
    def on_failure(self, listener: Callable[[Failed], None] | None) -> None:
        self._inner.on_failure = listener

    async def open(self) -> None:
        await self._inner.open()
        put_off(self._inner.clock, self._skew)

    async def enqueue(self, queue: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        call, begun = next(self._calls), time.monotonic_ns()
        uids = [message.correlation_id or "" for message in messages]
        meant = [
            r.Intent(
                at=wall_ms(),
                queue=queue,
                uid=uid,
                call=call,
                payload=message.payload if isinstance(message.payload, bytes) else b"",
                own_id=message.id,
                group=message.group,
                priority=message.priority,
            )
            for uid, message in zip(uids, messages, strict=True)
        ]
        self._journal.write("enqueue", meant)
        try:
            receipts = await self._inner.enqueue(queue, messages)
        except StoreUnavailable:
            self._journal.write("enqueue unsure", [r.Unsure(at=wall_ms(), queue=queue, uid=uid) for uid in uids])
            raise
        except BrigadeError as error:
            self._raised("enqueue", queue, error)
            raise
        known = [returned(queue, uid, receipt) for uid, receipt in zip(uids, receipts, strict=True)]
        self._journal.write("enqueue returned", known, begun=begun)
        return receipts

    async def claim(
        self, queue: str, *, limit: int, owner: str, visibility: float, patient: bool = False
    ) -> list[Grant]:
        how = {"limit": limit, "owner": owner, "visibility": visibility, "patient": patient}
        return await self._claiming(self._inner.claim)(queue, **how)

    def _claiming(self, claim: Callable[..., Awaitable[list[Grant]]]) -> Callable[..., Awaitable[list[Grant]]]:
        """A way to claim, of which the begin is remembered; a store over HTTP has two."""

        async def claimed(queue: str, **how: Any) -> list[Grant]:
            begun = time.monotonic_ns()
            try:
                grants = await claim(queue, **how)
            except BrigadeError as error:
                self._failed("claim", queue, error)
                raise
            for grant in grants:
                self._begun[grant.token] = begun
            return grants

        return claimed

    async def load(self, grants: Sequence[Grant]) -> list[Message]:
        known = {grant.token for grant in grants}
        begun = min((self._begun.pop(token) for token in known if token in self._begun), default=FIRST)
        try:
            messages = await self._inner.load(grants)
        except BrigadeError as error:
            self._failed("load", grants[0].queue if grants else "", error)
            raise
        held = [delivered(message) for message in messages]
        if held:
            self._journal.write("claim", held, begun=begun)
        return messages

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[Settled | BrigadeError]:
        begun = time.monotonic_ns()
        try:
            answers = await self._inner.settle(queue, settlements)
        except (StoreUnavailable, CancelledError):
            self._told(settlements, ["unknown"] * len(settlements), begun)
            raise
        except BrigadeError as error:
            self._raised("settle", queue, error)
            raise
        words = ["ok" if isinstance(one, Settled) else _word(one) for one in answers]
        self._told(settlements, words, begun)
        return answers

    def _told(self, settlements: Sequence[Settlement], words: Sequence[str], begun: int) -> None:
        by_op: dict[str, list[r.Record]] = {}
        for settlement, word in zip(settlements, words, strict=True):
            kind = _kind(settlement)
            by_op.setdefault(f"{kind} {word}", []).append(told(settlement.message, kind, word))
        for op, answers in by_op.items():
            self._journal.write(op, answers, begun=begun)

    def _failed(self, what: str, queue: str, error: BrigadeError) -> None:
        if isinstance(error, StoreUnavailable | QueuePaused):
            self._journal.write(f"{what} failed", count=1)
        else:
            self._raised(what, queue, error)

    def _raised(self, what: str, queue: str, error: BrigadeError) -> None:
        text = f"{type(error).__name__}: {error}"
        self._journal.write("raised", [r.Raised(at=wall_ms(), queue=queue, where=what, error=text)])


def _word(answer: BrigadeError) -> str:
    return "stale" if isinstance(answer, StaleLease) else "unknown"


def _kind(settlement: Settlement) -> str:
    match settlement:
        case Ack():
            return "ack"
        case Nack():
            return "nack"
        case Extend():
            return "extend"
        case _:
            return "release"
