"""Between what users hold and what the bucket stores: messages, entries and settlements."""

from __future__ import annotations

import msgspec

from brigade.clock import to_ms
from brigade.model import Ack, Extend, Lease, Message, Nack, Settlement
from brigade.policy import QueuePolicy
from brigade.stores import Outgoing
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.load import Loaded
from brigade.stores.bucket.settle import Change
from brigade.stores.bucket.steps import Env
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import Entry, Ledger

__all__ = ["SettleGroup", "again_with", "entry_of", "first_message", "messages_of", "new_entry", "to_change"]


class SettleGroup:
    """The settlements of one segment; acks under one token are one change."""

    def __init__(self, name: SegmentName) -> None:
        self.name = name
        self.changes: list[Change] = []
        self.positions: list[list[int]] = []
        self._acks: dict[str, tuple[list[int], list[int]]] = {}

    def ack(self, token: str, version: int, place: int, position: int) -> None:
        known = self._acks.get(token)
        if known is None:
            known = self._acks[token] = ([], [])
            self.changes.append(Change("ack", known[0], token, version))
            self.positions.append(known[1])
        known[0].append(place)
        known[1].append(position)

    def add(self, change: Change, position: int) -> None:
        self.changes.append(change)
        self.positions.append([position])


def to_change(env: Env, policy: QueuePolicy, settlement: Settlement, place: int, token: str, now: int) -> Change:
    """A settlement as the protocol takes it: with times instead of durations."""
    message = settlement.message
    version = message.lease.version
    if isinstance(settlement, Ack):
        result = None if settlement.result is None else msgspec.json.encode(settlement.result)
        return Change("ack", [place], token, version, result=result)
    if isinstance(settlement, Extend):
        length = policy.visibility_timeout if settlement.seconds is None else settlement.seconds
        return Change("extend", [place], token, version, now + to_ms(length))
    if isinstance(settlement, Nack):
        wait = settlement.delay
        if wait is None and settlement.penalize:
            wait = policy.backoff.delay(max(message.attempt - 1, 0), env.ids.uniform)
        kind = "nack" if settlement.penalize or settlement.reject else "release"
        due = now + to_ms(wait or 0.0)
        return Change(kind, [place], token, version, due, settlement.error, settlement.reject)
    return Change("release", [place], token, version, now + to_ms(settlement.delay))


def messages_of(queue: str, loaded: Loaded) -> list[Message]:
    """The messages of a loaded grant, each with its lease."""
    grant, segment = loaded.grant, loaded.grant.segment
    token, version, owner, expires = grant.token, grant.version, grant.owner, grant.expires_at_ms
    messages: list[Message] = []
    for place, attempt, limit, entry in zip(
        grant.members, grant.attempts, grant.max_attempts, loaded.entries, strict=True
    ):
        ref = f"{segment}-{place}"
        messages.append(
            Message(
                entry.own_id or ref,
                queue,
                entry.payload,
                entry.content_type,
                entry.size,
                entry.priority,
                attempt,
                limit,
                entry.correlation or entry.own_id or ref,
                entry.attributes or {},
                entry.group,
                entry.enqueued,
                Lease(f"{token}.{place}", version, owner, expires),
                entry.failure,
                ref,
                grant.claimed_at_ms,
                entry.checksum,
            )
        )
    return messages


def first_message(view: QueueView, ref: str, ledger: Ledger, entry: Entry) -> Message:
    """The only message of a segment, leased for the first time."""
    (row,) = ledger.grants
    return Message(
        entry.own_id or ref,
        view.keys.queue,
        entry.payload,
        entry.content_type,
        entry.size,
        entry.priority,
        1,
        view.policy.failure.max_attempts,
        entry.correlation or entry.own_id or ref,
        entry.attributes or {},
        entry.group,
        entry.enqueued,
        Lease(f"{row.token}.0", row.version, row.owner, row.expires),
        entry.failure,
        ref,
        row.claimed,
        entry.checksum,
    )


def new_entry(message: Outgoing, payload: bytes | None, size: int, now: int) -> Entry:
    """A message as it is stored for the first time."""
    return Entry(
        payload,
        size,
        now,
        message.content_type,
        message.correlation_id,
        message.attributes,
        message.group,
        now + to_ms(message.delay) if message.delay else 0,
        None if message.ttl is None else to_ms(message.ttl),
        message.max_attempts,
        message.id,
        None,
        message.priority,
    )


def entry_of(message: Message) -> Entry:
    """A claimed message as it is stored again."""
    return Entry(
        message.body,
        message.size,
        message.enqueued_at_ms,
        message.content_type,
        message.correlation_id,
        dict(message.attributes) or None,
        message.group,
        failure=message.failure,
        priority=message.priority,
        checksum=message.checksum,
    )


def again_with(entry: Entry, priority: int, now: int) -> Outgoing:
    """A stored message on its way in once more, with another priority."""
    return Outgoing(
        entry.payload or b"",
        entry.content_type,
        priority,
        max(0, entry.due - now) / 1000,
        ttl=None if entry.ttl is None else entry.ttl / 1000,
        max_attempts=entry.max_attempts,
        attributes=entry.attributes,
        correlation_id=entry.correlation,
    )
