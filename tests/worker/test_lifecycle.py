"""Starting and stopping: every way there is, from every thread, twice and in the wrong order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from worker_support import AT_ONCE, Faults, ended, named, until

import brigade
from brigade import ConfigError, Event, Hub, Message, Queue, QueuePolicy, State, Worker

LONG = QueuePolicy(visibility_timeout=600, backoff=AT_ONCE)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Threads of workers end soon after they were stopped."""
    before = set(threading.enumerate())
    yield
    until(lambda: not [one for one in set(threading.enumerate()) - before if one.name.startswith("brigade")])


@pytest.fixture
def queue(memory: Hub) -> Queue:
    return memory.queue("tasks", LONG)


def echo(message: Message) -> object:
    return message.data


async def echo_async(message: Message) -> object:
    return message.data


@pytest.mark.parametrize("handler", [echo, echo_async], ids=["def", "async def"])
def test_start_and_stop(queue: Queue, handler: object) -> None:
    worker = Worker(queue, handler)  # pyright: ignore[reportArgumentType]
    receipt = queue.enqueue("x")
    worker.start()
    until(lambda: ended(queue))
    worker.stop()
    assert queue.get(receipt.id).result == "x"
    assert worker.status().processed == 1
    assert worker.status().running == worker.status().waiting == 0


@pytest.mark.parametrize("handler", [echo, echo_async], ids=["def", "async def"])
def test_a_worker_is_a_context_and_can_be_used_again(queue: Queue, handler: object) -> None:
    worker = Worker(queue, handler)  # pyright: ignore[reportArgumentType]
    for turn in range(3):
        receipt = queue.enqueue(turn)
        with worker as same:
            assert same is worker
            until(lambda: ended(queue))
        assert queue.get(receipt.id).result == turn
        assert worker.status().processed == 1, "it counts since it was started"


def test_starting_twice_is_refused_and_stopping_twice_is_not(queue: Queue) -> None:
    worker = Worker(queue, echo)
    worker.stop()
    worker.start()
    for again in (worker.start, worker.run):
        with pytest.raises(ConfigError, match="running already"):
            again()
    queue.enqueue("x")
    until(lambda: ended(queue))
    worker.stop()
    worker.stop()


def test_nothing_is_claimed_after_stop(queue: Queue) -> None:
    worker = Worker(queue, echo)
    worker.start()
    worker.stop()
    receipt = queue.enqueue("x")
    assert queue.get(receipt.id).state is State.READY
    assert queue.get(receipt.id).attempts == 0


def test_a_bad_grace_period_changes_nothing(queue: Queue) -> None:
    with Worker(queue, echo) as worker:
        with pytest.raises(ConfigError, match="grace"):
            worker.stop(grace=-1)
        queue.enqueue("x")
        until(lambda: worker.status().processed == 1)


def test_run_in_another_thread_ends_with_stop(queue: Queue) -> None:
    """Signals are the main thread's affair; `stop()` comes from anywhere, and returns when all is done."""
    worker = Worker(queue, echo)
    thread = threading.Thread(target=worker.run)
    thread.start()
    receipt = queue.enqueue("x")
    until(lambda: ended(queue))
    stoppers = [threading.Thread(target=worker.stop) for _ in range(4)]
    for one in stoppers:
        one.start()
    for one in (*stoppers, thread):
        one.join(30)
        assert not one.is_alive()
    assert queue.get(receipt.id).result == "x"


def test_run_in_the_main_thread_ends_with_stop_from_another(queue: Queue) -> None:
    worker = Worker(queue, echo)
    queue.enqueue("x")
    stopper = threading.Thread(target=lambda: until(lambda: worker.status().processed) and worker.stop())
    stopper.start()
    worker.run()
    stopper.join(30)
    assert ended(queue)


def test_run_until_empty_sees_everything_through(queue: Queue) -> None:
    """Retries and what comes late are part of it."""
    tried: list[object] = []

    def handler(message: Message) -> None:
        tried.append(message.data)
        if message.attempt == 1:
            if message.data == "first":
                queue.enqueue("second")
            raise ValueError("once more")

    queue.enqueue("first")
    queue.enqueue("delayed", delay=0.5)
    Worker(queue, handler).run(until_empty=True)
    assert sorted(map(str, tried)) == sorted(["first", "second", "delayed"] * 2)
    assert queue.stats().succeeded == 3


