"""What a queue tells of its messages: the events of an enqueue, a claim and a settlement, all of a batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brigade.clock import Clock
from brigade.errors import BrigadeError
from brigade.events import Event, Events
from brigade.machine import State
from brigade.model import Ack, Extend, Grant, Message, Receipt, Release, Settlement
from brigade.stores import Settled

__all__ = ["tell_claimed", "tell_enqueued", "tell_settled"]


def tell_enqueued(events: Events, queue: str, receipts: Sequence[Receipt]) -> None:
    if events.wanted("message-enqueued"):
        events.emit_all(
            [
                Event("message-enqueued", queue, receipt.id, {"correlation_id": receipt.correlation_id})
                for receipt in receipts
                if not receipt.duplicate
            ]
        )


def tell_claimed(events: Events, queue: str, messages: Sequence[Message], grants: Sequence[Grant]) -> None:
    if not events.wanted("message-claimed") and not events.wanted("message-recovered"):
        return
    recovered = {f"{grant.segment}-{place}" for grant in grants for place in grant.recovered}
    told: list[Event] = []
    for message in messages:
        common = _told_of(message)
        if message.ref in recovered:
            told.append(Event("message-recovered", queue, message.id, {"original_id": _original_id(message), **common}))
        waited = max(0, message.claimed_at_ms - message.enqueued_at_ms)
        told.append(Event("message-claimed", queue, message.id, {"waited": waited, **common}))
    events.emit_all(told)


def tell_settled(
    events: Events,
    queue: str,
    settlements: Sequence[Settlement],
    answers: Sequence[Settled | BrigadeError],
    *,
    clock: Clock,
    buries: bool,
) -> None:
    """`buries` says that this queue has another one for its dead letters."""
    outcomes = events.wanted("message-outcome")
    acks = outcomes or events.wanted("message-completed")
    if not acks and not events.wanted("message-retry") and not events.wanted("message-dead"):
        return
    told: list[Event] = []
    now = clock.now()
    for settlement, answer in zip(settlements, answers, strict=True):
        if isinstance(answer, BrigadeError) or isinstance(settlement, Extend | Release):
            continue
        message = settlement.message
        common = _told_of(message)
        fields: dict[str, Any] = {"duration": max(0, now - message.claimed_at_ms) if message.claimed_at_ms else None}
        if isinstance(settlement, Ack):
            if not acks:
                continue
            name, status = "message-completed", "processed"
            fields["result"] = settlement.result
        elif answer.state is State.READY:
            name, status = "message-retry", "retrying"
            fields["error"], fields["next_visible_at_ms"] = settlement.error, answer.due_at_ms
        else:
            name, status = "message-dead", "dead-lettered" if buries else "failed"
            fields["error"], fields["original_id"] = settlement.error, _original_id(message)
        fields.update(common)
        told.append(Event(name, queue, message.id, fields))
        if outcomes:
            told.append(Event("message-outcome", queue, message.id, {"status": status, **common}))
    events.emit_all(told)


def _told_of(message: Message) -> dict[str, Any]:
    """What every event about a claimed message says."""
    return {
        "worker_id": message.lease.owner,
        "attempt": message.attempt,
        "max_attempts": message.max_attempts,
        "correlation_id": message.correlation_id,
    }


def _original_id(message: Message) -> str:
    """The id that it was first enqueued under: of a dead letter, the one of the message that failed."""
    return message.id if message.failure is None else message.failure.id
