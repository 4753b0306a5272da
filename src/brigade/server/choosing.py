"""Leases without their messages: for others to load, or on messages that somebody has chosen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from starlette.types import Receive, Send

from brigade.checks import seconds
from brigade.model import Grant
from brigade.names import check_owner
from brigade.server.answers import Answer
from brigade.server.call import Call, InvalidRequest, Stream, answer, failed
from brigade.server.dequeueing import deliver
from brigade.server.dispatcher import Held
from brigade.server.service import Service
from brigade.stores import ChoosingStore
from brigade.stores.remote.wire import Count
from brigade.stores.remote.wire_ports import ClaimThese, GrantList, Leasing, Reprioritize

__all__ = ["claim_these", "lease", "reprioritize"]

MOST_LEASED = 10_000
"""Messages of one answer: without payloads they take little."""


def _choosing(service: Service) -> ChoosingStore:
    return service.port(ChoosingStore, "can't pick messages out of a queue")


def _check_refs(service: Service, refs: Sequence[str]) -> None:
    if not 1 <= len(refs) <= service.limits.most_messages:
        raise InvalidRequest(
            f"refs has {len(refs)} messages; send 1 to {service.limits.most_messages} at a time", "refs"
        )


async def lease(service: Service, call: Call, wanted: Leasing) -> Stream:
    """Lease messages for others to load. They don't come here, so they don't pass the dispatcher's line either."""
    queue = await call.queue(wanted.queue)
    limit = min(wanted.limit, MOST_LEASED)
    owner, visibility = check_owner(wanted.owner), seconds(wanted.visibility, "visibility", low=0.001)
    store = service.hub.store
    return _granted(
        service, call, queue.name, lambda: store.claim(queue.name, limit=limit, owner=owner, visibility=visibility)
    )


async def claim_these(service: Service, call: Call, wanted: ClaimThese) -> Stream:
    """Lease chosen messages, wherever they are in line."""
    queue = await call.queue(wanted.queue)
    _check_refs(service, wanted.refs)
    owner, visibility = check_owner(wanted.owner), seconds(wanted.visibility, "visibility", low=0.001)
    store = _choosing(service)

    return _granted(
        service,
        call,
        queue.name,
        lambda: store.claim_these(queue.name, wanted.refs, owner=owner, visibility=visibility),
    )


def _granted(service: Service, call: Call, queue: str, win: Callable[[], Awaitable[list[Grant]]]) -> Stream:
    """What a client that has gone would have got is given back, or its leases run out."""

    async def work() -> Answer:
        try:
            grants = await win()
        except Exception as error:
            return failed(error, call.correlation)
        made = answer(GrantList(grants))
        if grants:
            made.undo = lambda: service.dispatcher.give_back(
                queue, [Held(message, grant) for grant in grants for message in grant.held()]
            )
        return made

    async def stream(receive: Receive, send: Send) -> None:
        await deliver(service, call, receive, send, work)

    return stream


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