def test_run_until_empty_survives_a_storage_error(queue: Queue, faults: Faults) -> None:
    asked: list[str] = []

    def rule(name: str) -> None:
        asked.append(name)
        if len(asked) < 3:
            raise brigade.StoreUnavailable("the store is away; try again later")

    faults.on("stats", rule)
    thread = threading.Thread(target=lambda: Worker(queue, echo).run(until_empty=True), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert len(asked) >= 3


def test_start_processing_and_stop_processing(queue: Queue) -> None:
    receipts = queue.enqueue_many(range(20))
    worker = queue.start_processing(echo, concurrency=3)
    other = queue.start_processing(echo_async, concurrency=2)
    until(lambda: ended(queue))
    queue.stop_processing()
    assert worker.status().processed + other.status().processed == 20
    assert [queue.get(one.id).result for one in receipts] == list(range(20))
    queue.enqueue("after")
    assert queue.stats().ready == 1
    queue.stop_processing()


async def test_start_processing_and_stop_processing_async() -> None:
    async with brigade.connect_async("memory://") as hub:
        queue = await hub.queue("tasks")
        loops: set[object] = set()

        async def handler(message: Message) -> None:
            loops.add(asyncio.get_running_loop())

        await queue.enqueue_many(range(10))
        worker = await queue.start_processing(handler)
        await _until_ended(queue)
        await queue.stop_processing(grace=1)
        assert worker.status().processed == 10
        assert loops == {asyncio.get_running_loop()}, "async handlers run on the caller's loop"


async def _until_ended(queue: brigade.AsyncQueue) -> None:
    async with asyncio.timeout(30):
        while (stats := await queue.stats()).ready + stats.in_flight:
            await asyncio.sleep(0.01)


def test_closing_the_hub_stops_what_it_has_hired() -> None:
    """[G1] Handlers finish first, and their outcomes are stored."""
    name = "memory://lifecycle-close"
    begun = threading.Event()

    def handler(message: Message) -> str:
        begun.set()
        return "finished"

    with brigade.connect(name) as hub:
        queue = hub.queue("tasks", LONG)
        receipt = queue.enqueue("x")
        worker = queue.start_processing(handler)
        begun.wait(30)
    assert worker.status().running == 0
    with brigade.connect(name) as hub:
        assert hub.queue("tasks").get(receipt.id).result == "finished"


def test_a_worker_can_be_stopped_after_its_hub_was_closed() -> None:
    hub = brigade.connect("memory://")
    worker = Worker(hub.queue("tasks"), echo)
    worker.start()
    hub.close()
    worker.stop()
    assert worker.status().running == 0


@pytest.mark.parametrize("handler", [echo, echo_async], ids=["def", "async def"])
async def test_async_with_and_drain(handler: object) -> None:
    async with brigade.connect_async("memory://") as hub:
        queue = await hub.queue("tasks")
        receipts = await queue.enqueue_many(range(5))
        async with Worker(queue, handler) as worker:  # pyright: ignore[reportArgumentType]
            await _until_ended(queue)
        await worker.drain()
        assert [(await queue.get(one.id)).result for one in receipts] == list(range(5))


async def test_serve_until_empty_and_when_it_is_cancelled() -> None:
    async with brigade.connect_async("memory://") as hub:
        queue = await hub.queue("tasks")
        await queue.enqueue_many(range(5))
        await Worker(queue, echo_async).serve(until_empty=True)
        assert (await queue.stats()).succeeded == 5
        worker = Worker(queue, echo_async)
        serving = asyncio.create_task(worker.serve())
        await queue.enqueue("x")
        await _until_ended(queue)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert worker.status().processed == 1
        assert worker.status().running == 0


async def test_many_workers_on_one_loop_can_all_be_drained() -> None:
    """Serving takes no thread from the pool that the program's own `to_thread` uses."""
    async with brigade.connect_async("memory://") as hub:
        queue = await hub.queue("tasks")
        workers = [Worker(queue, echo_async, concurrency=1) for _ in range(40)]
        serving = [asyncio.create_task(worker.serve()) for worker in workers]
        async with asyncio.timeout(30):
            await queue.enqueue("x")
            await _until_ended(queue)
            assert await asyncio.to_thread(lambda: "there is a thread") == "there is a thread"
            await asyncio.gather(*(worker.drain() for worker in workers))
            await asyncio.gather(*serving)


async def test_blocking_verbs_on_an_async_queue_name_the_async_ones() -> None:
    async with brigade.connect_async("memory://") as hub:
        worker = Worker(await hub.queue("tasks"), echo_async)
        for verb, instead in ((worker.run, "serve"), (worker.start, "async with"), (worker.stop, "async with")):
            with pytest.raises(ConfigError, match=instead):
                verb()
        with pytest.raises(ConfigError, match="async with"), worker:
            pass


def test_a_queue_that_is_gone_is_said_when_the_worker_starts(memory: Hub) -> None:
    queue = memory.queue("tasks")
    worker = Worker(queue, echo)
    queue.delete()
    before = threading.active_count()
    with pytest.raises(brigade.QueueNotFound, match="tasks"):
        worker.start()
    until(lambda: threading.active_count() == before)
    memory.queue("tasks").enqueue("x")
    with worker:
        until(lambda: worker.status().processed == 1)


def test_start_and_stop_are_told(memory: Hub) -> None:
    heard: list[Event] = []
    memory.on("*", heard.append)
    strict = memory.queue("strict", QueuePolicy(ordering_guarantee=True))
    loose = memory.queue("loose")
    with Worker([strict, loose], echo, concurrency=3, worker_id="me"):
        until(lambda: named(heard, "ordering-best-effort"))
    until(lambda: named(heard, "workers-stopped"))
    started, stopped = named(heard, "workers-started")[0], named(heard, "workers-stopped")[0]
    assert started.fields == {"worker_id": "me", "concurrency": 3, "queues": ["strict", "loose"]}
    assert stopped.fields == {"worker_id": "me"}
    (diagnosis,) = named(heard, "ordering-best-effort")
    assert diagnosis.queue == "loose"
    assert diagnosis.fields["ordering"] == "fifo"


@pytest.mark.parametrize("at", ["claim", "load"])
def test_a_worker_stopped_in_the_middle_of_a_claim_holds_nothing(
    at: str, memory: Hub, queue: Queue, faults: Faults
) -> None:
    """What was won but not yet read is given back, not left to its lease."""
    reached, go = threading.Event(), threading.Event()

    async def rule(*args: object, **kwargs: object) -> None:
        reached.set()
        while not go.is_set():
            await asyncio.sleep(0.01)

    faults.on(at, rule)
    receipts = queue.enqueue_many(range(3))
    worker = Worker(queue, echo)
    worker.start()
    assert reached.wait(30)
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    threading.Timer(0.3, go.set).start()
    stopper.join(30)
    assert not stopper.is_alive()
    faults.off()
    assert [queue.get(one.id).state for one in receipts] == [State.READY] * 3
    assert {message.attempt for message in queue.claim(3)} == {1}
