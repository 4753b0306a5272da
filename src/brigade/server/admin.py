"""Queues as administrators see them: policies, statistics, looking, moving, dropping; and workflow state."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from brigade._version import __version__
from brigade.checks import as_json, check_ids, check_limit
from brigade.errors import BrigadeError, ConfigError, QueueNotFound
from brigade.model import Message, MessageInfo
from brigade.policy import decode_policy, encode_policy
from brigade.server.answers import Answer
from brigade.server.call import Call, InvalidRequest, answer, check_ref, failed, headers_of, send_answer
from brigade.server.service import Service
from brigade.stores.remote.wire import (
    Count,
    Found,
    Info,
    Names,
    OpenQueue,
    Parked,
    Policy,
    Purge,
    QueueOnly,
    Redrive,
    SavedState,
    SaveState,
    ShortText,
    StateValue,
    Swept,
)

__all__ = [
    "PayloadEndpoint",
    "delete",
    "failures",
    "forget",
    "get",
    "info",
    "list_queues",
    "load_state",
    "pause",
    "peek",
    "purge",
    "read_policy",
    "redrive",
    "resume",
    "save_state",
    "stats",
    "sweep",
    "write_policy",
]

MOST_STATE = 1024 * 1024
MOST_LISTED = 1_000_000_000


class _List(QueueOnly):
    limit: int = 10


class _One(QueueOnly):
    id: ShortText


class _Ref(QueueOnly):
    ref: ShortText


async def info(service: Service, _: Call) -> Answer:
    limits = service.limits
    return answer(
        Info(
            version=__version__,
            server=service.name,
            now_ms=service.hub.clock.now(),
            most_messages=limits.most_messages,
            most_listed=limits.most_listed,
            most_wait=limits.most_wait,
        )
    )


async def list_queues(service: Service, _: Call) -> Answer:
    return answer(Names(await service.hub.queues()))


async def read_policy(service: Service, call: Call) -> Answer:
    wanted = call.query(QueueOnly)
    queue = await service.configure(wanted.queue, None, replace=False, create=False)
    return answer(Policy(encode_policy(queue.policy)))


async def write_policy(service: Service, call: Call) -> Answer:
    """Create a queue, or read or replace its policy."""
    wanted = await call.json(OpenQueue)
    try:
        policy = None if wanted.policy is None else decode_policy(wanted.policy, source="policy")
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise InvalidRequest(str(error), "policy") from None
        raise InvalidRequest(f"policy is not one: {error}", "policy") from None
    queue = await service.configure(wanted.queue, policy, replace=wanted.replace, create=wanted.create)
    return answer(Policy(encode_policy(queue.policy)))


async def stats(service: Service, call: Call) -> Answer:
    return answer(await (await service.queue(call.query(QueueOnly).queue)).stats())


async def peek(service: Service, call: Call) -> Answer:
    wanted = call.query(_List)
    limit = check_limit(wanted.limit, service.limits.most_listed)
    return answer(Found(await (await service.queue(wanted.queue)).peek(limit)))


async def get(service: Service, call: Call) -> Answer:
    wanted = call.query(_One)
    return answer(await (await service.queue(wanted.queue)).get(wanted.id))


async def failures(service: Service, call: Call) -> Answer:
    wanted = call.query(_List)
    limit = check_limit(wanted.limit, service.limits.most_listed)
    return answer(Parked(await (await service.queue(wanted.queue)).failed(limit)))


async def redrive(service: Service, call: Call) -> Answer:
    wanted = await call.json(Redrive)
    queue = await service.queue(wanted.queue)
    limit = check_limit(wanted.limit, MOST_LISTED)
    count = await queue.redrive(check_ids(wanted.ids), limit=limit)
    service.dispatcher.news(wanted.queue)
    return answer(Count(count))


async def purge(service: Service, call: Call) -> Answer:
    wanted = await call.json(Purge)
    queue = await service.queue(wanted.queue)
    if not wanted.failed_only:
        await service.dispatcher.drop_ahead(wanted.queue)
    return answer(Count(await queue.purge(failed_only=wanted.failed_only)))


async def pause(service: Service, call: Call) -> Answer:
    queue = await service.queue((await call.json(QueueOnly)).queue)
    await queue.pause()
    await service.dispatcher.drop_ahead(queue.name)
    return answer({})


async def resume(service: Service, call: Call) -> Answer:
    queue = await service.queue((await call.json(QueueOnly)).queue)
    await queue.resume()
    service.dispatcher.news(queue.name)
    return answer({})


async def delete(service: Service, call: Call) -> Answer:
    wanted = await call.json(QueueOnly)
    try:
        await (await service.queue(wanted.queue)).delete()
    finally:
        service.forget(wanted.queue)
        service.dispatcher.news(wanted.queue)
    return answer({})


async def sweep(service: Service, call: Call) -> Answer:
    queue = await service.queue((await call.json(QueueOnly)).queue)
    return answer(Swept(await queue.sweep(), service.failures(queue.name)))


async def forget(service: Service, call: Call) -> Answer:
    """Finish what was settled, and forget what this process remembers of the queue."""
    queue = await service.queue((await call.json(QueueOnly)).queue)
    await queue.clear_queue_cache()
    return answer({})


async def load_state(service: Service, call: Call) -> Answer:
    wanted = call.query(_Ref)
    queue = await service.queue(wanted.queue)
    found = await service.hub.store.load_state(queue.name, check_ref(wanted.ref))
    if found is None:
        return answer(StateValue(value=None, etag=None))
    return answer(StateValue(value=msgspec.Raw(found[0]), etag=found[1]))


async def save_state(service: Service, call: Call) -> Answer:
    wanted = await call.json(SaveState)
    queue = await service.queue(wanted.queue)
    value = as_json(wanted.value, "value")
    if len(value) > MOST_STATE:
        raise InvalidRequest(f"value takes {len(value)} bytes; keep it under 1 MiB", "value")

    async def work() -> Answer:
        try:
            ref = check_ref(wanted.ref)
            etag = await service.hub.store.save_state(
                queue.name, ref, value, wanted.etag, wanted.correlation_id or call.correlation
            )
        except Exception as error:
            return failed(error, call.correlation)
        return answer(SavedState(etag))

    return await service.answers.once(call.key, work)


class PayloadEndpoint:
    """The bytes of a payload that is stored apart, as they are read. Where the store fails the answer breaks off."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, correlation = self._service, ""
        try:
            call = Call(Request(scope, receive), service)
            correlation = call.correlation
            wanted = call.query(_Ref)
            queue = await service.queue(wanted.queue)
            found = await queue.get(check_ref(wanted.ref))
            if found.finished_at_ms is not None and found.body is None:
                raise QueueNotFound(f"message {found.id!r} has ended; its payload is not kept")
        except ClientDisconnect:
            return
        except Exception as error:
            made = failed(error, correlation)
            await send_answer(send, made, headers_of(made, service, correlation))
            return
        made = Answer(200, b"", {"Content-Type": found.content_type, "Content-Length": str(found.size)})
        if not found.content_type.isascii():
            made.headers["Content-Type"] = "application/octet-stream"
        await self._stream(send, made, found, correlation)

    async def _stream(self, send: Send, made: Answer, found: MessageInfo, correlation: str) -> None:
        service = self._service
        headers = {**headers_of(made, service, correlation), **made.headers}
        encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        started = False
        try:
            chunks = _chunks(service, found)
            async for chunk in chunks:
                if not started:
                    started = True
                    await send({"type": "http.response.start", "status": 200, "headers": encoded})
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": encoded})
            await send({"type": "http.response.body", "body": b""})
        except BrigadeError as error:
            if started:
                raise
            broken = failed(error, correlation)
            await send_answer(send, broken, headers_of(broken, service, correlation))


async def _chunks(service: Service, found: MessageInfo):
    if found.body is not None:
        yield found.body
        return
    held = Message.held(queue=found.queue, id=found.id, ref=found.ref, token="")
    async for chunk in service.hub.store.open_payload(replace(held, size=found.size)):
        yield chunk
