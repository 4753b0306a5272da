"""What was answered lately, by the key of the request: a request that is repeated is carried out once.

A client whose connection broke can't know whether its request was carried out. It repeats it under the same key and
gets the same answer. Memory is bounded by time and size; a retry that may have been forgotten is told so.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from brigade.clock import Clock
from brigade.stores.remote.faults import OutcomeUnknown

__all__ = ["Answer", "Answers", "Kept"]

KEEP = 60.0
MOST_BYTES = 64 * 1024 * 1024
OVERHEAD = 500


@dataclass(slots=True)
class Answer:
    """A finished answer. `undo` gives back what it handed out, if its client never gets it."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict[str, str])
    undo: Callable[[], None] | None = None

    @property
    def lasting(self) -> bool:
        """Whether a retry would be answered the same."""
        return self.status < 500 and self.status != 429

    def take_back(self) -> None:
        """Nobody gets it."""
        undo, self.undo = self.undo, None
        if undo is not None:
            undo()


@dataclass(slots=True, eq=False)
class Kept:
    """A request that is under way or was answered, and how many connections wait for the answer."""

    key: str
    task: asyncio.Task[Answer]
    at: float
    attached: int = 0
    size: int = 0


class Answers:
    """Requests under way and answers given, by key."""

    def __init__(self, name: str, clock: Clock, *, keep: float = KEEP, most_bytes: int = MOST_BYTES) -> None:
        self._name = name
        self._clock = clock
        self._keep = keep
        self._most = most_bytes
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._bytes = 0
        self._forgot_at = float("-inf")

    def __len__(self) -> int:
        return len(self._kept)

    def unsure(self, key: str | None, retry_of: str | None) -> bool:
        """Whether the first try of a request may have been carried out where or when nobody remembers it."""
        if retry_of is None or (key is not None and key in self._kept):
            return False
        return retry_of != self._name or self._clock.monotonic() - self._forgot_at < self._keep

    def check_retry(self, key: str | None, retry_of: str | None) -> None:
        """Refuse to repeat what may have been done where or when nobody remembers it."""
        if self.unsure(key, retry_of):
            raise OutcomeUnknown(
                "the first try of this request may have been carried out, but this server doesn't know; "
                "look before you repeat it, or enqueue with an id of your own, which may be repeated safely"
            )

    def attach(self, key: str, work: Callable[[], Awaitable[Answer]]) -> Kept:
        """The request under this key: one that is under way or was answered, or a new one."""
        self._forget_old()
        kept = self._kept.get(key)
        if kept is None:
            task = asyncio.ensure_future(work())
            kept = self._kept[key] = Kept(key, task, self._clock.monotonic())
            task.add_done_callback(lambda _, one=kept: self._done(one))
        kept.attached += 1
        return kept

    def detach(self, kept: Kept) -> None:
        """A connection is gone. With the last one what it asked for is called off, or undone."""
        kept.attached -= 1
        if kept.attached <= 0:
            self.call_off(kept)

    def abandon(self, key: str) -> bool:
        """The client says that it will not read the answer."""
        kept = self._kept.get(key)
        if kept is None:
            return False
        self.call_off(kept)
        return True

    def call_off(self, kept: Kept) -> None:
        self._drop(kept)
        if not kept.task.done():
            kept.task.cancel()
        elif not kept.task.cancelled() and kept.task.exception() is None:
            kept.task.result().take_back()

    async def once(self, key: str | None, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Carry out, or repeat the answer of, a request that runs to its end whether or not anybody waits.

        One without a key can't be repeated, and nobody ends it before: it needs no task of its own.
        """
        return await (work() if key is None else asyncio.shield(self.attach(key, work).task))

    def _done(self, kept: Kept) -> None:
        if kept.task.cancelled() or kept.task.exception() is not None or not kept.task.result().lasting:
            self._drop(kept)
        elif self._kept.get(kept.key) is kept:
            kept.size = len(kept.task.result().body) + OVERHEAD
            self._bytes += kept.size
            self._forget_old()

    def _drop(self, kept: Kept) -> None:
        if self._kept.get(kept.key) is kept:
            del self._kept[kept.key]
            self._bytes -= kept.size

    def _forget_old(self) -> None:
        now = self._clock.monotonic()
        for kept in list(self._kept.values()):
            full = self._bytes > self._most
            if not full and now - kept.at < self._keep:
                break
            if kept.task.done():
                if now - kept.at < self._keep:
                    self._forgot_at = now
                self._drop(kept)
