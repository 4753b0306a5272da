"""The sync classes: the same names, run on an event loop in a thread of the hub's own."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import io
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from functools import partial
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from msgspec.structs import force_setattr

from brigade.errors import BrigadeError, ConfigError
from brigade.events import Event
from brigade.hub import AsyncHub
from brigade.inline import Call, HubLoop, at_once
from brigade.machine import State
from brigade.model import FailedMessage, Lease, Message, MessageInfo, Receipt, Settlement, Stats
from brigade.payload import NewMessage, outgoing
from brigade.plaincalls import PlainCalls, make_all, make_one
from brigade.policy import MAX_SECONDS, QueuePolicy
from brigade.queue import AsyncQueue, AsyncReader, AsyncState, Result, give_back
from brigade.stores.prompt import PlainCall, PlainClaim, PlainNext
from brigade.together import Together
from brigade.tracing import Tracer

if TYPE_CHECKING:
    from brigade.worker import Worker

__all__ = ["Hub", "MessageState", "PayloadReader", "Queue", "connect"]

T = TypeVar("T")
LOOK_AGAIN = 0.02


class Hub:
    """A connection to a store. Use it as `with brigade.connect(url) as hub`, from any number of threads."""

    def __init__(self, url: str, **options: Any) -> None:
        self._start_from(AsyncHub(url, **options))

    @classmethod
    def over(cls, hub: AsyncHub) -> Self:
        """A sync hub over an async one that is not open yet."""
        made = cls.__new__(cls)
        made._start_from(hub)
        return made

    def _start_from(self, hub: AsyncHub) -> None:
        self._async = hub
        self._loop: HubLoop | None = None
        self._thread: threading.Thread | None = None
        self.prompt = False
        """Whether storage answers at once, so that a thread may make its calls by itself."""
        self._together: Together[PlainCall] | None = None
        self._opening = threading.Lock()

    @property
    def tracer(self) -> Tracer:
        """Makes spans around enqueues and handlers; `brigade.observe.trace(hub)` sets it."""
        return self._async.tracer

    @tracer.setter
    def tracer(self, tracer: Tracer) -> None:
        self._async.tracer = tracer

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the hub's loop, in the caller's context (`contextvars`), and wait for it."""
        return self._carried_out(work, None, here=False)

    def quick(self, work: Coroutine[Any, Any, T], undo: Callable[[T], None] | None = None) -> T:
        """`call`, by this thread itself where storage answers at once and nobody else is at it.

        A result that the caller never gets, because a signal's handler raised, is given to `undo`, on the loop.
        """
        return self._carried_out(work, undo, here=self.prompt and not self._async.events.heard)

    def _carried_out(self, work: Coroutine[Any, Any, T], undo: Callable[[T], None] | None, *, here: bool) -> T:
        call = Call(self._loop_for(work), work)
        try:
            if not here or not call.here():
                call.there()
            call.wait()
        except BaseException:
            call.abandon(undo)
            raise
        return call.result()

    def plainly(
        self,
        call: PlainCall | None,
        general: Callable[[], Coroutine[Any, Any, T]],
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """What a plain call returns, made by this thread itself or together with others, or what the general way does.

        Who doesn't get the turn doesn't try again: several threads call.
        """
        loop, together = self._loop, self._together
        if loop is None or call is None or not self.prompt or not self._async.events.quiet:
            return self.quick(general(), undo)
        ours, done = at_once(loop, make_one, self._async, call, undo)
        if done is None and not ours and together is not None:
            self._check_thread(loop)
            done = together.make(call, undo)
            if type(done) is CoroutineType:
                done = self._carried_out(cast("Coroutine[Any, Any, T]", done), undo, here=False)
        return self._carried_out(general(), undo, here=ours) if done is None else done

    def alone(self, call: PlainNext, undo: Callable[[list[Message]], None]) -> list[Message] | None:
        """What a call comes to that this thread makes by itself; None where it can't."""
        loop, prompt = self._loop, self._async.prompt
        if loop is None or prompt is None or not prompt.pairs or not self.prompt or not self._async.events.quiet:
            return None
        return at_once(loop, make_one, self._async, call, undo)[1]

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the hub's loop; its result comes in the future."""
        return asyncio.run_coroutine_threadsafe(work, self._opened(work))

    def _opened(self, work: Coroutine[Any, Any, Any]) -> HubLoop:
        if self._loop is None:
            work.close()
            raise ConfigError("the hub is closed; use it as: with brigade.connect(url) as hub")
        return self._loop

    def _loop_for(self, work: Coroutine[Any, Any, Any]) -> HubLoop:
        """The loop, for a thread that is going to wait for it."""
        loop = self._opened(work)
        try:
            self._check_thread(loop)
        except ConfigError:
            work.close()
            raise
        return loop

    def _check_thread(self, loop: HubLoop) -> None:
        here = threading.get_ident()
        if here == loop.borrower or (self._thread is not None and here == self._thread.ident):
            raise ConfigError(
                "a listener runs on the hub's own thread and cannot wait for it; hand the work to a thread"
            )

    def soon(self, call: Callable[[], None]) -> None:
        """Call something on the hub's loop, without waiting. Does nothing once the hub is closed."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(call)

    def open(self) -> Self:
        """Connect. `with` does this by itself."""
        with self._opening:
            if self._loop is None:
                self._loop = HubLoop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="brigade-hub", daemon=True)
                self._thread.start()
                try:
                    self.call(self._async.open())
                    self.prompt = self._async.store.prompt
                    if self._async.prompt is not None and self._async.prompt.gathers:
                        self._together = Together(self._loop, partial(make_all, self._async))
                except BaseException:
                    self._stop_loop()
                    raise
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def queue(
        self, name: str, policy: QueuePolicy | None = None, *, replace: bool = False, create: bool = True
    ) -> Queue:
        """Open a queue, creating it if need be. A policy that differs from the stored one is a ConfigError."""
        return Queue(self, self.call(self._async.queue(name, policy, replace=replace, create=create)))

    def queues(self) -> list[str]:
        """The names of all queues in the store."""
        return self.call(self._async.queues())

    def on(self, name: str, listener: Callable[[Event], Any]) -> Callable[[], None]:
        """Call `listener(event)` at each event of that name, or at all with `*`. It runs on the hub's thread."""
        return self._async.on(name, listener)

    def requests(self) -> dict[str, int]:
        """How many storage operations of each kind this hub has made."""
        return self._async.requests()

    def close(self) -> None:
        """Stop workers that `start_processing` started, finish what is under way, then let go of the store."""
        if self._loop is not None:
            try:
                self.call(self._settle_down())
            finally:
                self._stop_loop()

    async def _settle_down(self) -> None:
        """Let calls that were interrupted come to their end, close the hub, then end what is left.

        A task whose own time limit has just run out looks interrupted, for a moment: so look again.
        """
        here = asyncio.current_task()
        while ending := [task for task in asyncio.all_tasks() if task.cancelling() and task is not here]:
            await asyncio.wait(ending, timeout=LOOK_AGAIN)
        try:
            await self._async.close()
        finally:
            await _end_tasks()
            await asyncio.get_running_loop().shutdown_asyncgens()

    def _stop_loop(self) -> None:
        loop, thread, self._loop, self._thread, self._together = self._loop, self._thread, None, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def _run(loop: HubLoop) -> None:
    """What a hub's thread does. Who calls while the loop is being stopped is told so."""
    loop.run_forever()
    loop.run_until_complete(_end_tasks())


async def _end_tasks() -> None:
    here = asyncio.current_task()
    while rest := [task for task in asyncio.all_tasks() if task is not here]:
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


class Queue:
    """A named line of messages. Made by `hub.queue(name)`; may be used from several threads."""

    def __init__(self, hub: Hub, queue: AsyncQueue) -> None:
        self._hub = hub
        self._async = queue
        self._plain = PlainCalls(queue)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r}>"

    @property
    def hub(self) -> Hub:
        return self._hub

    @property
    def asynchronous(self) -> AsyncQueue:
        """The async queue under this one. It belongs to the hub's own thread."""
        return self._async

    @property
    def name(self) -> str:
        return self._async.name

    @property
    def policy(self) -> QueuePolicy:
        return self._async.policy

    def enqueue(
        self,
        payload: Any,
        *,
        priority: int = 5,
        delay: float = 0.0,
        id: str | None = None,
        group: str | None = None,
        ttl: float | None = None,
        max_attempts: int | None = None,
        attributes: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        content_type: str | None = None,
        connection: Any = None,
    ) -> Receipt:
        """Add one message: bytes, text, JSON values, a file or an iterator of bytes. Returns when it is durable.

        With a `connection` to the same PostgreSQL database the message joins its transaction.
        """
        message = outgoing(
            NewMessage(
                payload=payload,
                priority=priority,
                delay=delay,
                id=id,
                group=group,
                ttl=ttl,
                max_attempts=max_attempts,
                attributes=attributes,
                correlation_id=correlation_id,
                content_type=content_type,
            )
        )
        if connection is not None:
            return self._hub.quick(self._async.enqueue_checked(message, _blocking(connection)))
        return self._hub.plainly(self._plain.enqueue(message), partial(self._async.enqueue_checked, message))

    def enqueue_many(
        self,
        payloads: Iterable[Any],
        *,
        priority: int = 5,
        delay: float = 0.0,
        group: str | None = None,
        ttl: float | None = None,
        max_attempts: int | None = None,
        attributes: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        content_type: str | None = None,
        connection: Any = None,
    ) -> list[Receipt]:
        """Add many messages with few writes. An item may be a `NewMessage` with options of its own."""
        return self._hub.quick(
            self._async.enqueue_many(
                payloads,
                priority=priority,
                delay=delay,
                group=group,
                ttl=ttl,
                max_attempts=max_attempts,
                attributes=attributes,
                correlation_id=correlation_id,
                content_type=content_type,
                connection=_blocking(connection),
            )
        )

    def claim(
        self,
        limit: int = 1,
        *,
        wait: float = 0.0,
        owner: str | None = None,
        visibility: float | None = None,
        ack: Message | None = None,
    ) -> list[Message]:
        """Lease up to `limit` messages, waiting up to `wait` seconds for the first. An empty list: there was none.

        With `ack` that message is acked before anything is claimed, or in the same write or request: a loop that takes
        one message after the other makes one call for each. Raises StaleLease, and holds nothing, where the lease of
        that message was lost.
        """
        undo = partial(give_back, self._async)
        claiming = partial(self._async.claim, limit, wait=wait, owner=owner, visibility=visibility)
        usual = type(limit) is int and limit == 1 and type(wait) in (float, int) and 0 <= wait <= MAX_SECONDS
        if usual and self._hub.prompt:
            plain = self._plain.claim(owner, visibility)
            messages = None if ack is None else self._ack_before(ack, plain, undo)
            messages = messages or self._hub.plainly(plain, claiming, undo)
        else:
            messages = self._hub.quick(claiming(ack=ack), undo)
        for message in messages:
            force_setattr(message, "opener", self.reader)
        return messages

    def _ack_before(self, message: Message, claim: PlainClaim, undo: Callable[[list[Message]], None]) -> list[Message]:
        """Ack a message. What could be claimed with the same write, if anything."""
        messages: list[Message] | None = None
        if isinstance(cast(object, message), Message):
            messages = self._hub.alone(PlainNext(message, claim), undo)
        if messages is None:
            self.ack(message)
        return messages or []

    def reader(self, message: Message) -> io.BufferedReader:
        """A payload as a binary file. `message.open()` is the same."""
        return io.BufferedReader(PayloadReader(self._hub, self._async.reader(message)), buffer_size=256 * 1024)

    def ack(self, message: Message, *, result: Any = None, connection: Any = None) -> None:
        """The work is done: the message is never delivered again. `result` is kept in history.

        With a `connection` to the same PostgreSQL database the ack joins its transaction.
        """
        if result is None and connection is None and isinstance(cast(object, message), Message):
            self._hub.plainly(self._plain.ack(message), partial(self._acked, message))
        else:
            self._hub.quick(self._async.ack(message, result=result, connection=_blocking(connection)))

    async def _acked(self, message: Message) -> bool:
        await self._async.ack(message)
        return True

    def nack(
        self,
        message: Message,
        *,
        error: str | BaseException | None = None,
        delay: float | None = None,
        penalize: bool = True,
    ) -> State:
        """The work failed. It is retried after the policy's backoff, or `delay`, until its attempts are spent."""
        return self._hub.quick(self._async.nack(message, error=error, delay=delay, penalize=penalize))

    def extend(self, message: Message, seconds: float | None = None) -> Lease:
        """Hold the message for `seconds` from now, or for the policy's lease length."""
        return self._hub.quick(self._async.extend(message, seconds))

    def release(self, message: Message, *, delay: float = 0.0) -> None:
        """Give the message back at once, without counting the attempt."""
        self._hub.quick(self._async.release(message, delay=delay))

    def ack_many(self, messages: Iterable[Message]) -> list[Result]:
        """Ack many messages with few writes; one result each."""
        return self._hub.quick(self._async.ack_many(list(messages)))

    def settle(self, settlements: Iterable[Settlement]) -> list[Result]:
        """Ack, nack, extend and release in one batch. A stale lease is a result, not an exception."""
        return self._hub.quick(self._async.settle(list(settlements)))

    def settle_each(self, settlements: Iterable[Settlement]) -> list[Lease | State | BrigadeError]:
        """`settle`, but where the store fails for some of them that error is their result."""
        return self._hub.quick(self._async.settle_each(list(settlements)))

    def stats(self) -> Stats:
        """How many messages are where."""
        return self._hub.quick(self._async.stats())

    def get(self, id: str) -> MessageInfo:
        """A message by its id, waiting, in flight or ended."""
        return self._hub.quick(self._async.get(id))

    def peek(self, limit: int = 10) -> list[MessageInfo]:
        """The messages that a claim would get now, without leasing them."""
        return self._hub.quick(self._async.peek(limit))

    def failed(self, limit: int = 1000) -> list[FailedMessage]:
        """Messages that failed for good and are kept here, oldest first."""
        return self._hub.call(self._async.failed(limit))

    def redrive(self, ids: Iterable[str] | None = None, *, limit: int = 1_000_000) -> int:
        """Bring failures back: parked ones, this queue's dead letters, or, on a dead-letter queue, what lies in it."""
        return self._hub.call(self._async.redrive(ids, limit=limit))

    def purge(self, *, failed_only: bool = False) -> int:
        """Drop every message that is not in flight, and every parked failure, or only those; returns how many."""
        return self._hub.call(self._async.purge(failed_only=failed_only))

    def pause(self) -> None:
        """Hand nothing out until `resume`. What is in flight may still be settled."""
        self._hub.call(self._async.pause())

    def resume(self) -> None:
        self._hub.call(self._async.resume())

    def delete(self) -> None:
        """Remove the queue and everything in it."""
        self._hub.call(self._async.delete())

    def sweep(self) -> dict[str, int]:
        """Finish what crashes left. Claimers do this by themselves, now and then."""
        return self._hub.call(self._async.sweep())

    def clear_queue_cache(self) -> None:
        """Forget what this process remembers of the queue. Nothing is lost: it is read again when it is needed."""
        self._hub.call(self._async.clear_queue_cache())

    def start_processing(self, handler: Callable[..., Any], **options: Any) -> Worker:
        """Run `handler` on this queue's messages from now on, in the background; the options are those of `Worker`."""
        from brigade.worker import Worker

        worker = Worker(self, handler, **options)
        return self._hub.call(self._async.hub.hire(worker))

    def stop_processing(self, grace: float | None = None) -> None:
        """Stop what `start_processing` started: handlers that run may finish within `grace` seconds."""
        self._hub.call(self._async.hub.dismiss(self.name, grace))

    def state(self, message: Message | MessageInfo, *, etag: str | None = None) -> MessageState:
        """The workflow state beside a message: `load()`, and `save(value)` by compare-and-swap.

        `etag` is what another handle had when it loaded or saved: this one goes on from there.
        """
        return MessageState(self._hub, self._async.state(message, etag=etag))


