"""Queues as administrators see them: policies, statistics, looking, moving, dropping; and workflow state."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from brigade._version import __version__
from brigade.checks import as_json, check_ids, check_limit
from brigade.crypto.places import crc_of
from brigade.errors import ConfigError, PermissionDenied
from brigade.policy import decode_policy, encode_policy
from brigade.server.answers import Answer
from brigade.server.call import Call, InvalidRequest, answer, check_ref, failed
from brigade.server.gate import Right
from brigade.server.service import Service
from brigade.stores.remote.wire import (
    Count,
    Found,
    Info,
    Listing,
    Names,
    One,
    Opening,
    OpenQueue,
    Parked,
    Policy,
    Purge,
    QueueOnly,
    Redrive,
    Ref,
    SavedState,
    SaveState,
    StateValue,
    Swept,
)

__all__ = [
    "delete",
    "failures",
    "forget",
    "get",
    "info",
    "list_queues",
    "load_state",
    "open_queue",
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
CREATING = frozenset({Right.ENQUEUE, Right.ADMIN})


async def info(service: Service, call: Call, wanted: None) -> Answer:
    limits = service.limits
    return answer(
        Info(
            version=__version__,
            server=service.name,
            now_ms=service.hub.clock.now(),
            most_messages=limits.most_messages,
            most_listed=limits.most_listed,
            most_wait=limits.most_wait,
            most_body=limits.most_body,
            most_stream=limits.most_stream,
        )
    )


async def list_queues(service: Service, call: Call, wanted: None) -> Answer:
    return answer(Names([name for name in await service.hub.queues() if call.may(name)]))


async def read_policy(service: Service, call: Call, wanted: QueueOnly) -> Answer:
    queue = await service.configure(wanted.queue, None, replace=False, create=False)
    return answer(Policy(encode_policy(queue.policy)))


async def open_queue(service: Service, call: Call, wanted: Opening) -> Answer:
    """A queue's policy, for whoever has any right to the queue; whoever may enqueue may create it, too."""
    create = wanted.create and call.may(wanted.queue, CREATING)
    queue = await service.configure(wanted.queue, None, replace=False, create=create)
    return answer(Policy(encode_policy(queue.policy)))


async def write_policy(service: Service, call: Call, wanted: OpenQueue) -> Answer:
    """Create a queue, or read or replace its policy."""
    try:
        policy = None if wanted.policy is None else decode_policy(wanted.policy, source="policy")
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise InvalidRequest(str(error), "policy") from None
        raise InvalidRequest(f"policy is not one: {error}", "policy") from None
    letters = policy.failure.dead_letter_queue if policy is not None else None
    if letters is not None and not call.may(letters, CREATING):
        raise PermissionDenied(f"this needs the right to {' or '.join(sorted(CREATING))} on queue {letters!r}, too")
    queue = await service.configure(wanted.queue, policy, replace=wanted.replace, create=wanted.create)
    return answer(Policy(encode_policy(queue.policy)))


async def stats(service: Service, call: Call, wanted: QueueOnly) -> Answer:
    return answer(await (await call.queue(wanted.queue)).stats())


async def peek(service: Service, call: Call, wanted: Listing) -> Answer:
    limit = check_limit(wanted.limit, service.limits.most_listed)
    found = await (await call.queue(wanted.queue)).peek(limit)
    return answer(Found([replace(one, checksum=crc_of(one.checksum)) for one in found]))


async def get(service: Service, call: Call, wanted: One) -> Answer:
    found = await (await call.queue(wanted.queue)).get(wanted.id)
    return answer(replace(found, checksum=crc_of(found.checksum)))


async def failures(service: Service, call: Call, wanted: Listing) -> Answer:
    limit = check_limit(wanted.limit, service.limits.most_listed)
    return answer(Parked(await (await call.queue(wanted.queue)).failed(limit)))


async def redrive(service: Service, call: Call, wanted: Redrive) -> Answer:
    queue = await call.queue(wanted.queue)
    limit = check_limit(wanted.limit, MOST_LISTED)
    count = await queue.redrive(check_ids(wanted.ids), limit=limit)
    service.dispatcher.news(wanted.queue)
    return answer(Count(count))


async def purge(service: Service, call: Call, wanted: Purge) -> Answer:
    queue = await call.queue(wanted.queue)
    return answer(Count(await queue.purge(failed_only=wanted.failed_only)))


async def pause(service: Service, call: Call, wanted: QueueOnly) -> Answer:
    queue = await call.queue(wanted.queue)
    await queue.pause()
    return answer({})


async def resume(service: Service, call: Call, wanted: QueueOnly) -> Answer:
    queue = await call.queue(wanted.queue)
    await queue.resume()
    service.dispatcher.news(queue.name)
    return answer({})


async def delete(service: Service, call: Call, wanted: QueueOnly) -> Answer:
    try:
        await (await call.queue(wanted.queue)).delete()
    finally:
        service.forget(wanted.queue)
        service.dispatcher.news(wanted.queue)
    return answer({})


async def sweep(service: Service, call: Call, wanted: QueueOnly) -> Answer:
    queue = await call.queue(wanted.queue)
    return answer(Swept(await queue.sweep(), service.failures(queue.name)))


async def forget(service: Service, call: Call, wanted: QueueOnly) -> Answer:
    """Finish what was settled, and forget what this process remembers of the queue."""
    queue = await call.queue(wanted.queue)
    await queue.clear_queue_cache()
    return answer({})


async def load_state(service: Service, call: Call, wanted: Ref) -> Answer:
    queue = await call.queue(wanted.queue)
    found = await service.hub.store.load_state(queue.name, check_ref(wanted.ref))
    if found is None:
        return answer(StateValue(value=None, etag=None))
    return answer(StateValue(value=msgspec.Raw(found[0]), etag=found[1]))


async def save_state(service: Service, call: Call, wanted: SaveState) -> Answer:
    queue = await call.queue(wanted.queue)
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
