"""Ack, nack, extend and release: one at a time, or mixed in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from brigade.errors import BrigadeError
from brigade.machine import State
from brigade.model import Ack, Extend, Message, Nack, Release, Settlement
from brigade.server.answers import Answer
from brigade.server.call import Call, InvalidRequest, answer, failed
from brigade.server.service import Service
from brigade.stores import Settled as StoreSettled
from brigade.stores.remote.faults import fault_of
from brigade.stores.remote.wire import Answered, SettleBatch, SettleBody, Settled

__all__ = ["ack", "extend", "nack", "release", "settle"]

Op = Literal["ack", "nack", "extend", "release"]


async def ack(service: Service, call: Call, body: SettleBody) -> Answer:
    return await _one(service, call, body, "ack")


async def nack(service: Service, call: Call, body: SettleBody) -> Answer:
    return await _one(service, call, body, "nack")


async def extend(service: Service, call: Call, body: SettleBody) -> Answer:
    return await _one(service, call, body, "extend")


async def release(service: Service, call: Call, body: SettleBody) -> Answer:
    return await _one(service, call, body, "release")


async def settle(service: Service, call: Call, wanted: SettleBatch) -> Answer:
    """A mixed batch: one result each, in order; a refusal is a result."""
    bodies = wanted.settlements
    if not 1 <= len(bodies) <= service.limits.most_messages:
        raise InvalidRequest(
            f"settlements has {len(bodies)} settlements; send 1 to {service.limits.most_messages} at a time",
            "settlements",
        )
    settlements = [_settlement(wanted.queue, body, body.op) for body in bodies]

    async def work() -> Answer:
        try:
            return answer(Answered(await _settle(service, wanted.queue, bodies, settlements)))
        except Exception as error:
            return failed(error, call.correlation)

    return await service.answers.once(call.key, work)


async def _one(service: Service, call: Call, body: SettleBody, op: Op) -> Answer:
    name = body.queue
    assert name is not None
    if body.op not in (None, op):
        raise InvalidRequest(f"op is {body.op!r}, but this is {op}; leave it out", "op")
    settlement = _settlement(name, body, op)

    async def work() -> Answer:
        try:
            queue = await service.queue(name)
            (answered,) = await queue.settle_fully([settlement])
            if isinstance(answered, BrigadeError):
                raise answered
        except Exception as error:
            return failed(error, call.correlation)
        _wake(service, name, [answered])
        return answer(_told(body, answered), correlation=body.correlation_id)

    return await service.answers.once(call.key, work)


async def _settle(
    service: Service, name: str, bodies: Sequence[SettleBody], settlements: Sequence[Settlement]
) -> list[Settled]:
    queue = await service.queue(name)
    answers = await queue.settle_fully(settlements)
    _wake(service, name, answers)
    return [_told(body, one) for body, one in zip(bodies, answers, strict=True)]


def _wake(service: Service, name: str, answers: Sequence[StoreSettled | BrigadeError]) -> None:
    """What is ready again is news to whoever waits, now if it is due now."""
    now = service.hub.clock.now()
    if any(isinstance(one, StoreSettled) and one.state is State.READY and one.due_at_ms <= now for one in answers):
        service.dispatcher.news(name)


def _settlement(queue: str, body: SettleBody, op: Op | None) -> Settlement:
    message = _held(queue, body)
    if op == "ack":
        return Ack(message, body.result)
    if op == "nack":
        return Nack(message, body.error, body.delay, body.intent == "failure", body.reject)
    if op == "extend":
        return Extend(message, body.seconds)
    if op == "release":
        return Release(message, body.delay or 0.0)
    raise InvalidRequest("op is missing; use ack, nack, extend or release", "op")


def _held(queue: str, body: SettleBody) -> Message:
    made = Message.held(
        queue=queue,
        id=body.id,
        ref=body.ref or body.id,
        token=body.token,
        version=body.version,
        owner=body.owner,
        attempt=body.attempt,
        max_attempts=body.max_attempts,
        correlation_id=body.correlation_id,
    )
    return replace(made, claimed_at_ms=body.claimed_at_ms)


def _told(body: SettleBody, answered: StoreSettled | BrigadeError) -> Settled:
    if isinstance(answered, BrigadeError):
        return Settled(error=fault_of(answered)[1])
    known = msgspec.structs.asdict(answered)
    return Settled(**known, correlation_id=body.correlation_id)
