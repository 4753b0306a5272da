"""Consistent reads: what was written is there for everybody at once, in order, byte for byte."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator

from brigade.blobs import Copy, Create, Delete, Swap
from brigade.doctor.lab import Connection, Lab
from brigade.doctor.report import Finding, fail, ok, warn
from brigade.errors import MessageNotFound, StoreUnavailable

__all__ = ["copies", "keys", "listing", "listing_order", "read_after_write", "streams"]

STALE_READ = "a process may decide by what is no longer true: work is done twice or stalls"
STALE_LIST = "claimers miss messages, or see them where they no longer are; clean-up may take live objects for old ones"
CHUNK = 256 * 1024
NAMES = ("a", "a-b", "a.b", "a/b", "a0", "aB", "ab", "a_", "a~", "A", "date=2026-01-31", "x" * 200)


async def read_after_write(lab: Lab) -> Finding:
    """Reads on one connection just after writes on another."""
    rounds = lab.scale(5, 20)
    for turn in range(rounds):
        key = lab.key(f"read-{turn}")
        first, second = lab.body("first"), lab.body("second")
        etag = await lab.write(Create(key, first), by=turn)
        found = await lab.get(key, by=turn + 1)
        if found is None or (found.body, found.etag) != (first, etag):
            return fail(f"turn {turn + 1}: a new object could not be read at once, or not with its etag", STALE_READ)
        etag = await lab.write(Swap(key, second, etag), by=turn)
        found = await lab.get(key, by=turn + 1)
        if found is None or (found.body, found.etag) != (second, etag):
            return fail(f"turn {turn + 1}: a read after a swap gave old bytes or an old etag", STALE_READ)
        await lab.connection(turn).perform(Delete((key, f"{key}-missing")))
        if await lab.get(key, by=turn + 1) is not None:
            return fail(f"turn {turn + 1}: a deleted object could still be read", STALE_READ)
    return ok(f"{rounds} objects created, swapped and deleted; every read on another connection was right")


async def listing(lab: Lab) -> Finding:
    """Listings on one connection just after writes on another."""
    rounds = lab.scale(5, 20)
    prefix = lab.prefix("listed-")
    for turn in range(rounds):
        key = lab.key(f"listed-{turn:04}")
        etag = await lab.write(Create(key, lab.body("first")), by=turn)
        if await _listed(lab, prefix, key, turn + 1) != etag:
            return fail(f"turn {turn + 1}: a new object was not listed at once, or not with its etag", STALE_LIST)
        etag = await lab.write(Swap(key, lab.body("second"), etag), by=turn)
        if await _listed(lab, prefix, key, turn + 1) != etag:
            return fail(f"turn {turn + 1}: a listing after a swap gave the old etag", STALE_LIST)
        if turn % 2:
            await lab.connection(turn).perform(Delete((key,)))
            if await _listed(lab, prefix, key, turn + 1) is not None:
                return fail(f"turn {turn + 1}: a deleted object was still listed", STALE_LIST)
    return ok(f"{rounds} objects: every listing on another connection was right, etags too")


async def _listed(lab: Lab, prefix: str, key: str, by: int) -> str | None:
    page = await lab.list(prefix, by=by)
    return next((item.etag for item in page.items if item.key == key), None)


async def listing_order(lab: Lab) -> Finding:
    """Listings in byte order, or in that of the keys' parts between slashes; after a name, in pages."""
    prefix = lab.prefix("order/")
    names = sorted(
        lab.key(f"order/{number:03}{tail}") for number in range(7) for tail in ("-", "/x", "0", "B", "b", "~")
    )
    for number, name in enumerate(reversed(names)):
        await lab.write(Create(name, b"x"), by=number)
    whole = [item.key for item in (await lab.list(prefix)).items]
    by_parts = sorted(names, key=_parts)
    if whole not in (names, by_parts):
        return fail("a listing is not in byte order, or not whole", "messages are handed out in the wrong order")
    order, names = ("byte order", names) if whole == names else ("the order of folders", by_parts)
    paged: list[str] = []
    for by in range(len(names)):
        page = await lab.list(prefix, after=paged[-1] if paged else "", limit=5, by=by)
        paged += [item.key for item in page.items]
        if not page.more:
            break
    if paged != names:
        return fail("pages of a listing repeat or leave out objects", STALE_LIST)
    between = [item.key for item in (await lab.list(prefix, after=f"{prefix}003a")).items]
    after = f"{prefix}003a"
    rest = names[next(place for place, name in enumerate(names) if name > after and _parts(name) > _parts(after)) :]
    if between != rest:
        return fail("a listing after a name that doesn't exist starts in the wrong place", STALE_LIST)
    return ok(f"{len(names)} objects in {order}, whole and in pages")


