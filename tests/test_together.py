"""Plain calls that threads make together: each gets what it would get alone, and nobody waits for nobody."""

from __future__ import annotations

import _thread
import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import brigade
from brigade import together
from brigade.blobs.memory import MemoryBlobs
from brigade.blobs.sqlite import SqliteBlobs
from brigade.errors import BrigadeError, PayloadTooLarge, StaleLease, StoreUnavailable
from brigade.inline import HubLoop
from brigade.policy import QueuePolicy
from brigade.stores.bucket.store import BucketStore
from brigade.stores.prompt import PlainAck, PlainCall, PlainClaim, PlainEnqueue
from brigade.together import Together

THREADS = 8


@pytest.fixture(params=["memory", "sqlite", "sqlite, fsync"])
def hub(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[brigade.Hub, None, None]:
    fsync = "fsync" in request.param
    url = "memory://" if request.param == "memory" else f"sqlite://{tmp_path}/jobs.db?fsync={str(fsync).lower()}"
    with brigade.connect(url) as hub:
        yield hub


def bucket_of(queue: brigade.Queue) -> BucketStore:
    store = queue.asynchronous.hub.store
    assert isinstance(store, BucketStore)
    return store


def enqueueing(queue: brigade.Queue, payload: bytes) -> PlainEnqueue:
    return PlainEnqueue(queue.name, brigade.payload.outgoing(brigade.NewMessage(payload=payload)))


def made(queue: brigade.Queue, *calls: PlainCall) -> list[Any]:
    """What these come to, made together on the hub's loop."""

    async def make() -> list[Any]:
        done = bucket_of(queue).together_now(calls)
        return done if isinstance(done, list) else await done

    return queue.hub.call(make())


class TestOutcomes:
    def test_everybody_gets_a_message_and_its_own_lease(self, hub: brigade.Hub) -> None:
        queue = hub.queue("tasks")
        receipts = made(queue, *(enqueueing(queue, str(number).encode()) for number in range(5)))
        assert len({receipt.id for receipt in receipts}) == 5
        assert queue.claim(10, owner="first", visibility=0.001)  # A queue that has been claimed from.
        claims = [PlainClaim("tasks", f"worker {number}", 60.0) for number in range(6)]
        outcomes = made(queue, *claims)
        while None in outcomes[:5]:  # Not all of the leases had run out.
            outcomes = [*(one for one in outcomes if one), *made(queue, *claims[sum(map(bool, outcomes)) :])]
        assert outcomes[5] is None
        messages = [message for (message,) in outcomes[:5]]
        assert sorted(message.data for message in messages) == [b"0", b"1", b"2", b"3", b"4"]
        assert len({message.lease.owner for message in messages}) == 5
        assert len({message.lease.token for message in messages}) == 5
        assert made(queue, *(PlainAck("tasks", message) for message in messages)) == [True] * 5
        assert queue.stats().succeeded == 5

    def test_an_error_is_that_of_its_own_call(self, hub: brigade.Hub) -> None:
        queue = hub.queue("tasks", QueuePolicy(max_payload=100))
        queue.enqueue(b"a")
        (message,) = queue.claim()
        queue.ack(message)
        large, good, stale, nowhere = made(
            queue,
            enqueueing(queue, bytes(101)),
            enqueueing(queue, b"b"),
            PlainAck("tasks", message),
            PlainClaim("another queue", "me", 60.0),
        )
        assert isinstance(large, PayloadTooLarge)
        assert good.queue == "tasks"
        assert isinstance(stale, StaleLease)
        assert nowhere is None

    def test_a_message_is_acked_once(self, hub: brigade.Hub) -> None:
        queue = hub.queue("tasks")
        queue.enqueue_many([b"a", b"b"])
        first, second = queue.claim(2)
        done = made(queue, PlainAck("tasks", first), PlainAck("tasks", first), PlainAck("tasks", second))
        assert [one is True for one in done] == [True, False, True]
        assert isinstance(done[1], StaleLease)

    def test_what_is_not_plain_is_left_alone(self, hub: brigade.Hub) -> None:
        queue = hub.queue("tasks")
        new = brigade.NewMessage(payload=b"x", group="g")
        grouped = PlainEnqueue("tasks", brigade.payload.outgoing(new))
        assert made(queue, grouped) == [None]
        queue.enqueue(b"x", group="g")
        (message,) = queue.claim()
        assert made(queue, PlainAck("tasks", message)) == [None]
        assert queue.stats().ready == 0

    def test_all_of_it_is_one_commit(self, tmp_path: Path) -> None:
        with brigade.connect(f"sqlite://{tmp_path}/jobs.db?fsync=false") as hub:
            queue = hub.queue("tasks")
            bucket = bucket_of(queue)
            assert isinstance(bucket.blobs, SqliteBlobs)
            for number in range(4):
                queue.enqueue(number)
            first, second = queue.claim(2)
            before = bucket.blobs.commits
            outcomes = made(
                queue,
                *(enqueueing(queue, b"x") for _ in range(3)),
                *(PlainAck("tasks", message) for message in (first, second)),
                *(PlainClaim("tasks", "me", 60.0) for _ in range(2)),
            )
            assert all(outcomes)
            assert bucket.blobs.commits == before + 1


class Held:
    """Keeps whoever makes calls together from going on."""

    def __init__(self, queue: brigade.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[int] = []
        self.open = threading.Event()
        self.entered = threading.Event()
        real = bucket_of(queue).together_now

        def held(calls: Sequence[PlainCall]) -> Any:
            self.batches.append(len(calls))
            self.entered.set()
            assert self.open.wait(60)
            return real(calls)

        monkeypatch.setattr(bucket_of(queue), "together_now", held)


def waiting(queue: brigade.Queue) -> list[Any]:
    gathering: Any = queue.hub._together
    return gathering._asks


def until(ready: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not ready():
        pause.wait(0.005)


def in_company(queue: brigade.Queue) -> None:
    """Have the hub see that several threads call."""
    thread = threading.Thread(target=queue.enqueue, args=(b"company",))
    thread.start()
    thread.join()


class TestThreads:
    def test_make_their_calls_together(self, hub: brigade.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
        queue = hub.queue("tasks")
        queue.enqueue(b"first")
        in_company(queue)
        held = Held(queue, monkeypatch)
        with ThreadPoolExecutor(THREADS) as pool:
            receipts = [pool.submit(queue.enqueue, b"x") for _ in range(THREADS)]
            assert held.entered.wait(60)
            until(lambda: sum(held.batches) + len(waiting(queue)) == THREADS)
            held.open.set()
            assert len({one.result(60).id for one in receipts}) == THREADS
        assert len(held.batches) == 2
        assert sum(held.batches) == THREADS

    def test_lose_nothing_and_get_nothing_twice(self, hub: brigade.Hub) -> None:
        queue = hub.queue("tasks")
        got: list[int] = []

        def work(thread: int) -> None:
            for number in range(50):
                queue.enqueue(thread * 1000 + number)
                for message in queue.claim():
                    assert message.attempt == 1
                    queue.ack(message)
                    got.append(message.data)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))
        while messages := queue.claim(100):
            got += [message.data for message in messages]
            queue.ack_many(messages)
        assert sorted(got) == sorted(thread * 1000 + number for thread in range(THREADS) for number in range(50))
        assert queue.stats().succeeded == THREADS * 50

    def test_let_the_loop_work_meanwhile(self) -> None:
        """History is written and segments go while threads never stop calling."""
        bucket = brigade.blobs.memory.Bucket.named("busy together")
        with brigade.connect("memory://busy together") as hub:
            queue = hub.queue("tasks")
            most: list[int] = []

            def work(_: int) -> None:
                for _ in range(500):
                    queue.enqueue("x")
                    for message in queue.claim():
                        queue.ack(message)
                    most.append(len(bucket.snapshot()))

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(work, range(4)))
        assert max(most) < 2_000

    def test_share_commits(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with brigade.connect(f"sqlite://{tmp_path}/jobs.db") as hub:
            queue = hub.queue("tasks")
            queue.enqueue(b"first")
            in_company(queue)
            bucket = bucket_of(queue)
            assert isinstance(bucket.blobs, SqliteBlobs)
            before = bucket.blobs.commits
            held = Held(queue, monkeypatch)
            with ThreadPoolExecutor(THREADS) as pool:
                done = [pool.submit(queue.enqueue, b"x") for _ in range(THREADS)]
                until(lambda: sum(held.batches) + len(waiting(queue)) == THREADS)
                held.open.set()
                for one in done:
                    one.result(60)
            assert bucket.blobs.commits == before + 2


class TestInterrupts:
    def test_what_is_not_waited_for_any_more_is_given_back(
        self, hub: brigade.Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The main thread is interrupted while another one leads with its claim in the batch, or before."""
        queue = hub.queue("tasks")
        for number in range(3):
            queue.enqueue(number)
        (taken,) = queue.claim()
        queue.release(taken)
        for taken_already in (True, False):
            in_company(queue)
            with monkeypatch.context() as patch:
                held = Held(queue, patch)
                with ThreadPoolExecutor(2) as pool:
                    first = pool.submit(queue.enqueue, b"x")
                    assert held.entered.wait(60)
                    pool.submit(self._interrupt, queue, held, taken_already)
                    with pytest.raises(KeyboardInterrupt):
                        queue.claim()
                    held.open.set()
                    first.result(60)
            until(lambda: queue.stats().in_flight == 0)
        assert {message.attempt for message in queue.claim(20)} == {1}

    def _interrupt(self, queue: brigade.Queue, held: Held, taken: bool) -> None:
        until(lambda: bool(waiting(queue)))
        if taken:
            held.open.set()
        _thread.interrupt_main()

    def test_who_is_to_lead_and_does_not_hands_the_lead_on(
        self, hub: brigade.Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = hub.queue("tasks")
        queue.enqueue(b"first")
        in_company(queue)
        real = together.wait_for
        quitters: list[str] = []

        def quitting(told: threading.Lock, loop: HubLoop) -> None:
            real(told, loop)
            if threading.current_thread().name == "quits" and not quitters:
                quitters.append("gone")
                raise KeyboardInterrupt

        monkeypatch.setattr(together, "wait_for", quitting)
        held = Held(queue, monkeypatch)
        errors: list[BaseException] = []

        def quits() -> None:
            try:
                queue.enqueue(b"never")
            except KeyboardInterrupt as error:
                errors.append(error)

        with ThreadPoolExecutor(3) as pool:
            done: list[Future[Any]] = [pool.submit(queue.enqueue, b"x")]
            assert held.entered.wait(60)
            thread = threading.Thread(target=quits, name="quits")
            thread.start()
            until(lambda: len(waiting(queue)) == 1)
            done += [pool.submit(queue.enqueue, b"x") for _ in range(2)]
            until(lambda: len(waiting(queue)) == 3)
            held.open.set()
            thread.join(60)
            assert [one.result(60).queue for one in done] == ["tasks"] * 3
        assert len(errors) == 1
        assert held.batches == [1, 2]


class TestClosing:
    def test_who_waits_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with brigade.connect("memory://") as hub:
            queue = hub.queue("tasks")
            queue.enqueue(b"first")
            in_company(queue)

            async def never() -> list[Any]:
                await asyncio.sleep(3600)
                return []

            begun = threading.Event()

            def later(calls: Sequence[PlainCall]) -> Any:
                begun.set()
                return never()

            monkeypatch.setattr(bucket_of(queue), "together_now", later)
            with ThreadPoolExecutor(2) as pool:
                done = [pool.submit(queue.enqueue, b"x") for _ in range(2)]
                assert begun.wait(60)
                until(lambda: len(waiting(queue)) == 1)
                hub.close()
                errors = [one.exception(60) for one in done]
            assert all(isinstance(error, BrigadeError) for error in errors)
            assert any(isinstance(error, StoreUnavailable) for error in errors), "one was under way"

    @pytest.mark.parametrize("ttl", [None, 60], ids=["plain", "not plain"])
    def test_in_the_middle_of_calls_leaves_nobody_waiting(self, ttl: float | None) -> None:
        for _ in range(20):
            hub = brigade.connect("memory://").open()
            queue = hub.queue("tasks")
            begun = threading.Semaphore(0)

            def work(queue: brigade.Queue = queue, begun: threading.Semaphore = begun) -> BrigadeError:
                while True:
                    try:
                        queue.enqueue(b"x", ttl=ttl)
                    except BrigadeError as error:
                        return error
                    finally:
                        begun.release()

            with ThreadPoolExecutor(4) as pool:
                done = [pool.submit(work) for _ in range(4)]
                for _ in range(8):
                    assert begun.acquire(timeout=60)
                hub.close()
                for one in done:
                    assert "hub" in str(one.result(60))

    def test_a_loop_that_is_gone_leaves_nobody_waiting(self) -> None:
        loop = HubLoop()
        gathering: Together[str] = Together(loop, lambda calls: [call.upper() for call in calls])
        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(gathering.make, "a") for _ in range(2)]
            until(lambda: bool(loop._ready))  # It never ran: it is awake for good.
            loop.close()
            for one in done:
                assert isinstance(one.exception(60), StoreUnavailable)

    def test_what_is_left_of_a_call_ends_with_the_loop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = HubLoop()
        monkeypatch.setattr(loop, "take", lambda: True)
        monkeypatch.setattr(loop, "give_back", loop.close)
        left: list[Coroutine[Any, Any, list[str]]] = []

        async def rest() -> list[str]:
            return []

        def begin(calls: Sequence[str]) -> Coroutine[Any, Any, list[str]]:
            left.append(rest())
            return left[0]

        with pytest.raises(StoreUnavailable):
            Together(loop, begin).make("a")
        assert inspect.getcoroutinestate(left[0]) == inspect.CORO_CLOSED


CREW = """
import os, sys, threading, brigade

def tell(sign, id):
    os.write(1, f"{sign} {id}\\n".encode())

def work(queue, name, count):
    for number in range(count):
        tell("+", queue.enqueue(f"{name}-{number}").id)
        for message in queue.claim(visibility=2):
            queue.ack(message)
            tell("-", message.id)

url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with brigade.connect(url) as hub:
    queue = hub.queue("tasks")
    threads = [threading.Thread(target=work, args=(queue, f"{name}-{number}", count)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


@pytest.mark.parametrize("fsync", ["true", "false"])
def test_processes_with_threads_of_which_one_is_killed(tmp_path: Path, fsync: str) -> None:
    """What was answered is true: a message that was enqueued is there or acked, and one that was acked is over."""
    url = f"sqlite://{tmp_path}/jobs.db?fsync={fsync}"
    with brigade.connect(url) as hub:
        queue = hub.queue("tasks")
        crew = [
            subprocess.Popen([sys.executable, "-c", CREW, url, f"p{number}", "60"], stdout=subprocess.PIPE, text=True)
            for number in range(3)
        ]
        lines: list[str] = []
        assert crew[0].stdout is not None
        while len(lines) < 60:
            lines.append(crew[0].stdout.readline())
        crew[0].kill()
        for process in crew:
            lines += process.communicate(timeout=120)[0].splitlines()
        told = [tuple(line.split()) for line in lines if len(line.split()) == 2]
        acked = [id for sign, id in told if sign == "-"]
        assert len(acked) == len(set(acked))
        left: list[str] = []
        while (stats := queue.stats()).ready or stats.in_flight:
            messages = queue.claim(100, wait=1)
            left += [message.id for message in messages]
            queue.ack_many(messages)
        assert not set(left) & set(acked)
        missing = {id for sign, id in told if sign == "+"} - {*left, *acked}
        assert {queue.get(id).state for id in missing} <= {"succeeded"}, "acked, and killed before it could tell"


def test_storage_that_gains_nothing_by_it_is_left_alone(tmp_path: Path) -> None:
    with brigade.connect(f"file://{tmp_path}/jobs") as hub:
        assert not bucket_of(hub.queue("tasks")).gathers
        assert hub._together is None
    with brigade.connect("memory://") as hub:
        assert isinstance(bucket_of(hub.queue("tasks")).blobs, MemoryBlobs)
        assert hub._together is not None
