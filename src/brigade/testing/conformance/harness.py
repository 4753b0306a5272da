"""What the tests stand on: a store under test, hubs that act as separate processes, and ways to wait for conditions."""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest

import brigade
from brigade import AsyncHub, AsyncQueue, Backoff, Event, Failure, Hub, Message, QueuePolicy

__all__ = [
    "AT_ONCE",
    "CAPABILITIES",
    "Harness",
    "at_once",
    "claim_all",
    "claim_one",
    "drain",
    "eventually",
    "listen",
    "passed",
    "values",
]

T = TypeVar("T")

CAPABILITIES = {
    "grants": "claiming and loading are two steps, possibly in two processes (Store.claim, Store.load)",
    "operator": "messages can be browsed and decided over one by one (OperatedStore)",
    "requests": "hub.requests() counts storage operations",
}
"""What a store may lack, by the name that `Harness(without=…)` takes."""

AT_ONCE = Backoff(base=0, maximum=0, jitter=None)
"""Retry without waiting."""

SHORT = 0.05
"""Seconds of a lease that a test wants to see run out."""

PATIENCE = 15.0
"""Seconds after which something that must happen soon counts as not happening."""


def at_once(mode: Any = "retry", max_retries: int = 3, letters: str | None = None) -> QueuePolicy:
    """A policy that retries without waiting, with the given failure routing."""
    return QueuePolicy(failure=Failure(mode, max_retries, letters), backoff=AT_ONCE)


class Harness:
    """One store under test. Every hub is a connection of its own, with memory of its own, as another process has."""

    def __init__(self, url: str, *, without: Iterable[str] = (), **options: Any) -> None:
        self.url = url
        self.options = options
        self._without = frozenset(without)
        if unknown := self._without - set(CAPABILITIES):
            raise AssertionError(f"there are no capabilities {sorted(unknown)}; see CAPABILITIES")
        self._hubs: list[AsyncHub] = []
        self._sync_hubs: list[Hub] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hub in self._hubs:
            await hub.close()
        for sync_hub in self._sync_hubs:
            await asyncio.to_thread(sync_hub.close)

    def needs(self, capability: str) -> None:
        """Skip the test on stores that cannot do this."""
        if capability in self._without:
            pytest.skip(f"this store lacks {capability!r}: {CAPABILITIES[capability]}")

    async def hub(self) -> AsyncHub:
        """A hub of its own: nothing is shared with other hubs but the store."""
        hub = brigade.connect_async(self.url, **self.options)
        self._hubs.append(hub)
        return await hub.open()

    def sync_hub(self) -> Hub:
        hub = brigade.connect(self.url, **self.options)
        self._sync_hubs.append(hub)
        return hub

    def name(self, hint: str = "queue") -> str:
        """A queue name that nobody has used."""
        return f"{hint}-{uuid.uuid4().hex[:12]}"

    async def queue(self, policy: QueuePolicy | None = None, *, hub: AsyncHub | None = None) -> AsyncQueue:
        """A new, empty queue."""
        return await (hub or await self.hub()).queue(self.name(), policy)

    async def elsewhere(self, queue: AsyncQueue) -> AsyncQueue:
        """The same queue as another process sees it."""
        return await (await self.hub()).queue(queue.name, create=False)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def passed(moment: int | Message) -> None:
    """Wait until a time by the store's clock, or the expiry of a message's lease, has passed."""
    target = moment if isinstance(moment, int) else moment.lease.expires_at_ms
    while (left := target - now_ms()) >= 0:  # noqa: ASYNC110 - time passes by itself
        await asyncio.sleep(left / 1000 + 0.002)


async def eventually(check: Callable[[], Awaitable[T] | T], *, within: float = PATIENCE) -> T:
    """The first true answer of `check`, asked again and again; its last failure where there is none in time."""
    end = time.monotonic() + within
    while True:
        try:
            found = check()
            answer: Any = await found if inspect.isawaitable(found) else found
            if answer or time.monotonic() > end:
                assert answer, f"it did not come true within {within:g} seconds"
                return answer
        except AssertionError:
            if time.monotonic() > end:
                raise
        await asyncio.sleep(0.02)


async def claim_one(queue: AsyncQueue, *, visibility: float | None = None, owner: str | None = None) -> Message:
    """The next message, which must be there or come soon."""
    messages = await queue.claim(1, wait=PATIENCE, visibility=visibility, owner=owner)
    assert len(messages) == 1, f"{queue.name} had nothing to claim"
    return messages[0]


async def claim_all(queue: AsyncQueue, count: int, *, visibility: float | None = None) -> list[Message]:
    """Exactly `count` messages, in the order in which they are handed out."""
    messages: list[Message] = []
    while len(messages) < count:
        more = await queue.claim(count - len(messages), wait=PATIENCE, visibility=visibility)
        assert more, f"{queue.name} gave {len(messages)} messages, not {count}"
        messages += more
    return messages


async def drain(queue: AsyncQueue, count: int, *, limit: int = 10) -> list[Message]:
    """Claim and ack until `count` messages are through; returns them in order of delivery."""
    done: list[Message] = []
    while len(done) < count:
        messages = await queue.claim(limit, wait=PATIENCE)
        assert messages, f"{queue.name} gave {len(done)} messages, not {count}"
        assert not [answer for answer in await queue.ack_many(messages) if isinstance(answer, Exception)]
        done += messages
    return done


def values(messages: Iterable[Any]) -> list[Any]:
    return [message.data for message in messages]


def listen(hub: AsyncHub | Hub, name: str = "*") -> list[Event]:
    """Everything that the hub tells from now on, in a list that grows."""
    heard: list[Event] = []
    hub.on(name, heard.append)
    return heard
