"""The disk stores against the memory store: the same operations on both, the same answers, whatever the sequence.

Both run under one clock that only the test moves, so leases, delays and ttls run out when it says so.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brigade import (
    Ack,
    AsyncHub,
    AsyncQueue,
    Backoff,
    BrigadeError,
    Extend,
    Failure,
    Lease,
    Message,
    Nack,
    NewMessage,
    QueuePolicy,
    Release,
    State,
)
from brigade.blobs import Blobs, sqlite_streams, sqlite_upkeep, sqlite_writer
from brigade.blobs import disk as disk_module
from brigade.blobs.disk import DiskBlobs
from brigade.blobs.memory import Bucket, MemoryBlobs
from brigade.blobs.sqlite import SqliteBlobs
from brigade.clock import wall_ns
from brigade.ids import Ids
from brigade.stores.bucket import process
from brigade.stores.bucket.process import SWEEP_EVERY
from brigade.stores.bucket.store import BucketStore

DAY = 86_400_000
NEVER = 1e12
STAMPING: tuple[Any, ...] = (disk_module, sqlite_writer, sqlite_streams, sqlite_upkeep)
"""What gives objects their times."""


class Clock:
    """Stands still until it is told. It lags behind the real one, so that no file is from the future."""

    def __init__(self) -> None:
        self.moment = wall_ns() // 1_000_000 - 2 * DAY
        self._ticks = 0

    def now(self) -> int:
        return self.moment

    def monotonic(self) -> float:
        return self.moment / 1000

    def file_time(self) -> int:
        """Differs at each call, as a disk's clock does."""
        self._ticks += 1
        return self.moment * 1_000_000 + self._ticks


class _Looking(SqliteBlobs):
    """Has the same time for a listing whoever else writes."""

    listing_ttl = 0.0


class Side:
    """One of the two stores, as two processes see it."""

    def __init__(self, name: str, clock: Clock, folder: str) -> None:
        self.name = name
        self.clock = clock
        self._bucket = Bucket(clock)
        self._folder = folder
        self._seed = 0
        self.hubs: list[AsyncHub] = []
        self.queues: list[list[AsyncQueue]] = []

    def connect(self) -> AsyncHub:
        blobs: Blobs
        if self.name == "memory":
            blobs = MemoryBlobs(bucket=self._bucket)
        elif self.name == "sqlite":
            blobs = _Looking(f"{self._folder}/store.db", fsync=False, watch=False)
        else:
            blobs = DiskBlobs(self._folder, fsync=False, watch=False)
        blobs.listing_ttl = -1.0  # The clock stands still: no listing is ever new enough.
        self._seed += 1
        hub = AsyncHub("memory://")
        hub.owner = f"hub-{self._seed}"
        hub._store = BucketStore(blobs, clock=self.clock, ids=Ids(self._seed))
        return hub

    async def open(self, policies: dict[str, QueuePolicy]) -> None:
        self.hubs = [self.connect() for _ in range(2)]
        self.queues = [[await hub.queue(name, policy) for name, policy in policies.items()] for hub in self.hubs]

    async def restart(self, which: int) -> None:
        names = [queue.name for queue in self.queues[which]]
        await self.hubs[which].close()
        self.hubs[which] = self.connect()
        self.queues[which] = [await self.hubs[which].queue(name) for name in names]

    async def close(self) -> None:
        for hub in self.hubs:
            await hub.close()


def seen(message: Message) -> tuple[Any, ...]:
    """What both stores must agree on."""
    failure = message.failure
    return (
        message.size if message.body is None else message.data,
        message.attempt,
        message.max_attempts,
        message.priority,
        message.group,
        dict(message.attributes),
        message.enqueued_at_ms,
        message.lease.version,
        message.lease.expires_at_ms,
        failure and (failure.queue, failure.reason, failure.error, failure.attempts, failure.failed_at_ms),
    )


def answered(answer: Any) -> Any:
    if isinstance(answer, BrigadeError):
        return type(answer).__name__
    if isinstance(answer, Lease):
        return ("lease", answer.version, answer.expires_at_ms)
    if isinstance(answer, list):
        return [answered(one) for one in answer]  # pyright: ignore[reportUnknownVariableType]
    return answer


WHICH = st.integers(0, 1)
POLICIES = st.builds(
    QueuePolicy,
    ordering=st.sampled_from(["fifo", "lifo"]),
    ordering_guarantee=st.booleans(),
    ttl=st.sampled_from([None, None, 500.0]),
    segment_messages=st.sampled_from([1, 3, 1000]),
    backoff=st.just(Backoff(base=10, maximum=40, jitter=None)),
    failure=st.sampled_from(
        [
            Failure("retry", 1),
            Failure("retry", 0),
            Failure("dead-letter", 3, "letters"),
            Failure("hybrid", 1, "letters"),
        ]
    ),
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.sampled_from([0, 5, 9]),
        "delay": st.sampled_from([0, 5, 60]),
        "id": st.sampled_from(["a", "b", "c"]),
        "group": st.sampled_from(["g", "h"]),
        "ttl": st.sampled_from([20, 200]),
        "max_attempts": st.integers(1, 3),
        "attributes": st.just({"k": 1}),
    },
)


