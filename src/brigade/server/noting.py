"""Notes beside a queue, and messages that somebody has chosen: what streams and bulk operations of Spark stand on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.types import Receive, Send

from brigade.checks import seconds
from brigade.errors import ConfigError
from brigade.model import Grant, Message
from brigade.names import check_owner
from brigade.server.answers import Answer
from brigade.server.call import Call, InvalidRequest, Stream, answer, failed
from brigade.server.dequeueing import deliver
from brigade.server.dispatcher import Held
from brigade.server.service import Service
from brigade.stores import ChoosingStore, NotingStore
from brigade.stores.remote.wire import Count
from brigade.stores.remote.wire_ports import ClaimThese, GrantList, NoteName, NoteValue, Reprioritize

__all__ = ["claim_these", "drop_note", "read_note", "reprioritize", "write_note"]

MOST_NOTE = 64 * 1024 * 1024
"""Bytes of a note: the leases of a micro-batch with some hundred thousand messages."""


def _notes(service: Service) -> NotingStore:
    store = service.hub.store
    if not isinstance(store, NotingStore):
        raise ConfigError("this server's store keeps no notes")
    return store


def _choosing(service: Service) -> ChoosingStore:
    store = service.hub.store
    if not isinstance(store, ChoosingStore):
        raise ConfigError("this server's store can't pick messages out of a queue")
    return store


async def write_note(service: Service, call: Call, wanted: NoteName) -> Answer:
    """Write a note unless there is one; gives the other one. Repeated, it finds what it wrote itself."""
    queue = await call.queue(wanted.queue)
    most = min(MOST_NOTE, service.limits.most_stream)
    value = b"".join([chunk async for chunk in call.chunks(most)])
    there = await _notes(service).write_note(queue.name, wanted.name, value)
    return answer(NoteValue(None if there == value else there))


async def read_note(service: Service, call: Call, wanted: NoteName) -> Answer:
    queue = await call.queue(wanted.queue)
    return answer(NoteValue(await _notes(service).read_note(queue.name, wanted.name)))


async def drop_note(service: Service, call: Call, wanted: NoteName) -> Answer:
    queue = await call.queue(wanted.queue)
    await _notes(service).drop_note(queue.name, wanted.name)
    return answer({})


def _check_refs(service: Service, refs: Sequence[str]) -> None:
    if not 1 <= len(refs) <= service.limits.most_messages:
        raise InvalidRequest(
            f"refs has {len(refs)} messages; send 1 to {service.limits.most_messages} at a time", "refs"
        )


async def claim_these(service: Service, call: Call, wanted: ClaimThese) -> Stream:
    """Lease chosen messages. What a client that has gone would have got is given back, or its leases run out."""
    queue = await call.queue(wanted.queue)
    _check_refs(service, wanted.refs)
    owner, visibility = check_owner(wanted.owner), seconds(wanted.visibility, "visibility", low=0.001)
    store = _choosing(service)

    async def work() -> Answer:
        try:
            grants = await store.claim_these(queue.name, wanted.refs, owner=owner, visibility=visibility)
        except Exception as error:
            return failed(error, call.correlation)
        made = answer(GrantList(grants))
        if grants:
            made.undo = lambda: service.dispatcher.give_back(queue.name, _held(grants))
        return made

    return _delivered(service, call, work)


def _delivered(service: Service, call: Call, work: Callable[[], Awaitable[Answer]]) -> Stream:
    async def stream(receive: Receive, send: Send) -> None:
        await deliver(service, call, receive, send, work)

    return stream


def _held(grants: Sequence[Grant]) -> list[Held]:
    return [
        Held(
            Message.held(
                queue=grant.queue,
                id=f"{grant.segment}-{place}",
                ref=f"{grant.segment}-{place}",
                token=f"{grant.token}.{place}",
                version=grant.version,
                owner=grant.owner,
            ),
            grant,
        )
        for grant in grants
        for place in grant.members
    ]


async def reprioritize(service: Service, call: Call, wanted: Reprioritize) -> Answer:
    """Give waiting messages another priority. Done twice it changes nothing more: what was moved is no longer there."""
    queue = await call.queue(wanted.queue)
    _check_refs(service, wanted.refs)

    async def work() -> Answer:
        try:
            count = await _choosing(service).reprioritize(queue.name, wanted.refs, wanted.priority)
        except Exception as error:
            return failed(error, call.correlation)
        service.dispatcher.news(queue.name)
        return answer(Count(count))

    return await service.answers.once(call.key, work)