def _parts(key: str) -> list[str]:
    return key.split("/")


async def keys(lab: Lab) -> Finding:
    """Keys with the characters and lengths that queues use."""
    bodies = {lab.key(f"keys/{name}" if "/" not in name else f"keys-{name}"): lab.body(name) for name in NAMES}
    for number, (key, body) in enumerate(bodies.items()):
        try:
            await lab.write(Create(key, body), by=number)
        except StoreUnavailable as error:
            return fail(f"{key[-60:]!r} could not be written: {error}", "queues and groups need such keys")
    for number, (key, body) in enumerate(bodies.items()):
        found = await lab.get(key, by=number + 1)
        if found is None or found.body != body:
            return fail(
                f"{key[-60:]!r} is mixed up with another key", "keys that differ in case or marks must be apart"
            )
    return ok(f"{len(bodies)} keys with marks, upper case and 200 characters kept apart")


async def copies(lab: Lab) -> Finding:
    """Copies inside the store."""
    source, target, body = lab.key("source"), lab.key("target"), lab.body("copied")
    await lab.write(Create(source, body))
    done = await lab.connection(1).perform(Copy(source, target))
    found = await lab.get(target, by=2)
    if not done or found is None or found.body != body:
        return fail("a copy is not there, or differs", "large payloads of dead letters would be lost")
    if await lab.connection().perform(Copy(lab.key("nothing"), lab.key("target-2"))):
        return fail("a copy of nothing was said to be made", "large payloads of dead letters would be lost")
    return ok("as the source")


async def streams(lab: Lab) -> Finding:
    """A payload that is written and read piece by piece."""
    count = lab.scale(4, 48)
    key, seen_early = lab.key("stream"), False
    writer, reader = lab.connection(), lab.connection(1)
    seed = lab.body("stream")

    def piece(number: int) -> bytes:
        return (seed + number.to_bytes(8, "big")) * (CHUNK // (len(seed) + 8))

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal seen_early
        for number in range(count):
            if number == count // 2:
                seen_early = await lab.get(key, by=2) is not None
            yield piece(number)

    size = await writer.run(lambda: _put(writer, key, chunks()))
    expected = 0
    for number in range(count):
        expected = zlib.crc32(piece(number), expected)
    read, checksum = await reader.run(lambda: _read(reader, key))
    said = f"{size / 1024 / 1024:.0f} MiB"
    if (read, checksum) != (size, expected):
        return fail(f"{said} were written, {read} bytes came back, or others", "large payloads are damaged")
    if seen_early:
        return warn(f"{said} came back, but part of them was visible too early", "a reader may see half a payload")
    await writer.perform(Delete((key,)))
    try:
        await reader.run(lambda: _read(reader, key))
    except MessageNotFound:
        return ok(f"{said} in pieces came back byte for byte")
    return fail("a deleted stream could still be read", STALE_READ)


async def _put(connection: Connection, key: str, chunks: AsyncIterator[bytes]) -> int:
    return await connection.blobs.put_stream(key, chunks)


async def _read(connection: Connection, key: str) -> tuple[int, int]:
    size = checksum = 0
    async for chunk in connection.blobs.get_stream(key):
        size += len(chunk)
        checksum = zlib.crc32(chunk, checksum)
    return size, checksum
