"""The port for operators: looking at single messages, and deciding over them without holding a lease."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

import msgspec

from brigade.machine import State
from brigade.model import MessageInfo
from brigade.survey import Day, GroupInfo, Held, Page, Story, Tail, Upkeep

__all__ = ["Action", "Match", "OperatedStore", "Shown", "Sought", "shown_state"]

Action = Literal["discard", "hasten", "take_back"]
Match = Callable[[MessageInfo], bool]
Shown = Literal["all", "ready", "delayed", "in_flight"]


class Sought(msgspec.Struct, frozen=True):
    """What an operator looks for: a match that is plain data but for `also`, so that a server can be told.

    `now_ms` is when they look, `newest_ms` when it was enqueued at the latest. `text` is in an id or the payload.
    """

    state: Shown = "all"
    now_ms: int = 0
    newest_ms: int | None = None
    attempts: int = 0
    text: str = ""
    also: Match | None = None

    def __call__(self, info: MessageInfo) -> bool:
        return (
            (self.state == "all" or self.state == shown_state(info, self.now_ms))
            and (self.newest_ms is None or info.enqueued_at_ms <= self.newest_ms)
            and info.attempts >= self.attempts
            and (not self.text or _has(info, self.text.encode("utf-8", "replace").lower()))
            and (self.also is None or self.also(info))
        )


def shown_state(info: MessageInfo, now: int) -> str:
    """A message's state in the words of `stats()`: what waits is ready or delayed."""
    if info.state is State.READY:
        return "delayed" if info.due_at_ms > now else "ready"
    return info.state.value


def _has(info: MessageInfo, wanted: bytes) -> bool:
    names = (info.id, info.ref, info.correlation_id, info.group or "", info.owner or "")
    if any(wanted in name.encode("utf-8", "replace").lower() for name in names):
        return True
    return wanted in (info.body or b"").lower()


@runtime_checkable
class OperatedStore(Protocol):
    """What a store adds for operators. Looking takes no lease and changes nothing."""

    async def browse(self, queue: str, match: Match, *, limit: int, most: int, after: str | None, held: bool) -> Page:
        """Messages that wait or are in flight and match, in the order of the store; `held`: only those in flight.

        Stops after `limit` matches, or when about `most` messages were looked at.
        """
        ...

    async def story(self, queue: str, message_id: str) -> Story:
        """A message in whatever state, and its leases. MessageNotFound as with `get`."""
        ...

    async def leases(self, queue: str, limit: int) -> list[Held]:
        """Who holds what, without reading messages."""
        ...

    async def groups(self, queue: str, limit: int) -> list[GroupInfo]:
        """Lanes that have messages, the longest first."""
        ...

    async def override(self, queue: str, ids: Sequence[str], action: Action) -> int:
        """Decide over messages by id; returns how many it was done to. What it doesn't fit is left alone.

        `discard` drops messages that wait and parked failures. `hasten` makes due what waits for a retry. `take_back`
        ends leases as a release does: the message waits again, the holder's token is stale.
        """
        ...

    async def tail(self, queue: str, after: str | None, *, since_ms: int, limit: int) -> Tail:
        """What ended after a tail's `after`, or since then, oldest first."""
        ...

    def upkeep(self) -> Upkeep:
        """What this process knows of its conflicts and sweeps."""
        ...

    async def outcomes(self, queue: str, days: Sequence[str], sample: int) -> list[Day]:
        """How messages ended on each of these days (YYYY-MM-DD, UTC), with up to `sample` of the newest."""
        ...
