"""What one process remembers of one queue: policy, where to start looking, who waits. A hint, never the truth."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from brigade.model import Receipt
from brigade.policy import QueuePolicy
from brigade.stores.groupcommit import GroupCommit
from brigade.stores.postgres.claim import LOWEST, Outlook
from brigade.stores.postgres.enqueue import Draft
from brigade.stores.postgres.settle import Answer, Change
from brigade.stores.postgres.steps import Rows

__all__ = ["HeldQueue"]


class HeldQueue:
    """One queue, as one hub knows it."""

    def __init__(
        self,
        name: str,
        id: int,
        write: Callable[[HeldQueue, list[Draft]], Awaitable[Sequence[Receipt]]],
        settle: Callable[[HeldQueue, list[Change]], Awaitable[Sequence[Answer]]],
    ) -> None:
        self.name = name
        self.id = id
        self.policy = QueuePolicy()
        self.policy_at = 0.0
        self.sweep_at: float | None = None
        self.swept_at: float | None = None
        self.enqueues: GroupCommit[Draft, Receipt] = GroupCommit(lambda drafts: write(self, drafts))
        self.settles: GroupCommit[Change, Answer] = GroupCommit(lambda changes: settle(self, changes))
        self.outlook: Outlook | None = None
        self.looked_at = 0.0
        self.whole_at = 0.0
        self.low: list[int] = list(LOWEST)
        self.expects_until = 0.0
        self.idle_polls = 0
        self.news = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._alarm: asyncio.TimerHandle | None = None

    @property
    def lifo(self) -> bool:
        return self.policy.ordering == "lifo"

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def learn(self, rows: Rows, limit: int) -> None:
        """After a claim in order: below the first message of a priority there is none left, as far as we know."""
        if self.lifo or len(rows) < limit:
            return
        for row in rows:
            priority, due = row[1], row[2]
            if due > self.low[priority]:
                self.low[priority] = due

    def forget(self) -> None:
        """Something came back: look from the beginning again."""
        self.low = list(LOWEST)

    def wake(self) -> None:
        """There is news. One of those who wait looks now; where nobody does, whoever comes next looks at once."""
        self.idle_polls = 0
        self._rouse()

    def wake_in(self, seconds: float) -> None:
        """Somebody looks then, whoever waits by that time: who found out may be gone. The earliest moment counts."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._alarm is not None:
            if self._alarm.when() <= at:
                return
            self._alarm.cancel()
        self._alarm = loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._rouse()

    def _rouse(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.news = True

    def retire(self) -> None:
        """This queue is no longer held. Whoever waits for it here would hear nothing more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self.wake_all()

    def wake_all(self) -> None:
        self.news, self.idle_polls = True, 0
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout: float) -> None:
        """Until somebody wakes us, or the timeout."""
        if self.news:
            self.news = False
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            # Not wait_for: before Python 3.12 it forgets a cancellation that comes together with the wake-up.
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return
        except asyncio.CancelledError:
            if not waiter.cancelled():
                self._rouse()
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
