"""Bulk jobs over HTTP: clients stage messages, and one of them publishes all or none.

A stage whose answer was lost may be sent again: every try makes parts of its own, and what nobody publishes is swept
after a week. A publish may be sent again because the store publishes a job once. Dropping twice drops once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec

from brigade.errors import BrigadeError, ConfigError
from brigade.payload import NewMessage, outgoing
from brigade.server.answers import Answer
from brigade.server.call import Call, InvalidRequest, answer, failed
from brigade.server.frames import Frames
from brigade.server.service import Service
from brigade.stores import Outgoing, Staged, StagingStore
from brigade.stores.remote.wire import Count
from brigade.stores.remote.wire_ports import Parts, Publish, Row, Stage

__all__ = ["publish", "stage", "unstage"]

PORTION = 8 * 1024 * 1024
MOST_ROWS = 10_000
"""Bytes and messages of a job that are in memory at a time, for each request: they are staged, then come the next."""

_rows = msgspec.msgpack.Decoder(list[Row])
_sealed = msgspec.msgpack.Decoder(list[bytes])
_staged = msgspec.msgpack.Decoder(Staged)


def _store(service: Service) -> StagingStore:
    return service.port(StagingStore, "takes no bulk jobs")


async def stage(service: Service, call: Call, wanted: Stage) -> Answer:
    """Make messages durable that nobody sees yet. Of a body that is refused, or breaks off, nothing is left."""
    queue = await call.queue(wanted.queue)
    store, seal = _store(service), await service.sealer.seal()
    frames = Frames(call.chunks(service.limits.most_stream))
    made: list[Staged] = []
    rows: list[Outgoing] = []
    size = 0
    try:
        while piece := await frames.piece(service.limits.most_body):
            rows += _read(piece)
            size += len(piece)
            if size >= PORTION or len(rows) >= MOST_ROWS:
                made.append(await store.stage(queue.name, wanted.job, rows))
                rows, size = [], 0
        if rows:
            made.append(await store.stage(queue.name, wanted.job, rows))
    except BaseException:
        if made:
            service.dispatcher.background(_forget(store, queue.name, wanted.job, made))
        raise
    about = ("staged", queue.name, wanted.job)
    return answer(Parts([seal.close(msgspec.msgpack.encode(one), *about) for one in made]))


async def _forget(store: StagingStore, queue: str, job: str, made: Sequence[Staged]) -> None:
    """What is still there afterwards goes after a week."""
    with contextlib.suppress(BrigadeError):
        await store.discard(queue, job, made)


def _read(piece: bytes) -> list[Outgoing]:
    try:
        return [_checked(row) for row in _rows.decode(piece)]
    except (msgspec.DecodeError, ValueError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        raise InvalidRequest(f"a frame is no list of messages: {error}", "body") from None
    except RecursionError:
        raise InvalidRequest("a frame is nested too deeply; flatten it", "body") from None


def _checked(row: Row) -> Outgoing:
    """A message as everywhere, but its payload stays with it, whatever its size."""
    message = outgoing(
        NewMessage(
            payload=b"",
            priority=row.priority,
            delay=row.delay,
            id=row.id,
            group=row.group,
            ttl=row.ttl,
            max_attempts=row.max_attempts,
            attributes=row.attributes,
            correlation_id=row.correlation_id,
            content_type=row.content_type,
        )
    )
    message.payload = row.payload
    return message


async def publish(service: Service, call: Call, wanted: Publish) -> Answer:
    """Show all parts of a job, in order. It runs to its end, whether or not anybody waits for the answer."""
    queue = await call.queue(wanted.queue)
    staged = await _parts(service, call, wanted)

    async def work() -> Answer:
        try:
            async with _alone(service, wanted):
                count = await _store(service).publish(queue.name, wanted.job, staged, epoch=wanted.epoch)
        except Exception as error:
            return failed(error, call.correlation)
        service.dispatcher.news(queue.name)
        return answer(Count(count))

    return await service.answers.once(call.key, work)


async def unstage(service: Service, call: Call, wanted: Stage) -> Answer:
    """Drop parts of a job. Where the job is being published that comes to its end first, and nothing is dropped."""
    queue = await call.queue(wanted.queue)
    staged = await _parts(service, call, wanted)
    async with _alone(service, wanted):
        await _store(service).discard(queue.name, wanted.job, staged)
    return answer({})


async def _parts(service: Service, call: Call, wanted: Stage) -> list[Staged]:
    """The parts of a job, each looked at as it comes in: no more is kept than was staged here."""
    seal = await service.sealer.seal()
    about = ("staged", wanted.queue, wanted.job)
    frames = Frames(call.chunks(service.limits.most_stream))
    found: dict[bytes, Staged] = {}
    while piece := await frames.piece(service.limits.most_body):
        try:
            sealed = _sealed.decode(piece)
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidRequest(f"a frame is no list of parts: {error}", "parts") from None
        for one in sealed:
            staged = _staged.decode(seal.open(one, *about, field="parts"))
            if found.setdefault(one, staged) is not staged:
                raise InvalidRequest("parts has one of them twice; send each once", "parts")
    return list(found.values())


def _alone(service: Service, wanted: Stage) -> asyncio.Lock:
    """A driver that gave up waiting for its publish drops the parts: not while they are being shown."""
    return service.publishing.setdefault((wanted.queue, wanted.job), asyncio.Lock())
