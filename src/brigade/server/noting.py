"""Notes beside a queue: what a stream of Spark has leased, so that whoever takes over after a crash finds it."""

from __future__ import annotations

from brigade.server.answers import Answer
from brigade.server.call import Call, answer
from brigade.server.service import Service
from brigade.stores import NotingStore
from brigade.stores.remote.wire_ports import NoteName, NoteValue

__all__ = ["drop_note", "read_note", "write_note"]

MOST_NOTE = 64 * 1024 * 1024
"""Bytes of a note: the leases of a micro-batch with some hundred thousand messages."""


def _notes(service: Service) -> NotingStore:
    return service.port(NotingStore, "keeps no notes")


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
