"""Ack, nack, extend and release: one at a time, or mixed in a batch."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal

from msgspec.structs import replace

from brigade.errors import BrigadeError, StaleLease
from brigade.machine import State
from brigade.model import Ack, Extend, Message, Nack, Release, Settlement
from brigade.server.answers import Answer
from brigade.server.call import Call, InvalidRequest, answer, failed
from brigade.server.service import Service
from brigade.stores import Settled as StoreSettled
from brigade.stores.remote.faults import error_of, fault_of
from brigade.stores.remote.wire import Answered, Settle, SettleBatch, SettleBody, Settled

__all__ = ["ack", "acking", "extend", "nack", "release", "settle"]

Op = Literal["ack", "nack", "extend", "release"]
_COMMON = ("result", "error", "delay", "intent", "reject", "seconds")
_PLAIN = SettleBody(id="", token="")


async def ack(service: Service, call: Call, wanted: Settle) -> Answer:
    return await _alike(service, call, wanted, "ack")


async def nack(service: Service, call: Call, wanted: Settle) -> Answer:
    return await _alike(service, call, wanted, "nack")


async def extend(service: Service, call: Call, wanted: Settle) -> Answer:
    return await _alike(service, call, wanted, "extend")


async def release(service: Service, call: Call, wanted: Settle) -> Answer:
    return await _alike(service, call, wanted, "release")


async def settle(service: Service, call: Call, wanted: SettleBatch) -> Answer:
    """A mixed batch: one result each, in order; a refusal is a result."""
    return await _batch(service, call, wanted.queue, wanted.settlements)


async def _alike(service: Service, call: Call, wanted: Settle, op: Op) -> Answer:
    """One message, or many in the same way."""
    name = wanted.queue
    assert name is not None
    if wanted.settlements is None:
        return await _one(service, call, name, _body(wanted, op))
    if wanted.id is not None or wanted.token is not None:
        raise InvalidRequest("settlements is given beside a message; use either id and token or settlements", "id")
    common = {field: value for field in _COMMON if (value := getattr(wanted, field)) != getattr(_PLAIN, field)}
    bodies = [replace(body, op=_op(body.op, op), **_without(common, body)) for body in wanted.settlements]
    return await _batch(service, call, name, bodies)


def _without(common: dict[str, Any], body: SettleBody) -> dict[str, Any]:
    """What is said for all, where this one doesn't say otherwise."""
    return {field: value for field, value in common.items() if getattr(body, field) == getattr(_PLAIN, field)}


def _op(given: str | None, op: Op) -> Op:
    if given not in (None, op):
        raise InvalidRequest(f"op is {given!r}, but this is {op}; leave it out", "op")
    return op


def _body(wanted: Settle, op: Op) -> SettleBody:
    if wanted.id is None or wanted.token is None:
        field = "id" if wanted.id is None else "token"
        raise InvalidRequest(f"{field} is missing; settle with id, ref and token as they were dequeued", field)
    known: dict[str, Any] = {field: getattr(wanted, field) for field in SettleBody.__struct_fields__}
    known["op"] = _op(wanted.op, op)
    return SettleBody(**known)


async def _batch(service: Service, call: Call, name: str, bodies: Sequence[SettleBody]) -> Answer:
    if not 1 <= len(bodies) <= service.limits.most_messages:
        raise InvalidRequest(
            f"settlements has {len(bodies)} settlements; send 1 to {service.limits.most_messages} at a time",
            "settlements",
        )
    for body in bodies:
        if body.queue not in (None, name):
            raise InvalidRequest("settlements names another queue; settle each queue by itself", "queue")
    settlements = [_settlement(name, body) for body in bodies]
    again = service.answers.unsure(call.key, call.retry_of)

    async def work() -> Answer:
        try:
            return answer(Answered(await _settle(service, name, bodies, settlements, again=again)))
        except Exception as error:
            return failed(error, call.correlation)

    return await service.answers.once(call.key, work)


async def _one(service: Service, call: Call, name: str, body: SettleBody) -> Answer:
    settling = _settling(service, call, name, body)

    async def work() -> Answer:
        try:
            return answer(await settling(), correlation=body.correlation_id)
        except Exception as error:
            return failed(error, call.correlation)

    return await service.answers.once(call.key, work)


def acking(service: Service, call: Call, name: str, body: SettleBody) -> Callable[[], Coroutine[Any, Any, Settled]]:
    """The ack that comes before what else a request asks for: checked now, and carried out when it is called.

    Raises what it is refused with.
    """
    if body.queue not in (None, name):
        raise InvalidRequest("ack names another queue; ack a message of the queue that is dequeued from", "ack")
    return _settling(service, call, name, replace(body, op=_op(body.op, "ack")))


def _settling(service: Service, call: Call, name: str, body: SettleBody) -> Callable[[], Coroutine[Any, Any, Settled]]:
    """One settlement: checked now, and carried out when it is called. Raises what it is refused with."""
    settlement, again = _settlement(name, body), service.answers.unsure(call.key, call.retry_of)

    async def work() -> Settled:
        (told,) = await _settle(service, name, [body], [settlement], again=again)
        if told.error is not None:
            raise error_of(told.error)
        return told

    return work


async def _settle(
    service: Service, name: str, bodies: Sequence[SettleBody], settlements: Sequence[Settlement], *, again: bool
) -> list[Settled]:
    queue = await service.queue(name)
    answers = await queue.settle_fully(settlements, again=again)
    _wake(service, name, answers)
    for body, one in zip(bodies, answers, strict=True):
        if isinstance(one, StoreSettled | StaleLease):
            lease = one.lease if isinstance(one, StoreSettled) else None
            service.subscriptions.settled(body.token, None if lease is None else lease.expires_at_ms)
    return [_told(body, one) for body, one in zip(bodies, answers, strict=True)]


def _wake(service: Service, name: str, answers: Sequence[StoreSettled | BrigadeError]) -> None:
    """What is ready again is news to whoever waits, now if it is due now."""
    now = service.hub.clock.now()
    if any(isinstance(one, StoreSettled) and one.state is State.READY and one.due_at_ms <= now for one in answers):
        service.dispatcher.news(name)


def _settlement(queue: str, body: SettleBody) -> Settlement:
    message, op = _held(queue, body), body.op
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
    return Message.held(
        queue=queue,
        id=body.id,
        ref=body.ref or body.id,
        token=body.token,
        version=body.version,
        owner=body.owner,
        attempt=body.attempt,
        max_attempts=body.max_attempts,
        correlation_id=body.correlation_id,
        claimed_at_ms=body.claimed_at_ms,
    )


def _told(body: SettleBody, answered: StoreSettled | BrigadeError) -> Settled:
    if isinstance(answered, BrigadeError):
        return Settled(error=fault_of(answered)[1])
    return Settled(
        state=answered.state,
        lease=answered.lease,
        attempts=answered.attempts,
        max_attempts=answered.max_attempts,
        due_at_ms=answered.due_at_ms,
        correlation_id=body.correlation_id,
    )