class DiskAgainstMemory(RuleBasedStateMachine):
    """Every rule does the same on both sides and compares what they say."""

    other = "file"

    @initialize(policy=POLICIES)
    def begin(self, policy: QueuePolicy) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.folder = tempfile.mkdtemp(prefix="brigade-hypothesis-")
        for module in STAMPING:
            module.wall_ns = self.clock.file_time
        # A sweep that comes by itself comes at another moment on either side; here it is one of the rules.
        process.SWEEP_EVERY = NEVER
        self.sides = [Side("memory", self.clock, ""), Side(self.other, self.clock, self.folder)]
        self.labels = 0
        self.receipts: list[tuple[int, list[str]]] = []
        self.held: list[tuple[int, list[Message]]] = []
        self.policies = {"tasks": policy, "letters": QueuePolicy(failure=Failure("retry", 0))}
        self.both(lambda side: side.open(self.policies))

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            self.loop.run_until_complete(self._close())
            self.loop.close()
            shutil.rmtree(self.folder)
        for module in STAMPING:
            module.wall_ns = wall_ns
        process.SWEEP_EVERY = SWEEP_EVERY

    async def _close(self) -> None:
        for side in self.sides:
            await side.close()

    def both(self, work: Any, compare: Any = answered) -> list[Any]:
        """Do the work on both sides; their answers, or the kinds of their errors, must agree."""
        answers = [self.loop.run_until_complete(self._guarded(work(side))) for side in self.sides]
        memory, file = (
            compare(answer) if not isinstance(answer, BrigadeError) else answered(answer) for answer in answers
        )
        assert file == memory, f"file said {file!r}, memory {memory!r}"
        return answers

    async def _guarded(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        except BrigadeError as error:
            return error

    def label(self) -> str:
        self.labels += 1
        return f"m{self.labels}"

    @rule(which=WHICH, options=OPTIONS)
    def enqueue(self, which: int, options: dict[str, Any]) -> None:
        label = self.label()
        receipts = self.both(
            lambda side: side.queues[which][0].enqueue(label, **options), lambda receipt: receipt.duplicate
        )
        self.receipts.append((0, [receipt.id for receipt in receipts]))

    @rule(which=WHICH, many=st.lists(OPTIONS, min_size=1, max_size=5))
    def enqueue_many(self, which: int, many: list[dict[str, Any]]) -> None:
        messages = [NewMessage(payload=self.label(), **options) for options in many]
        receipts = self.both(
            lambda side: side.queues[which][0].enqueue_many(messages),
            lambda receipts: [receipt.duplicate for receipt in receipts],
        )
        self.receipts += [(0, [one.id for one in pair]) for pair in zip(*receipts, strict=True)]

    @rule(which=WHICH, options=OPTIONS)
    def enqueue_large(self, which: int, options: dict[str, Any]) -> None:
        body = self.label().encode() * 100_000
        self.both(lambda side: side.queues[which][0].enqueue(body, **options), lambda receipt: receipt.duplicate)

    @rule(which=WHICH, queue=WHICH, limit=st.integers(1, 6), lease=st.sampled_from([10, 100]))
    def claim(self, which: int, queue: int, limit: int, lease: float) -> None:
        answers = self.both(
            lambda side: side.queues[which][queue].claim(limit, visibility=lease, owner="w"),
            lambda messages: [seen(message) for message in messages],
        )
        if isinstance(answers[0], list):
            self.held += [(queue, list(pair)) for pair in zip(*answers, strict=True)]

    def side_of(self, side: Side) -> int:
        return self.sides.index(side)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), which=WHICH, error=st.sampled_from([None, "boom"]), delay=st.sampled_from([None, 0, 30]))
    def settle(self, data: st.DataObject, which: int, error: str | None, delay: float | None) -> None:
        """Of one queue, any held messages in any way, stale or not, even twice."""
        queue = data.draw(st.sampled_from(sorted({queue for queue, _ in self.held})))
        held = [pair for of, pair in self.held if of == queue]
        chosen = data.draw(st.lists(st.integers(0, len(held) - 1), min_size=1, max_size=4))
        ways = [data.draw(st.sampled_from(["ack", "nack", "reject", "defer", "extend", "release"])) for _ in chosen]

        def settlement(way: str, message: Message) -> Any:
            match way:
                case "ack":
                    return Ack(message, {"ok": True})
                case "nack":
                    return Nack(message, error, delay)
                case "reject":
                    return Nack(message, error, reject=True)
                case "defer":
                    return Nack(message, error, delay, penalize=False)
                case "extend":
                    return Extend(message, 50)
                case _:
                    return Release(message, delay or 0)

        self.both(
            lambda side: side.queues[which][queue].settle(
                [settlement(way, held[n][self.side_of(side)]) for way, n in zip(ways, chosen, strict=True)]
            )
        )

    @precondition(lambda self: self.held)
    @rule(data=st.data(), which=WHICH)
    def read_a_payload(self, data: st.DataObject, which: int) -> None:
        """What another process was given can be read as long as the message has not ended."""
        _, pair = data.draw(st.sampled_from(self.held))
        if pair[0].body is not None:
            return

        async def read(side: Side) -> Any:
            return await pair[self.side_of(side)].open().read()

        answers = [self.loop.run_until_complete(self._guarded(read(side))) for side in self.sides]
        bodies = [answer for answer in answers if isinstance(answer, bytes)]
        assert all(len(body) == pair[0].size for body in bodies)

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), which=WHICH)
    def get(self, data: st.DataObject, which: int) -> None:
        queue, ids = data.draw(st.sampled_from(self.receipts))
        self.both(
            lambda side: side.queues[which][queue].get(ids[self.side_of(side)]),
            lambda info: (
                info.state,
                info.outcome,
                info.attempts,
                info.max_attempts,
                info.priority,
                info.group,
                info.size,
                info.due_at_ms if info.state in (State.READY, State.IN_FLIGHT) else None,
                info.lease_version,
                info.lease_expires_at_ms,
            ),
        )

    @rule(which=WHICH, queue=WHICH, limit=st.integers(1, 10))
    def peek(self, which: int, queue: int, limit: int) -> None:
        self.both(
            lambda side: side.queues[which][queue].peek(limit),
            lambda infos: [info.size if info.body is None else info.data for info in infos],
        )

    @rule(which=WHICH, queue=WHICH)
    def failed(self, which: int, queue: int) -> None:
        self.both(
            lambda side: side.queues[which][queue].failed(),
            lambda failed: sorted(
                (str(one.data), one.size, one.reason, one.error or "", one.attempts) for one in failed
            ),
        )

    @rule(which=WHICH, queue=WHICH, limit=st.sampled_from([1, 1000]))
    def redrive(self, which: int, queue: int, limit: int) -> None:
        self.both(lambda side: side.queues[which][queue].redrive(limit=limit))

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), which=WHICH)
    def redrive_chosen(self, data: st.DataObject, which: int) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.receipts), max_size=3))
        self.both(lambda side: side.queues[which][0].redrive([ids[self.side_of(side)] for _, ids in chosen]))

    @rule(which=WHICH, queue=WHICH)
    def purge(self, which: int, queue: int) -> None:
        self.both(lambda side: side.queues[which][queue].purge())

    @rule(which=WHICH)
    def pause(self, which: int) -> None:
        self.both(lambda side: side.queues[which][0].pause())

    @rule(which=WHICH)
    def resume(self, which: int) -> None:
        self.both(lambda side: side.queues[which][0].resume())

    @precondition(lambda self: self.held)
    @rule(data=st.data(), which=WHICH, value=st.integers())
    def save_state(self, data: st.DataObject, which: int, value: int) -> None:
        queue, pair = data.draw(st.sampled_from(self.held))

        async def save(side: Side) -> Any:
            state = side.queues[which][queue].state(pair[self.side_of(side)])
            before = await state.load("nothing")
            await state.save(value)
            return before

        self.both(save)

    @rule(which=WHICH)
    def sweep(self, which: int) -> None:
        self.both(lambda side: side.queues[which][0].sweep(), lambda _: None)

    @rule(seconds=st.sampled_from([1, 10, 60, 300]))
    def time_passes(self, seconds: int) -> None:
        self.clock.moment += seconds * 1000

    @rule(which=WHICH)
    def restart(self, which: int) -> None:
        self.both(lambda side: side.restart(which))

    @rule(which=WHICH)
    def queues(self, which: int) -> None:
        self.both(lambda side: side.hubs[which].queues())

    @invariant()
    def the_counts_agree(self) -> None:
        if hasattr(self, "sides"):
            for queue in (0, 1):
                self.both(
                    lambda side, queue=queue: side.queues[0][queue].stats(),
                    lambda stats: (
                        stats.ready,
                        stats.delayed,
                        stats.in_flight,
                        stats.succeeded,
                        stats.failed,
                        stats.dead_lettered,
                        stats.paused,
                        stats.oldest_age,
                    ),
                )


TestDiskAgainstMemory = DiskAgainstMemory.TestCase
TestDiskAgainstMemory.settings = settings(
    max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


class SqliteAgainstMemory(DiskAgainstMemory):
    other = "sqlite"


TestSqliteAgainstMemory = SqliteAgainstMemory.TestCase
TestSqliteAgainstMemory.settings = settings(TestDiskAgainstMemory.settings, max_examples=30)
