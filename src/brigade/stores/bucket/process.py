"""What a bucket store keeps in this process: its queues, their finishers and sweepers, and the clock."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from brigade.blobs import Blobs
from brigade.clock import Clock, SystemClock, to_ms
from brigade.errors import BrigadeError
from brigade.ids import Ids
from brigade.policy import QueuePolicy
from brigade.stores import Failed, Pace
from brigade.stores.bucket import admin
from brigade.stores.bucket.driver import Unfinished, perform, perform_now
from brigade.stores.bucket.finish import finish
from brigade.stores.bucket.held import HeldQueue
from brigade.stores.bucket.keys import QueueKeys, parse_message_ref
from brigade.stores.bucket.steps import Env, Proto
from brigade.stores.bucket.sweep import sweep
from brigade.stores.bucket.tokens import KnownTokens
from brigade.stores.bucket.view import QueueView

if TYPE_CHECKING:
    from brigade.crypto.fields import Fields

__all__ = ["BucketProcess"]

log = logging.getLogger("brigade")
T = TypeVar("T")
FINISH_LINGER = 0.5
FINISH_BATCH = 256
SWEEP_EVERY = 300.0
POLICY_TTL = 30.0


class BucketProcess:
    """Runs the protocol on blobs for one event loop, and finishes in the background what calls leave to be finished."""

    def __init__(self, blobs: Blobs, *, clock: Clock | None = None, ids: Ids | None = None) -> None:
        self._blobs = blobs
        self.env = Env(clock or SystemClock(), ids or Ids())
        self._queues: dict[str, HeldQueue] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._tokens: KnownTokens = {}
        self.pace = Pace()
        self.on_failure: Callable[[Failed], None] | None = None

    def protect(self, fields: Fields) -> None:
        """Seal everything from now on. Called before `open`."""
        from brigade.crypto.blobs import SealedBlobs

        self._blobs = SealedBlobs(self._blobs, fields.vault)
        self.env.fields = fields

    async def key_usage(self) -> Counter[str]:
        from brigade.crypto.usage import count_keys

        return await count_keys(self._blobs)

    @property
    def blobs(self) -> Blobs:
        """What the bucket stands on."""
        return self._blobs

    @property
    def prompt(self) -> bool:
        return self._blobs.prompt

    @property
    def clock(self) -> Clock:
        return self.env.clock

    @clock.setter
    def clock(self, clock: Clock) -> None:
        self.env.clock = clock

    async def open(self) -> None:
        await self._blobs.open(self.env.clock)

    async def run(self, proto: Proto[T]) -> T:
        """Carry out a protocol function, and say what it found damaged."""
        try:
            return await perform(proto, self._blobs)
        finally:
            self._tell_damage()

    def run_now(self, proto: Proto[T]) -> T | Unfinished[T]:
        """`run`, as far as storage answers at once; `finish` does the rest."""
        try:
            return perform_now(proto, self._blobs)
        finally:
            if self.env.damaged or self.env.unreadable:
                self._tell_damage()

    async def finish(self, begun: Unfinished[T]) -> T:
        try:
            return await perform(begun.proto, self._blobs, begun.step)
        finally:
            self._tell_damage()

    def _tell_damage(self) -> None:
        while self.env.damaged:
            log.error("%s", self.env.damaged.pop())
        while self.env.unreadable:
            log.error("passed over: %s", self.env.unreadable.pop())

    def _tell_failures(self, held: HeldQueue) -> None:
        """Tell of messages that failed while nobody held them."""
        decided, held.view.failures = held.view.failures, []
        if self.on_failure is None:
            return
        for one in decided:
            found = parse_message_ref(one.ref)
            known = held.view.entries.get(found[0]) if found else None
            entry = known.entries[found[1]] if found and known else None
            own_id, correlation = (entry.own_id, entry.correlation) if entry else (None, None)
            limit = (entry.max_attempts if entry else None) or held.view.policy.failure.max_attempts
            origin = entry.failure.id if entry and entry.failure else None
            self.on_failure(
                Failed(
                    queue=held.view.keys.queue,
                    id=own_id or one.ref,
                    status="failed" if one.dead_letter_queue is None else "dead-lettered",
                    error=one.error or one.reason,
                    attempts=one.attempts,
                    correlation_id=correlation or own_id or one.ref,
                    max_attempts=limit,
                    original_id=origin or own_id or one.ref,
                )
            )

    async def forget(self, queue: str) -> None:
        held = await self._queue(queue)
        await self._finish_now(held)
        held.view.forget_all()

    async def sweep(self, queue: str) -> dict[str, int]:
        held = await self._queue(queue)
        await self._finish_now(held)
        done = await self.run(sweep(self.env, held.view))
        held.swept_at = self.env.clock.monotonic()
        self._tell_failures(held)
        await self._finish_now(held)
        return {
            "finished": done.finished,
            "decided": done.decided,
            "orphans": done.orphans,
            "expired": done.expired,
        }

    def requests(self) -> dict[str, int]:
        return self._blobs.requests()

    async def close(self) -> None:
        self._closed = True
        for held in list(self._queues.values()):
            held.close()
            await self._finish_now(held)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._blobs.close()

    async def _queue(self, name: str, *, refresh: bool = False) -> HeldQueue:
        held = self._queues.get(name)
        now = self.env.clock.monotonic()
        if held is not None and not (refresh and now - held.policy_at > POLICY_TTL):
            return held
        return self._remember(name, await self.run(admin.load_policy(self.env, QueueKeys(name))))

    def _remember(self, name: str, policy: QueuePolicy) -> HeldQueue:
        held = self._queues.get(name)
        if held is None:
            held = self._queues[name] = HeldQueue(self.run, self.env, QueueView(name, policy))
            held.view.patience = to_ms(self._blobs.patience)
        held.view.policy = policy
        held.policy_at = self.env.clock.monotonic()
        return held

    def _finish_soon(self, held: HeldQueue) -> None:
        if not held.view.finished or self._closed:
            return
        if len(held.view.finished) >= FINISH_BATCH:
            held.finish_now.set()
        if held.finisher is None or held.finisher.done():
            held.finisher = self._spawn(held, self._finish_later(held))

    async def _finish_later(self, held: HeldQueue) -> None:
        while held.view.finished:
            held.finish_now.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FINISH_LINGER):
                    await held.finish_now.wait()
            await self._finish_now(held)

    async def _finish_now(self, held: HeldQueue) -> None:
        """Write history and clean up. What fails here is done later by a sweeper: nothing depends on it."""
        async with held.finishing:
            finals, held.view.finished = held.view.finished, {}
            if not finals or held.deleted:
                return
            try:
                await self.run(finish(self.env, held.view, finals))
            except BrigadeError as error:
                log.warning(
                    "history of queue %s could not be written now (%s); the sweeper will",
                    held.view.keys.queue,
                    error,
                )

    def _sweep_sometimes(self, held: HeldQueue) -> None:
        now = self.env.clock.monotonic()
        if held.sweep_at is None:
            held.sweep_at = now + SWEEP_EVERY * self.env.ids.uniform(0.2, 1.0)
        elif now >= held.sweep_at and not self._closed:
            held.sweep_at = now + SWEEP_EVERY * self.env.ids.uniform(0.8, 1.2)
            self._spawn(held, self._sweep_quietly(held.view.keys.queue))

    async def _sweep_quietly(self, queue: str) -> None:
        try:
            await self.sweep(queue)
        except BrigadeError as error:
            log.warning("sweep of queue %s stopped (%s); it is tried again later", queue, error)

    def _spawn(self, held: HeldQueue, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = held.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
