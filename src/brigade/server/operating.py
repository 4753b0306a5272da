"""What operators look at and decide, over HTTP. Looking takes no lease; cursors carry the server's seal."""

from __future__ import annotations

from datetime import date

from msgspec.structs import replace

from brigade.crypto.places import crc_of
from brigade.model import MessageInfo
from brigade.server.answers import Answer
from brigade.server.call import Call, InvalidRequest, answer, failed
from brigade.server.service import Service
from brigade.stores.operating import OperatedStore, Sought
from brigade.stores.remote.wire import Count, One
from brigade.stores.remote.wire_ports import Browse, Days, Few, GroupList, HeldList, Outcomes, Override, Tailing

__all__ = ["browse", "groups", "leases", "outcomes", "override", "story", "tail"]

MOST_DAYS = 400


def _operated(service: Service) -> OperatedStore:
    return service.port(OperatedStore, "can't be operated")


def _told(info: MessageInfo) -> MessageInfo:
    return replace(info, checksum=crc_of(info.checksum))


async def browse(service: Service, call: Call, wanted: Browse) -> Answer:
    queue = await call.queue(wanted.queue)
    seal, about = await service.sealer.seal(), ("browse", queue.name)
    after = None if wanted.after is None else seal.open_text(wanted.after, *about, field="after")
    now = service.hub.clock.now() if wanted.now_ms is None else wanted.now_ms
    page = await _operated(service).browse(
        queue.name,
        Sought(wanted.state, now, wanted.newest_ms, wanted.attempts, wanted.text),
        limit=wanted.limit,
        most=min(wanted.most, service.limits.most_listed),
        after=after,
        held=wanted.held,
    )
    following = None if page.after is None else seal.close_text(page.after, *about)
    return answer(replace(page, messages=[_told(one) for one in page.messages], after=following))


async def story(service: Service, call: Call, wanted: One) -> Answer:
    queue = await call.queue(wanted.queue)
    found = await _operated(service).story(queue.name, wanted.id)
    return answer(replace(found, message=_told(found.message)))


async def leases(service: Service, call: Call, wanted: Few) -> Answer:
    queue = await call.queue(wanted.queue)
    return answer(HeldList(await _operated(service).leases(queue.name, min(wanted.limit, service.limits.most_listed))))


async def groups(service: Service, call: Call, wanted: Few) -> Answer:
    queue = await call.queue(wanted.queue)
    return answer(GroupList(await _operated(service).groups(queue.name, min(wanted.limit, service.limits.most_listed))))


async def tail(service: Service, call: Call, wanted: Tailing) -> Answer:
    queue = await call.queue(wanted.queue)
    seal, about = await service.sealer.seal(), ("tail", queue.name)
    after = None if wanted.after is None else seal.open_text(wanted.after, *about, field="after")
    found = await _operated(service).tail(queue.name, after, since_ms=wanted.since_ms, limit=wanted.limit)
    return answer(replace(found, after=seal.close_text(found.after, *about)))


async def outcomes(service: Service, call: Call, wanted: Outcomes) -> Answer:
    queue = await call.queue(wanted.queue)
    days = wanted.days.split(",")
    if len(days) > MOST_DAYS:
        raise InvalidRequest(f"days has {len(days)} days; send up to {MOST_DAYS}", "days")
    for day in days:
        try:
            date.fromisoformat(day)
        except ValueError:
            raise InvalidRequest(f"days has {day!r}, which is no day; write YYYY-MM-DD", "days") from None
    return answer(Days(await _operated(service).outcomes(queue.name, days, wanted.sample)))


async def override(service: Service, call: Call, wanted: Override) -> Answer:
    """Decide over messages. Done twice it changes nothing more: the second time they are no longer as they were."""
    queue = await call.queue(wanted.queue)

    async def work() -> Answer:
        try:
            count = await _operated(service).override(queue.name, wanted.ids, wanted.action)
        except Exception as error:
            return failed(error, call.correlation)
        if wanted.action != "discard":
            service.dispatcher.news(queue.name)
        return answer(Count(count))

    return await service.answers.once(call.key, work)
