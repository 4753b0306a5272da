"""A queue on the store, from one end to the other: for every kind of store, buckets or not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from brigade.doctor.lab import Connection, Lab
from brigade.doctor.report import Finding, fail, ok, quantile, warn
from brigade.errors import BrigadeError, StaleLease, StoreUnavailable
from brigade.machine import State
from brigade.model import Ack, Message, Receipt, Settlement
from brigade.stores import Outgoing, Settled, Store

__all__ = ["acks_last", "claim_race", "stale_tokens", "wake_up"]

PATIENCE = 20.0
TWICE = "two consumers may hold one message: never run queues on this store"


async def claim_race(lab: Lab) -> Finding:
    """Many claimers, one message."""
    queue, rounds, claimers = await lab.open_queue(), lab.scale(3, 5), lab.scale(20, 100)
    for turn in range(rounds):
        await _enqueue(lab, queue, f"race {turn}")
        won: list[Message] = []
        end = lab.monotonic() + PATIENCE

        async def one(connection: Connection, won: list[Message] = won, end: float = end) -> None:
            store, first = connection.store, True
            while first or (not won and lab.monotonic() < end):
                first = False
                won += await _once(store, queue)
                if not won:
                    await store.wait(queue, 0.2)

        answers = await lab.together([one] * claimers)
        errors = [answer for answer in answers if isinstance(answer, BrigadeError)]
        if len(won) > 1:
            return fail(f"round {turn + 1}: {len(won)} of {claimers} claimers won the same message", TWICE)
        if not won:
            seen = f"round {turn + 1}: nobody won within {PATIENCE:.0f} s"
            return fail(f"{seen}: {errors[0]}" if errors else seen, "nothing can be claimed on this store")
        answer = await _settle(lab, 0, queue, [Ack(message) for message in won])
        if isinstance(answer[0], StaleLease):
            return fail(f"round {turn + 1}: the winner could not ack", TWICE)
    return ok(f"{rounds} rounds of {claimers} claimers for one message: one winner each")


async def stale_tokens(lab: Lab) -> Finding:
    """A holder whose lease ran out and was taken over."""
    queue = await lab.open_queue()
    await _enqueue(lab, queue, "stale")
    (late,) = await _claim(lab, 0, queue, visibility=0.2)
    (current,) = await _claim(lab, 1, queue, visibility=60)
    if current.lease.version <= late.lease.version:
        return fail("a later lease has no higher version", "fencing tokens don't fence on this store")
    (answer,) = await _settle(lab, 0, queue, [Ack(late)])
    if not isinstance(answer, StaleLease):
        return fail("a holder that had been overtaken could ack", TWICE)
    (answer,) = await _settle(lab, 1, queue, [Ack(current)])
    if isinstance(answer, StaleLease):
        return fail("the current holder could not ack", "work is done again and again on this store")
    return ok("the old token was refused, the current one counted")


async def acks_last(lab: Lab) -> Finding:
    """An ack, as other connections see it."""
    queue = await lab.open_queue()
    receipts = [await _enqueue(lab, queue, f"ack {turn}") for turn in range(5)]
    messages: list[Message] = []
    while len(messages) < len(receipts):
        messages += await _claim(lab, 0, queue, visibility=60, limit=5)
    await _settle(lab, 0, queue, [Ack(message) for message in messages])
    for number, receipt in enumerate(receipts, start=1):
        store = lab.connection(number).store
        info = await lab.connection(number).run(lambda store=store, one=receipt.id: store.get(queue, one))
        if info.state is not State.SUCCEEDED:
            return fail(f"a message that was acked is {info.state.value} elsewhere", "acked messages may come back")
        if await lab.connection(number).run(lambda store=store: _once(store, queue)):
            return fail("a message that was acked was handed out again", "acked messages may come back")
    return ok(f"{len(receipts)} messages acked, and seen so on other connections")


async def wake_up(lab: Lab) -> Finding:
    """How soon a waiting claim gets what another connection enqueues."""
    queue, taken = await lab.open_queue(), list[float]()
    for turn in range(lab.scale(3, 7)):
        waiting = lab.connection(1).submit(lambda: _claiming(lab, lab.connection(1), queue, 60, 1, PATIENCE))
        await lab.connection(1).run(_nothing)
        started = lab.monotonic()
        await _enqueue(lab, queue, f"wake {turn}", by=2)
        messages = await asyncio.wrap_future(waiting)
        taken.append((lab.monotonic() - started) * 1000)
        await _settle(lab, 1, queue, [Ack(message) for message in messages])
    said = f"{quantile(taken, 0.5):.0f} ms, 95 in 100 within {quantile(taken, 0.95):.0f} ms"
    if quantile(taken, 0.5) > 10_000:
        return warn(said, "consumers learn late of new work")
    return ok(said)


async def _nothing() -> None:
    """Lets a connection begin what was submitted before."""


async def _enqueue(lab: Lab, queue: str, text: str, by: int = 0) -> Receipt:
    store = lab.connection(by).store
    message = Outgoing(text.encode(), "text/plain")
    return (await lab.connection(by).run(lambda: store.enqueue(queue, [message])))[0]


async def _claim(lab: Lab, by: int, queue: str, *, visibility: float, limit: int = 1) -> list[Message]:
    connection = lab.connection(by)
    return await connection.run(lambda: _claiming(lab, connection, queue, visibility, limit, 0.2))


async def _once(store: Store, queue: str, visibility: float = 60, limit: int = 1) -> list[Message]:
    """What one claim brings. It counts once it is loaded: who comes late may hold a grant of what is over."""
    grants = await store.claim(queue, limit=limit, owner="doctor", visibility=visibility)
    return await store.load(grants) if grants else []


async def _claiming(
    lab: Lab, connection: Connection, queue: str, visibility: float, limit: int, wait: float
) -> list[Message]:
    """The next messages, which must come soon; looks at the latest every `wait` seconds."""
    store, end = connection.store, lab.monotonic() + PATIENCE
    while lab.monotonic() < end:
        if messages := await _once(store, queue, visibility, limit):
            return messages
        await store.wait(queue, min(wait, max(0.01, end - lab.monotonic())))
    raise StoreUnavailable(f"a message that was enqueued could not be claimed within {PATIENCE:.0f} s")


async def _settle(lab: Lab, by: int, queue: str, settlements: Sequence[Settlement]) -> list[Settled | BrigadeError]:
    store = lab.connection(by).store
    return await lab.connection(by).run(lambda: store.settle(queue, settlements))
