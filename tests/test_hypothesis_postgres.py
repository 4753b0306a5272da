"""The PostgreSQL store against the memory store: the same operations on both, the same answers, whatever the sequence.

Both run under one clock that only the test moves: the schema's `now_ms()` reads it from a table. Compared is what all
stores promise: for best-effort queues which messages a claim of everything gets, for strict queues and groups the order
as well. Where a retried message comes among the others, and lease versions, are each store's own.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

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
from brigade.blobs.memory import Bucket, MemoryBlobs
from brigade.clock import wall_ns
from brigade.ids import Ids
from brigade.stores.bucket.store import BucketStore
from brigade.stores.opening import open_store
from brigade.stores.postgres.store import PostgresStore
from brigade.testing.servers.postgres import PostgresServer
from postgres_server import postgres

__all__ = ["postgres"]
ALL = 1000


class Clock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self.moment = wall_ns() // 1_000_000

    def now(self) -> int:
        return self.moment

    def monotonic(self) -> float:
        return self.moment / 1000


class Side:
    """One of the two stores, as two processes see it."""

    def __init__(self, clock: Clock, url: str | None) -> None:
        self.clock = clock
        self.url = url
        self._bucket = Bucket(clock)
        self.hubs: list[AsyncHub] = []
        self.queues: list[list[AsyncQueue]] = []

    async def connect(self, seed: int) -> AsyncHub:
        hub = AsyncHub("memory://")
        if self.url is None:
            blobs = MemoryBlobs(bucket=self._bucket)
            blobs.listing_ttl = -1.0  # the clock stands still: no listing is ever new enough
            hub._store = BucketStore(blobs, clock=self.clock, ids=Ids(seed))
        else:
            store = open_store(self.url, {})
            assert isinstance(store, PostgresStore)
            await store.open()
            store.clock = self.clock
            hub._store = store
        return hub

    async def open(self, names: list[str], policies: list[QueuePolicy]) -> None:
        self.hubs = [await self.connect(seed) for seed in (1, 2)]
        self.queues = [
            [await hub.queue(name, policy) for name, policy in zip(names, policies, strict=True)] for hub in self.hubs
        ]

    async def close(self) -> None:
        for hub in self.hubs:
            await hub.close()


def seen(message: Message) -> tuple[Any, ...]:
    """What both stores must agree on."""
    failure = message.failure
    return (
        str(message.size if message.body is None else message.data),
        message.attempt,
        message.max_attempts,
        message.priority,
        message.group or "",
        sorted(message.attributes),
        message.enqueued_at_ms,
        message.lease.expires_at_ms,
        failure and (failure.queue, failure.reason, failure.error, failure.attempts, failure.failed_at_ms),
    )


def answered(answer: Any) -> Any:
    if isinstance(answer, BrigadeError):
        return type(answer).__name__
    if isinstance(answer, Lease):
        return ("lease", answer.expires_at_ms)
    if isinstance(answer, list):
        return [answered(one) for one in answer]
    return answer


WHICH = st.integers(0, 1)
POLICIES = st.builds(
    QueuePolicy,
    ordering=st.sampled_from(["fifo", "lifo"]),
    ordering_guarantee=st.booleans(),
    ttl=st.sampled_from([None, None, 500.0]),
    backoff=st.just(Backoff(base=10, maximum=40, jitter=None)),
    failure=st.sampled_from([("retry", 1), ("retry", 0), ("dead-letter", 3), ("hybrid", 1)]).map(
        lambda one: Failure(one[0], one[1], None if one[0] == "retry" else "letters")  # pyright: ignore[reportArgumentType]
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


def machine(url: str) -> type[RuleBasedStateMachine]:  # noqa: C901 - a class with many rules
    """The state machine on one database."""
    loop = asyncio.new_event_loop()

    class PostgresAgainstMemory(RuleBasedStateMachine):
        """Every rule does the same on both sides and compares what they say."""

        @initialize(policy=POLICIES)
        def begin(self, policy: QueuePolicy) -> None:
            self.clock = Clock()
            self.sides = [Side(self.clock, None), Side(self.clock, url)]
            self.labels = 0
            self.receipts: list[list[str]] = []
            self.held: list[tuple[int, list[Message]]] = []
            tag = uuid.uuid4().hex[:8]
            letters = f"letters-{tag}"
            if policy.failure.dead_letter_queue is not None:
                failure = Failure(policy.failure.mode, policy.failure.max_retries, letters)
                policy = QueuePolicy(
                    ordering=policy.ordering,
                    ordering_guarantee=policy.ordering_guarantee,
                    ttl=policy.ttl,
                    backoff=policy.backoff,
                    failure=failure,
                )
            self.policy = policy
            self.now()
            policies = [policy, QueuePolicy(failure=Failure("retry", 0))]
            self.both(lambda side: side.open([f"tasks-{tag}", letters], policies))

        def now(self) -> None:
            with psycopg.connect(url.partition("?")[0], autocommit=True) as conn:
                conn.execute("UPDATE faked.moment SET now = %s", [self.clock.moment])

        def teardown(self) -> None:
            for side in getattr(self, "sides", []):
                loop.run_until_complete(side.close())

        def both(self, work: Any, compare: Any = answered) -> list[Any]:
            """Do the work on both sides; their answers, or the kinds of their errors, must agree."""
            answers = [loop.run_until_complete(self._guarded(work(side))) for side in self.sides]
            memory, database = (
                compare(answer) if not isinstance(answer, BrigadeError) else answered(answer) for answer in answers
            )
            assert database == memory, f"PostgreSQL said {database!r}, memory {memory!r}"
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
            self.receipts.append([receipt.id for receipt in receipts])

        @rule(which=WHICH, many=st.lists(OPTIONS, min_size=1, max_size=30))
        def enqueue_many(self, which: int, many: list[dict[str, Any]]) -> None:
            messages = [NewMessage(payload=self.label(), **options) for options in many]
            receipts = self.both(
                lambda side: side.queues[which][0].enqueue_many(messages),
                lambda receipts: [receipt.duplicate for receipt in receipts],
            )
            self.receipts += [[one.id for one in pair] for pair in zip(*receipts, strict=True)]

        @rule(which=WHICH, options=OPTIONS)
        def enqueue_large(self, which: int, options: dict[str, Any]) -> None:
            body = self.label().encode() * 100_000
            self.both(lambda side: side.queues[which][0].enqueue(body, **options), lambda receipt: receipt.duplicate)

        @rule(which=WHICH, queue=WHICH, lease=st.sampled_from([10, 100]))
        def claim(self, which: int, queue: int, lease: float) -> None:
            """Everything that can be claimed."""
            answers = self.both(
                lambda side: side.queues[which][queue].claim(ALL, visibility=lease, owner="w"),
                lambda messages: sorted(map(repr, map(seen, messages))),
            )
            if isinstance(answers[0], list):
                ordered = [sorted(answer, key=lambda one: repr(seen(one))) for answer in answers]
                self.held += [(queue, list(pair)) for pair in zip(*ordered, strict=True)]

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
                    [settlement(way, held[n][self.sides.index(side)]) for way, n in zip(ways, chosen, strict=True)]
                )
            )

        @precondition(lambda self: self.receipts)
        @rule(data=st.data(), which=WHICH)
        def get(self, data: st.DataObject, which: int) -> None:
            ids = data.draw(st.sampled_from(self.receipts))
            self.both(
                lambda side: side.queues[which][0].get(ids[self.sides.index(side)]),
                lambda info: (
                    info.state,
                    info.outcome,
                    info.attempts,
                    info.max_attempts,
                    info.priority,
                    info.group,
                    info.size,
                    info.lease_expires_at_ms if info.state is State.IN_FLIGHT else None,
                ),
            )

        @rule(which=WHICH, queue=WHICH)
        def peek(self, which: int, queue: int) -> None:
            self.both(
                lambda side: side.queues[which][queue].peek(ALL),
                lambda infos: sorted(str(info.size if info.body is None else info.data) for info in infos),
            )

        @rule(which=WHICH, queue=WHICH)
        def failed(self, which: int, queue: int) -> None:
            self.both(
                lambda side: side.queues[which][queue].failed(),
                lambda failed: sorted(
                    (str(one.data), one.size, one.reason, one.error or "", one.attempts) for one in failed
                ),
            )

        @rule(which=WHICH, queue=WHICH)
        def redrive(self, which: int, queue: int) -> None:
            self.both(lambda side: side.queues[which][queue].redrive())

        @precondition(lambda self: self.receipts)
        @rule(data=st.data(), which=WHICH)
        def redrive_chosen(self, data: st.DataObject, which: int) -> None:
            chosen = data.draw(st.lists(st.sampled_from(self.receipts), max_size=3))
            self.both(lambda side: side.queues[which][0].redrive([ids[self.sides.index(side)] for ids in chosen]))

        @rule(which=WHICH, queue=WHICH)
        def purge(self, which: int, queue: int) -> None:
            self.both(lambda side: side.queues[which][queue].purge())

        @rule(which=WHICH)
        def pause(self, which: int) -> None:
            """Other processes of a bucket learn of it at their next listing: let time pass."""
            self.both(lambda side: side.queues[which][0].pause())
            self.time_passes(1)

        @rule(which=WHICH)
        def resume(self, which: int) -> None:
            self.both(lambda side: side.queues[which][0].resume())
            self.time_passes(1)

        @precondition(lambda self: self.held)
        @rule(data=st.data(), which=WHICH, value=st.integers())
        def save_state(self, data: st.DataObject, which: int, value: int) -> None:
            queue, pair = data.draw(st.sampled_from(self.held))

            async def save(side: Side) -> Any:
                state = side.queues[which][queue].state(pair[self.sides.index(side)])
                before = await state.load("nothing")
                await state.save(value)
                return before

            self.both(save)

        @rule(which=WHICH)
        def sweep(self, which: int) -> None:
            self.both(lambda side: side.queues[which][0].sweep(), lambda _: None)

        @rule(seconds=st.sampled_from([10, 60, 300]))
        def much_time_passes(self, seconds: int) -> None:
            self.time_passes(seconds)

        def time_passes(self, seconds: int) -> None:
            self.clock.moment += seconds * 1000
            self.now()

        @invariant()
        def the_counts_agree(self) -> None:
            for queue in (0, 1) if hasattr(self, "policy") else ():
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
                    ),
                )

    return PostgresAgainstMemory


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_postgres_against_memory(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from brigade.stores.bucket import process as bucket_process
    from brigade.stores.postgres import process as postgres_process

    monkeypatch.setattr(bucket_process, "SWEEP_EVERY", 1e12)
    monkeypatch.setattr(postgres_process, "SWEEP_EVERY", 1e12)
    url = f"{postgres.url()}?schema=faked"
    asyncio.run(_install(url))
    with psycopg.connect(postgres.url(), autocommit=True) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS faked.moment AS SELECT 0::bigint AS now")
        conn.execute(
            "CREATE OR REPLACE FUNCTION faked.now_ms() RETURNS bigint LANGUAGE sql VOLATILE "
            "AS 'SELECT now FROM faked.moment'"
        )
    run_state_machine_as_test(
        machine(url),
        settings=settings(
            max_examples=20,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


async def _install(url: str) -> None:
    store = open_store(url, {})
    await store.open()
    await store.close()
