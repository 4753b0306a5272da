"""What a PostgreSQL store keeps in this process: its connections, its queues, who is told, and who sweeps."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg

from brigade.clock import FOREVER, Clock, SystemClock, wall_ns
from brigade.errors import BrigadeError, ConfigError, QueueNotFound
from brigade.ids import Ids
from brigade.model import Message, Receipt
from brigade.policy import QueuePolicy
from brigade.stores import Failed, Pace
from brigade.stores.postgres import queues
from brigade.stores.postgres.claim import Won
from brigade.stores.postgres.enqueue import Draft
from brigade.stores.postgres.held import HeldQueue
from brigade.stores.postgres.link import Link, explained
from brigade.stores.postgres.listener import Listener
from brigade.stores.postgres.migrate import migrate, standing
from brigade.stores.postgres.partitions import tend_partitions
from brigade.stores.postgres.payloads import one
from brigade.stores.postgres.queries import Queries
from brigade.stores.postgres.settle import Answer, Change
from brigade.stores.postgres.steps import Ask, Rows, Steps
from brigade.stores.postgres.sweep import decide_all, sweep_leftovers

if TYPE_CHECKING:
    from brigade.crypto.fields import Fields

__all__ = ["PostgresProcess"]

log = logging.getLogger("brigade")
T = TypeVar("T")
POLICY_TTL = 30.0
SWEEP_EVERY = 300.0


class PostgresProcess(ABC):
    """Runs statements for one event loop, and remembers queues between them."""

    prompt = False

    def __init__(
        self,
        settings: dict[str, Any],
        *,
        schema: str = "brigade",
        pool_size: int = 4,
        install: bool = True,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self.schema = schema
        self.ids = ids or Ids()
        self._own_clock = SystemClock()
        self.clock: Clock = clock or self._own_clock
        self.pace = Pace()
        self.on_failure: Callable[[Failed], None] | None = None
        self._install = install
        self.link = Link(settings, Queries(schema), self.ids, size=pool_size)
        self._listener = Listener(self.link, self.channel, self._heard)
        self._queues: dict[str, HeldQueue] = {}
        self._claimed: OrderedDict[str, list[Message]] = OrderedDict()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._telling: set[int] = set()
        self._teller: asyncio.Task[None] | None = None
        self._closed = False
        self._fields: Fields | None = None

    def protect(self, fields: Fields) -> None:
        """Seal contents of messages from now on. Called before `open`."""
        self._fields = fields

    async def key_usage(self) -> Counter[str]:
        rows = await self.link.run(lambda _: one(Ask("key_usage")))
        return Counter({name: int(count) for name, count in rows})

    @property
    def channel(self) -> str:
        """Where news of this schema's queues is told."""
        return f"brigade_{self.schema}"

    async def open(self) -> None:
        """Connect, install or check the schema, and set the clock by the server's."""
        if self._fields is not None:
            self._fields.vault.unlock()
        conn = await self.link.connect()
        try:
            now = await standing(conn, self.schema)
            if now.pending:
                if not self._install:
                    raise ConfigError(
                        f"schema {self.schema!r} has version {now.version}, this program needs {now.newest}; "
                        "run `brigade migrate up`, or connect with install=true"
                    )
                await migrate(conn, self.schema)
            best = FOREVER
            for _ in range(3):
                before = wall_ns()
                rows = await self.link.feed(conn, one(Ask("clock")))
                after = wall_ns()
                if after - before < best:
                    best = after - before
                    self._own_clock.offset_ms = rows[0][0] - (before + after) // 2_000_000
        except psycopg.Error as error:
            raise explained(error) from None
        finally:
            await conn.close()
        await self.link.open()

    async def forget(self, queue: str) -> None:
        held = self._queues.get(queue)
        if held is not None:
            held.forget()
            held.policy_at = float("-inf")

    async def sweep(self, queue: str) -> dict[str, int]:
        held = await self._queue(queue)
        won = await self.link.run(lambda _: decide_all(queue, held.id, lifo=held.lifo), atomic=True)
        self._tell_failures(won)
        now = self.clock.now()
        orphans, expired = await self.link.run(lambda _: sweep_leftovers(held.id, held.policy, now))
        dropped = await tend_partitions(self.link, self.schema)
        held.swept_at = self.clock.monotonic()
        return {"finished": 0, "decided": len(won.failures), "orphans": orphans, "expired": expired + dropped}

    def requests(self) -> dict[str, int]:
        return dict(self.link.requests)

    async def close(self) -> None:
        self._closed = True
        if self._teller is not None:
            await asyncio.gather(self._teller, return_exceptions=True)
        await self._listener.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.link.close()
        for held in self._queues.values():
            held.retire()

    @abstractmethod
    async def _write(self, held: HeldQueue, drafts: list[Draft]) -> Sequence[Receipt]:
        """Write what callers of this process enqueued meanwhile."""

    @abstractmethod
    async def _settle(self, held: HeldQueue, changes: list[Change], *, again: bool = False) -> Sequence[Answer]:
        """Settle what callers of this process settled meanwhile."""

    def _back(self, queue_id: int) -> None:
        """Messages came back to a queue."""
        for held in self._queues.values():
            if held.id == queue_id:
                held.forget()
                held.wake()
        self._tell(queue_id)

    async def _run(self, steps: Steps[Rows]) -> Rows:
        """A single statement that may be repeated."""
        ask = next(steps)
        steps.close()
        assert isinstance(ask, Ask)
        return await self.link.run(lambda _: one(ask))

    async def _on(self, queue: str, work: Callable[[HeldQueue], Awaitable[T]]) -> T:
        """Work on a queue; where it was deleted and made again meanwhile, on the new one."""
        held = await self._queue(queue)
        try:
            return await work(held)
        except QueueNotFound:
            return await work(await self._anew(held))

    async def _anew(self, held: HeldQueue) -> HeldQueue:
        if self._queues.get(held.name) is held:
            self._queues.pop(held.name).retire()
        return await self._queue(held.name)

    async def _queue(self, name: str, *, refresh: bool = False) -> HeldQueue:
        held = self._queues.get(name)
        if held is not None and not (refresh and self.clock.monotonic() - held.policy_at > POLICY_TTL):
            return held
        id, policy = await self.link.run(lambda _: queues.load_queue(name, self._fields))
        return self._remember(name, id, policy)

    def _remember(self, name: str, id: int, policy: QueuePolicy) -> HeldQueue:
        held = self._queues.get(name)
        if held is None or held.id != id:
            if held is not None:
                held.retire()
            held = self._queues[name] = HeldQueue(name, id, self._write, self._settle)
        held.policy = policy
        held.policy_at = self.clock.monotonic()
        return held

    def _tell_failures(self, won: Won) -> None:
        for failure in won.failures if self.on_failure is not None else ():
            assert self.on_failure is not None
            self.on_failure(failure)
        for id in won.awaited:
            self._tell(id)

    def _heard(self, queue_id: int | None) -> None:
        """There is news in a queue; None: there may be some in any."""
        for held in self._queues.values():
            if queue_id is None:
                held.wake_all()
            elif held.id == queue_id:
                held.wake()

    def _tell(self, queue_id: int) -> None:
        """Tell other processes of news, soon: what arrives while one notification is on its way goes out as one."""
        self._telling.add(queue_id)
        if (self._teller is None or self._teller.done()) and not self._closed:
            self._teller = asyncio.get_running_loop().create_task(self._tell_all())

    async def _tell_all(self) -> None:
        while self._telling:
            id = self._telling.pop()
            params = {"channel": self.channel, "payload": str(id)}
            try:
                await self.link.run(lambda _, params=params: one(Ask("notify", params)))
            except BrigadeError as error:
                log.info("others could not be notified (%s); they will see it at their next poll", error)

    def _sweep_sometimes(self, held: HeldQueue) -> None:
        now = self.clock.monotonic()
        if held.sweep_at is None:
            held.sweep_at = now + SWEEP_EVERY * self.ids.uniform(0.2, 1.0)
        elif now >= held.sweep_at and not self._closed:
            held.sweep_at = now + SWEEP_EVERY * self.ids.uniform(0.8, 1.2)
            self._spawn(self._sweep_quietly(held.name))

    async def _sweep_quietly(self, queue: str) -> None:
        try:
            await self.sweep(queue)
        except BrigadeError as error:
            log.warning("sweep of queue %s stopped (%s); it is tried again later", queue, error)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
