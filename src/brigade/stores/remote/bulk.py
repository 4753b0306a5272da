"""Bulk jobs, tables and history through a server: large things in portions, each of which may be sent or read again."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import msgspec

from brigade.errors import BrigadeError, PayloadTooLarge
from brigade.model import FailureInfo
from brigade.stores import Block, Outgoing, Same, ScannedTable, Staged
from brigade.stores.history import Attempt, HistoryPart, Record
from brigade.stores.remote.client import Client
from brigade.stores.remote.frames import frame, last_frame, read_frames
from brigade.stores.remote.wire import FRAME_SIZE, Count, Info, Nothing
from brigade.stores.remote.wire_ports import Parts, ReadHistory, Row, Scan, Scanned

__all__ = ["discard", "publish", "read_history", "scan", "stage"]

PORTION = 8 * 1024 * 1024
MOST_ROWS = 10_000
"""Bytes and messages of one request: so much is sent again if its answer is lost."""

ROOM = 64
"""Bytes of a frame beside its messages, at the most."""

MOST_PARTS = 1000
PUBLISHING = 900.0
"""Seconds for which an answer to a publish is awaited: a store may have very many parts to show."""

_pack = msgspec.msgpack.Encoder()
_details = msgspec.msgpack.Decoder(list[bytes])
_scanned = msgspec.msgpack.Decoder(Scanned)
_records = msgspec.json.Decoder(list[Record])


async def stage(
    client: Client, path: str, info: Info, queue: str, job: str, messages: Sequence[Outgoing], at_ms: int
) -> Staged:
    """Stage messages, some megabytes a request.

    A request whose answer was lost is sent again: it stages other parts, and those of the first try, which nobody
    knows, are swept after a week. Of a call that fails the parts that are known are dropped.
    """
    parts: list[bytes] = []
    query = {"queue": queue, "job": job}
    try:
        for some in _portions(messages, info):
            made = await client.send_again(path + "stage", _sender(some, _frame_size(info)), Parts, query)
            parts += made.parts
    except BaseException:
        with contextlib.suppress(BrigadeError):
            await _drop(client, path, info, queue, job, parts)
        raise
    return Staged(len(messages), at_ms, _pack.encode(parts))


def _portions(messages: Sequence[Outgoing], info: Info) -> Iterator[list[msgspec.Raw]]:
    """The messages, packed, in portions of a request."""
    rows: list[msgspec.Raw] = []
    size, most = 0, min(PORTION, info.most_stream // 2)
    for one in messages:
        if not isinstance(one.payload, bytes):
            raise TypeError("a staged message's payload is bytes, not a stream")
        row = _pack.encode(_row(one, one.payload))
        if len(row) + ROOM > info.most_body:
            raise PayloadTooLarge(
                f"a message takes {len(row)} bytes; in a bulk job this server takes {info.most_body - ROOM}: raise its "
                "--max-body, or send a reference"
            )
        if rows and (len(rows) >= MOST_ROWS or size + len(row) > most):
            yield rows
            rows, size = [], 0
        rows.append(msgspec.Raw(row))
        size += len(row)
    if rows:
        yield rows


def _row(one: Outgoing, payload: bytes) -> Row:
    return Row(
        payload,
        one.content_type,
        one.priority,
        one.delay,
        one.id,
        one.group,
        one.ttl,
        one.max_attempts,
        one.attributes,
        one.correlation_id,
    )


def _sender(rows: Sequence[msgspec.Raw], most: int) -> Callable[[], AsyncIterator[bytes]]:
    async def chunks() -> AsyncIterator[bytes]:
        some: list[msgspec.Raw] = []
        size = 0
        for row in rows:
            length = len(bytes(row))
            if some and size + length > most:
                yield frame(_pack.encode(some))
                some, size = [], 0
            some.append(row)
            size += length
        if some:
            yield frame(_pack.encode(some))
        yield last_frame()

    return chunks


async def publish(
    client: Client, path: str, info: Info, queue: str, job: str, staged: Sequence[Staged], epoch: int | None
) -> int:
    """Publish a job. It may be asked for again: a job, or an epoch, is published once, and the second time gives 0."""
    query: dict[str, str | int] = {"queue": queue, "job": job, **({} if epoch is None else {"epoch": epoch})}
    body = _sender([msgspec.Raw(_pack.encode(part)) for part in _parts(staged)], _frame_size(info))
    key = client.ids.nonce()
    try:
        return (await client.send_again(path + "publish", body, Count, query, key=key, answering=PUBLISHING)).count
    except PayloadTooLarge as error:
        raise PayloadTooLarge(
            f"the job has so many parts that the server takes no list of them ({error}); raise its --max-stream, write "
            "larger batches, or several jobs"
        ) from error


async def discard(client: Client, path: str, info: Info, queue: str, job: str, staged: Sequence[Staged]) -> None:
    await _drop(client, path, info, queue, job, _parts(staged))


async def _drop(client: Client, path: str, info: Info, queue: str, job: str, parts: Sequence[bytes]) -> None:
    for start in range(0, len(parts), MOST_PARTS):
        some = [msgspec.Raw(_pack.encode(part)) for part in parts[start : start + MOST_PARTS]]
        query = {"queue": queue, "job": job}
        body = _sender(some, _frame_size(info))
        await client.send_again(path + "unstage", body, Nothing, query, answering=PUBLISHING)


def _frame_size(info: Info) -> int:
    return min(FRAME_SIZE, info.most_body // 2)


def _parts(staged: Sequence[Staged]) -> list[bytes]:
    return [part for one in staged for part in _details.decode(one.detail)]


async def scan(client: Client, path: str, queue: str, table: ScannedTable, piece: bytes) -> AsyncIterator[Block]:
    """The rows of a piece, as they come."""
    chunks = client.stream(path + "scan", Scan(queue=queue, table=table, piece=piece))
    async with contextlib.aclosing(chunks):  # pyright: ignore[reportArgumentType]
        async for packed in read_frames(chunks):
            yield _block(_scanned.decode(packed), table)


def _block(some: Scanned, table: ScannedTable) -> Block:
    kinds: dict[str, Any] = {"failure": list[FailureInfo | None], "origin": list[FailureInfo | None]}
    if table == "history":
        kinds["attempts"] = list[list[Attempt]]
    columns: dict[str, list[Any] | Same] = {name: Same(value) for name, value in some.same.items()}
    for name, column in some.columns.items():
        columns[name] = msgspec.convert(column, kinds[name]) if name in kinds else column
    return Block(some.count, columns)


async def read_history(client: Client, path: str, part: HistoryPart) -> list[Record]:
    """The records of a part. One that breaks off on its way is read again by whoever wants it."""
    found: list[Record] = []
    chunks = client.stream(path + "history", ReadHistory(queue=part.queue, key=part.key))
    async with contextlib.aclosing(chunks):  # pyright: ignore[reportArgumentType]
        async for packed in read_frames(chunks):
            found += _records.decode(packed)
    return found
