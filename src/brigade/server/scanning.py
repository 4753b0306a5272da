"""Whole tables over HTTP, in pieces: what lies in a queue, and its history. Answers go out as the store reads."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from brigade.server.answers import Answer
from brigade.server.call import Call, Stream, answer
from brigade.server.frames import framed
from brigade.server.service import Service
from brigade.stores import Block, Joined, Same, ScanningStore
from brigade.stores.history import HistoryPart, HistoryStore, Record
from brigade.stores.remote.wire_ports import (
    ROWS,
    Cut,
    PartsOfHistory,
    Pieces,
    ReadHistory,
    Scan,
    Scanned,
    SinceThen,
)

__all__ = ["history_parts", "pieces", "read_history", "scan"]

_pack = msgspec.msgpack.Encoder()
_json = msgspec.json.Encoder()


def _scanning(service: Service) -> ScanningStore:
    return service.port(ScanningStore, "cannot be read as a table")


def _history(service: Service) -> HistoryStore:
    return service.port(HistoryStore, "doesn't hand out its history")


async def pieces(service: Service, call: Call, wanted: Pieces) -> Answer:
    """Cut a table into pieces that any client with the right can scan, through any server of this store."""
    queue = await call.queue(wanted.queue)
    seal = await service.sealer.seal()
    found = await _scanning(service).pieces(queue.name, wanted.table, wanted.most, since=wanted.since)
    return answer(Cut([seal.close(one, "piece", queue.name, wanted.table) for one in found]))


async def scan(service: Service, call: Call, wanted: Scan) -> Stream:
    queue = await call.queue(wanted.queue)
    seal = await service.sealer.seal()
    piece = seal.open(wanted.piece, "piece", queue.name, wanted.table, field="piece")
    return framed(service, call, _packed(_scanning(service).scan(queue.name, wanted.table, piece)))


async def _packed(blocks: AsyncIterator[Block]) -> AsyncGenerator[bytes]:
    async with contextlib.aclosing(cast("AsyncGenerator[Block]", blocks)) as running:
        async for block in running:
            same = {name: column.value for name, column in block.columns.items() if isinstance(column, Same)}
            lists: dict[str, list[Any]] = {
                name: column.values() if isinstance(column, Joined) else column
                for name, column in block.columns.items()
                if not isinstance(column, Same)
            }
            for start in range(0, block.count, ROWS):
                end = min(start + ROWS, block.count)
                some = {name: column[start:end] for name, column in lists.items()}
                yield _pack.encode(Scanned(end - start, some, same))


async def history_parts(service: Service, call: Call, wanted: SinceThen) -> Answer:
    queue = await call.queue(wanted.queue)
    seal = await service.sealer.seal()
    parts = await _history(service).history_parts(queue.name, wanted.since)
    sealed = [replace(one, key=seal.close_text(one.key, "history", queue.name)) for one in parts]
    return answer(PartsOfHistory(sealed))


async def read_history(service: Service, call: Call, wanted: ReadHistory) -> Stream:
    queue = await call.queue(wanted.queue)
    seal = await service.sealer.seal()
    key = seal.open_text(wanted.key, "history", queue.name, field="key")
    return framed(service, call, _records(_history(service), HistoryPart(queue.name, key, 0, 0)))


async def _records(store: HistoryStore, part: HistoryPart) -> AsyncGenerator[bytes]:
    records: list[Record] = await store.read_history(part)
    for start in range(0, len(records), ROWS):
        yield _json.encode(records[start : start + ROWS])
