"""What an operator sees of a queue: pages of messages, the attempts at one, who holds what, and what has ended."""

from __future__ import annotations

import msgspec

from brigade.model import MessageInfo

__all__ = ["Attempt", "Day", "Ended", "GroupInfo", "Held", "Page", "Story", "Tail", "Upkeep"]


class Attempt(msgspec.Struct, frozen=True):
    """One lease of a message. `how` is acked, nacked, released or expired; None while it lasts."""

    version: int
    owner: str
    claimed_at_ms: int
    ended_at_ms: int | None = None
    how: str | None = None
    error: str | None = None


class Story(msgspec.Struct, frozen=True):
    """A message and every lease that is known of it, oldest first."""

    message: MessageInfo
    attempts: list[Attempt]


class Page(msgspec.Struct, frozen=True):
    """Messages that were asked for. `looked` is how many were looked at; `after` leads to the next page, if any."""

    messages: list[MessageInfo]
    after: str | None = None
    looked: int = 0


class Held(msgspec.Struct, frozen=True):
    """A message in flight: who holds it since when, and until when if nothing more is heard."""

    ref: str
    owner: str
    version: int
    claimed_at_ms: int
    expires_at_ms: int
    attempt: int


class GroupInfo(msgspec.Struct, frozen=True):
    """A group, or the one lane of a strict queue (None): how many of its messages wait, and who holds the head."""

    name: str | None
    waiting: int
    owner: str | None = None


class Ended(msgspec.Struct, frozen=True):
    """A message that has ended, as history tells it."""

    id: str
    ref: str
    outcome: str
    enqueued_at_ms: int
    due_at_ms: int
    finished_at_ms: int
    attempts: list[Attempt]
    error: str | None = None

    @property
    def waited(self) -> float | None:
        """Seconds from when it was due until somebody first held it."""
        if not self.attempts:
            return None
        return max(0, self.attempts[0].claimed_at_ms - max(self.enqueued_at_ms, self.due_at_ms)) / 1000

    @property
    def ran(self) -> float | None:
        """Seconds that its last lease lasted."""
        if not self.attempts:
            return None
        last = self.attempts[-1]
        return max(0, (last.ended_at_ms or self.finished_at_ms) - last.claimed_at_ms) / 1000


class Tail(msgspec.Struct, frozen=True):
    """What has ended since; `after` goes on from there."""

    ended: list[Ended]
    after: str


class Day(msgspec.Struct, frozen=True):
    """How many messages ended how on one day (UTC), and the newest of them."""

    date: str
    processed: int
    failed: int
    dead_lettered: int
    sample: list[Ended]


class Upkeep(msgspec.Struct, frozen=True):
    """What one process did to its store: writes that lost to somebody else's, and how long ago it swept each queue."""

    conflicts: int
    swept: dict[str, float]
