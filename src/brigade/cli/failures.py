"""The failures of a queue, wherever they lie: parked in it, in its dead-letter queue, or in it as dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from brigade.cli.show import data_of, failure_facts
from brigade.errors import QueueNotFound
from brigade.model import Ack, FailedMessage, FailureInfo, Message, MessageInfo, Release
from brigade.sync import Hub, Queue

__all__ = ["MOST", "Failures", "Found"]

MOST = 100_000
SAMPLE = 100
BATCH = 1000
HOLD = 120.0


class Found(msgspec.Struct, frozen=True):
    """One failure, and the queue that it lies in. `message` has its payload."""

    failure: FailureInfo
    lies_in: str
    message: FailedMessage | MessageInfo

    @property
    def id(self) -> str:
        """The id that the message had where it failed."""
        return self.failure.id

    @property
    def parked(self) -> bool:
        return isinstance(self.message, FailedMessage)

    def facts(self) -> dict[str, Any]:
        """All that is known of it, as JSON values."""
        message = self.message
        known = failure_facts(self.failure)
        return {
            "id": known.pop("id"),
            "queue": known.pop("queue"),
            "lies_in": self.lies_in,
            "letter_id": None if self.parked else message.id,
            **known,
            "priority": message.priority,
            "correlation_id": message.correlation_id,
            "group": message.group,
            "attributes": dict(message.attributes),
            "content_type": message.content_type,
            "size": message.size,
            "data": data_of(message),
        }


class Failures:
    """What failed in a queue. The queue may be where messages fail, or a dead-letter queue."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.queue = hub.queue(name, create=False)
        self.name = name
        self.letters = self._opened(hub, self.queue.policy.failure.dead_letter_queue)

    @staticmethod
    def _opened(hub: Hub, name: str | None) -> Queue | None:
        """The dead-letter queue, unless there is none, or nothing has failed yet."""
        try:
            return None if name is None else hub.queue(name, create=False)
        except QueueNotFound:
            return None

    def find(self, limit: int = MOST) -> list[Found]:
        """Failures that nobody is working on, at most `limit`, oldest first."""
        found = [Found(one.failure, self.name, one) for one in self.queue.failed(limit)]
        found += self._letters(self.queue, None)
        if self.letters is not None:
            found += self._letters(self.letters, self.name)
        found.sort(key=lambda one: (one.failure.failed_at_ms, one.id))
        return found[:limit]

    def _letters(self, queue: Queue, origin: str | None) -> Iterator[Found]:
        """Dead letters in a queue. One that begins with a hundred messages of its own is no dead-letter queue."""
        sample = queue.peek(SAMPLE)
        if not any(info.failure for info in sample):
            return
        for info in sample if len(sample) < SAMPLE else queue.peek(MOST):
            if info.failure is not None and origin in (None, info.failure.queue):
                yield Found(info.failure, queue.name, info)

    def count(self) -> int:
        """About how many there are: a shared dead-letter queue is counted whole."""
        own = self.queue.stats()
        total = own.failed + (own.ready if self._holds_letters() else 0)
        return total + (0 if self.letters is None else self.letters.stats().ready)

    def _holds_letters(self) -> bool:
        return any(info.failure for info in self.queue.peek(SAMPLE))

    def redrive(self, ids: list[str] | None, limit: int) -> int:
        """One round: bring back up to `limit`; returns how many."""
        return self.queue.redrive(ids, limit=limit)

    def purge(self) -> int:
        """Drop parked failures and dead letters, and nothing else; returns how many."""
        dropped = self.queue.purge(failed_only=True)
        if self._holds_letters():
            dropped += _drop_letters(self.queue, None)
        if self.letters is not None:
            dropped += _drop_letters(self.letters, self.name)
        return dropped


def _drop_letters(queue: Queue, origin: str | None) -> int:
    """Claim all, ack the dead letters of one origin, or of any, and give the rest back."""
    dropped = 0
    kept: list[Message] = []
    try:
        while messages := queue.claim(BATCH, owner="brigade dlq purge", visibility=HOLD):
            mine = [one for one in messages if one.failure and origin in (None, one.failure.queue)]
            taken = {one.ref for one in mine}
            kept += [one for one in messages if one.ref not in taken]
            answers = queue.settle([Ack(one, {"purged": True}) for one in mine])
            dropped += sum(not isinstance(answer, Exception) for answer in answers)
    finally:
        queue.settle([Release(one) for one in kept])
    return dropped
