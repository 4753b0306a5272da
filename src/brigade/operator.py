"""A queue as its operator sees it: browse messages, see attempts and leases, and decide over single messages.

operator = Operator(await hub.queue("tasks"))
page = await operator.browse(state="in_flight", older_than=600)
await operator.take_back([message.id for message in page.messages])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from brigade.checks import check_ids, check_limit, seconds
from brigade.clock import to_datetime
from brigade.errors import ConfigError
from brigade.model import MessageInfo
from brigade.queue import AsyncQueue
from brigade.stores.operating import Action, OperatedStore, Shown, Sought, shown_state
from brigade.survey import Day, GroupInfo, Held, Page, Story, Tail

__all__ = ["MOST_AT_ONCE", "Operator", "Shown", "shown_state"]

MOST_AT_ONCE = 1000
LOOK_AT = 5000


class Operator:
    """What an operator can do with a queue. Decisions need no lease; they are fenced like everything else."""

    def __init__(self, queue: AsyncQueue) -> None:
        store = queue.hub.store
        if not isinstance(store, OperatedStore):
            raise ConfigError("this store can't be operated from here; connect to what the server itself connects to")
        self._store = store
        self._queue = queue

    async def browse(
        self,
        *,
        state: Shown = "all",
        older_than: float = 0.0,
        attempts: int = 0,
        text: str = "",
        match: Callable[[MessageInfo], bool] | None = None,
        limit: int = 50,
        after: str | None = None,
        look_at: int = LOOK_AT,
    ) -> Page:
        """Messages that wait or are in flight: by state, age in seconds, attempts made, and text in id or payload.

        `match` narrows further. A page costs a bounded number of requests: it ends after `limit` matches, or when
        about `look_at` messages were looked at.
        """
        if state not in ("all", "ready", "delayed", "in_flight"):
            raise ConfigError(f"state is {state!r}; use all, ready, delayed or in_flight")
        check_limit(limit, MOST_AT_ONCE)
        now = self._queue.hub.clock.now()
        newest = now - round(seconds(older_than, "older_than") * 1000)
        sought = Sought(state, now, newest, attempts, text, match)
        return await self._store.browse(
            self._queue.name, sought, limit=limit, most=look_at, after=after, held=state == "in_flight"
        )

    async def story(self, id: str) -> Story:
        """A message in whatever state, with every attempt at it."""
        return await self._store.story(self._queue.name, id)

    async def leases(self, limit: int = 10_000) -> list[Held]:
        """Who holds what."""
        return await self._store.leases(self._queue.name, limit)

    async def groups(self, limit: int = 100) -> list[GroupInfo]:
        """Groups that have messages, the longest first, and how many; of a strict queue, its one lane."""
        return await self._store.groups(self._queue.name, limit)

    async def discard(self, ids: Iterable[str]) -> int:
        """Drop messages that wait, and parked failures; returns how many. What is in flight stays."""
        return await self._override(ids, "discard")

    async def retry_now(self, ids: Iterable[str]) -> int:
        """Make messages due that wait for a retry, and bring parked failures and dead letters back; returns how many.

        In a bucket a message that was enqueued with a delay and never claimed keeps its time.
        """
        given = list(check_ids(ids) or ())
        hastened = await self._override(given, "hasten")
        return hastened + (await self._queue.redrive(given) if hastened < len(given) else 0)

    async def take_back(self, ids: Iterable[str]) -> int:
        """End leases: the messages wait again, the attempts don't count, and their holders' tokens are stale."""
        return await self._override(ids, "take_back")

    async def tail(self, after: str | None = None, *, since: float = 300.0, limit: int = 2000) -> Tail:
        """What ended after an earlier tail, or in the last `since` seconds."""
        since_ms = self._queue.hub.clock.now() - round(since * 1000)
        return await self._store.tail(self._queue.name, after, since_ms=since_ms, limit=limit)

    async def outcomes(self, days: int = 7, *, sample: int = 1000) -> list[Day]:
        """How messages ended on each of the last days, oldest first."""
        check_limit(days, 400, "days")
        today = to_datetime(self._queue.hub.clock.now())
        dates = [(today - timedelta(days=back)).strftime("%Y-%m-%d") for back in reversed(range(days))]
        return await self._store.outcomes(self._queue.name, dates, sample)

    async def _override(self, ids: Iterable[str], action: Action) -> int:
        given: Sequence[str] = list(check_ids(ids) or ())
        if len(given) > MOST_AT_ONCE:
            raise ConfigError(f"{len(given)} ids are too many at once; give up to {MOST_AT_ONCE}")
        return await self._store.override(self._queue.name, given, action) if given else 0