class MessageState:
    """Workflow state of one message. `save` succeeds only over what this handle has loaded or saved."""

    def __init__(self, hub: Hub, state: AsyncState) -> None:
        self._hub = hub
        self._async = state

    @property
    def etag(self) -> str | None:
        """Stands for the value that was last loaded or saved here; None: there was none."""
        return self._async.etag

    def load(self, default: Any = None) -> Any:
        """The value last saved, or `default`."""
        return self._hub.quick(self._async.load(default))

    def save(self, value: Any) -> None:
        """Store a value. Raises StaleLease if somebody else saved since this handle loaded."""
        self._hub.quick(self._async.save(value))


class PayloadReader(io.RawIOBase):
    """A large payload as a binary file."""

    def __init__(self, hub: Hub, reader: AsyncReader) -> None:
        super().__init__()
        self._hub = hub
        self._reader = reader

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._hub.quick(self._reader.read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._hub.call(self._reader.close())


def _blocking(connection: Any) -> Any:
    """A caller's connection that the hub's own thread can use."""
    if inspect.iscoroutinefunction(getattr(connection, "execute", None)):
        raise ConfigError(
            "connection is an async one, which belongs to its event loop; use connect_async(), or a sync one"
        )
    return connection


def connect(url: str, **options: Any) -> Hub:
    """Connect to a store: `memory://name`, `file://path`, `sqlite://path`, `s3://bucket/prefix`, ….

    Options may also stand in the URL's query.
    """
    return Hub(url, **options).open()
