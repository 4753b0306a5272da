"""Blobs in a cloud object store: S3 and what is compatible with it, Azure, Google Cloud, through `obstore`.

Every request is tried once by the library and again, where that is right, by this module, because only the protocol
may repeat a write that is in doubt: a segment whose create was applied may have been worked off and deleted by the
time a second try arrives, which would bring it back. So a conditional write answers `UNKNOWN` as soon as it is in
doubt, and is tried again here only after an answer that says that nothing was applied. Reads, listings and deletes
may be repeated.

Requests run on threads, which bound how many there are at a time: the library's async calls now and then abort the
process at its end (12 of 40 short runs), and cost as much. Listings have a few threads and connections of their own:
what the largest answer took is kept by the allocator for each thread and by the library for each connection, and
no answer is as large as a page of a listing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, TypeVar

from brigade.blobs import (
    CONFLICT,
    UNKNOWN,
    UNSUPPORTED,
    Blob,
    Copy,
    Create,
    Delete,
    DeleteIf,
    Get,
    Item,
    List,
    Op,
    Page,
    Refused,
    Swap,
)
from brigade.blobs.cloud_clock import Offset
from brigade.blobs.cloud_connect import Bucket, load_obstore
from brigade.blobs.cloud_errors import NOT_APPLIED, TRY_AGAIN, Cause, Trouble, diagnose, explain
from brigade.blobs.cloud_http import Answer, date_of, request, trouble_of
from brigade.blobs.pacing import Pace, pause
from brigade.blobs.threads import Threads
from brigade.clock import Clock, SystemClock
from brigade.errors import BrigadeError, MessageNotFound
from brigade.ids import Ids

__all__ = ["CloudBlobs"]

log = logging.getLogger("brigade")
T = TypeVar("T")
PAGE = 1000
LISTINGS_AT_ONCE = 4
PART = 8 * 1024 * 1024
PARTS_AT_ONCE = 4
CLOCK_EVERY = 600.0
CLOCK_SAMPLES = 4
CLOCK_TIMEOUT = 5.0
SIGNED_FOR = timedelta(minutes=5)
DELETES_AT_ONCE = {"s3": 1000, "az": 256, "gs": 1}
GOOGLE_PACE = (1.0, 3)


class CloudBlobs:
    """A bucket, or the part of one under a prefix."""

    immediate = False
    pledges = False
    prompt = False
    listing_ttl = 1.0
    poll_interval = 8.0
    patience = 2.0

    def __init__(self, bucket: Bucket, *, listing_ttl: float | None = None, poll_interval: float | None = None) -> None:
        self._obstore = load_obstore()
        self._errors: tuple[type[BaseException], ...] = (self._obstore.exceptions.BaseError, OSError, ValueError)
        self._bucket = bucket
        self._scheme = bucket.place.scheme
        self._prefix = bucket.prefix
        self._threads = Threads(bucket.concurrency, "brigade-cloud")
        self._listing = Threads(min(bucket.concurrency, LISTINGS_AT_ONCE), "brigade-cloud-list")
        self._counts: Counter[str] = Counter()
        self._ids = Ids()
        self._clock: Clock = SystemClock()
        self._pace = Pace(*(GOOGLE_PACE if self._scheme == "gs" else (0.0, 1)))
        self._generations: dict[str, tuple[str, str]] = {}
        self._deletes_if: bool | None = None
        self._probing: asyncio.Lock | None = None
        self._clock_due = float("inf")
        self._tasks: set[asyncio.Task[None]] = set()
        self.offset = Offset()
        if listing_ttl is not None:
            self.listing_ttl = listing_ttl
        if poll_interval is not None:
            self.poll_interval = poll_interval

    async def open(self, clock: Clock) -> None:
        """See that the bucket is there and may be listed, and measure the offset to its clock."""
        self._clock = clock
        await self._list("q/", "q/~", 1)
        await self._measure()

    def try_now(self, op: Op) -> object:
        return NotImplemented

    async def perform(self, op: Op) -> object:
        if self._clock.monotonic() >= self._clock_due:
            self._measure_soon()
        match op:
            case Get(key):
                return await self._get(key)
            case Create(key, body):
                return await self._write("create", key, body, "create")
            case Swap(key, body, etag):
                return await self._swap(key, body, etag)
            case List(prefix, after, limit):
                return await self._list(prefix, after, limit)
            case Delete(keys):
                return await self._delete(keys)
            case DeleteIf(key, etag):
                return await self._delete_if(key, etag)
            case Copy(source, target):
                return await self._copy(source, target)

    async def put_stream(self, key: str, chunks: AsyncIterator[bytes]) -> int:
        """A small object is one request; a large one is uploaded in parts, which are dropped if the stream breaks."""
        held = bytearray()
        async for chunk in chunks:
            held += chunk
            if len(held) > PART:
                return await self._put_parts(key, bytes(held), chunks)
        for attempt in itertools.count():
            if await self._write("create", key, bytes(held), "create") is not UNKNOWN:
                return len(held)
            await self._again("create", Trouble(Cause.DOUBT), attempt, TRY_AGAIN)
        raise AssertionError("unreachable")

    async def get_stream(self, key: str, *, chunk: int = 1024 * 1024) -> AsyncGenerator[bytes]:
        """One request for the whole; where it breaks, another one for the rest of the same object."""
        position, size, etag, held, attempt = 0, -1, "", bytearray(), 0
        while position != size:
            self._counts["get"] += 1
            options: dict[str, Any] | None = None
            if position:
                options = {"range": {"offset": position}, "if_match": f'"{etag}"'}
            try:
                found = await self._threads.run(self._bucket.once.get, self._path(key), options=options)
                etag, size = _bare(found.meta["e_tag"]), found.meta["size"]
                pieces: Iterator[Any] = iter(found.stream(min_chunk_size=chunk))
                while (piece := await self._threads.run(_next, pieces)) is not None:
                    position, attempt = position + len(piece), 0
                    held += piece
                    while len(held) >= chunk:
                        yield bytes(held[:chunk])
                        del held[:chunk]
                break
            except self._errors as error:
                trouble = diagnose(error)
                if trouble.cause in (Cause.ABSENT, Cause.LOST):
                    raise MessageNotFound(f"payload {key!r} is gone: its message has ended") from None
                await self._again("get", trouble, attempt, TRY_AGAIN)
                attempt += 1
        if held:
            yield bytes(held)

    def watch(self, prefix: str, wake: Callable[[str], None]) -> Callable[[], None] | None:
        return None

    def requests(self) -> dict[str, int]:
        return dict(self._counts)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(self._threads.close(), self._listing.close())

    def _path(self, key: str) -> str:
        return self._prefix + key

    async def _get(self, key: str) -> Blob | None:
        def read() -> Blob:
            found = self._bucket.once.get(self._path(key))
            body, meta = bytes(found.bytes()), found.meta
            return Blob(body, self._tag(key, meta), _ms(meta["last_modified"]))

        try:
            return await self._repeat("get", read)
        except _Absent:
            return None

    async def _swap(self, key: str, body: bytes, etag: str) -> object:
        if not etag or not etag.isascii() or not etag.isprintable() or '"' in etag:
            return CONFLICT
        if self._scheme == "gs":
            return await self._write("swap", key, body, {"version": etag}) if etag.isdigit() else CONFLICT
        return await self._write("swap", key, body, {"e_tag": f'"{etag}"'})

    async def _write(self, kind: str, key: str, body: bytes, mode: object) -> str | Refused:
        """A conditional write. It is repeated only after an answer that says that nothing was applied."""
        await self._pace.turn(key, self._clock)
        for attempt in itertools.count():
            self._counts[kind] += 1
            try:
                made = await self._threads.run(self._bucket.once.put, self._path(key), body, mode=mode)
                return self._tag(key, made)
            except self._errors as error:
                trouble = diagnose(error)
                if trouble.cause is Cause.LOST or (trouble.cause is Cause.ABSENT and kind == "swap"):
                    return CONFLICT
                if trouble.cause is Cause.DOUBT:
                    return UNKNOWN
                if trouble.cause is Cause.ABSENT:
                    trouble = Trouble(Cause.NO_BUCKET, trouble.status, trouble.code, trouble.said)
                if trouble.cause is Cause.AGAIN and attempt >= self._bucket.retries:
                    return UNKNOWN
                await self._again(kind, trouble, attempt, NOT_APPLIED)
        raise AssertionError("unreachable")

    async def _list(self, prefix: str, after: str, limit: int) -> Page:
        """A page. Where exactly a full page of the store's was wanted, `more` may be said though nothing follows."""
        folder, _, partial = prefix.rpartition("/")
        folder = f"{folder}/" if folder else ""
        if partial:
            after = max(after, f"{prefix[:-1]}{chr(ord(prefix[-1]) - 1)}~~~~")
        if after < folder:
            after = ""
        elif after.endswith("/"):
            after += " "
        start = self._path(after) if after else None

        def read() -> list[Any]:
            pages = self._bucket.listing.list(self._path(folder) or None, offset=start, chunk_size=min(limit + 1, PAGE))
            return list(next(pages, ()))

        found = await self._repeat("list", read, self._listing)
        items = [
            Item(key, self._listed_tag(key, meta), meta["size"], _ms(meta["last_modified"]))
            for meta in found
            if (key := meta["path"][len(self._prefix) :]).startswith(prefix)
        ]
        whole = len(items) == len(found)
        return Page(items[:limit], len(items) > limit or (whole and len(found) == limit == PAGE))

    async def _delete(self, keys: tuple[str, ...]) -> None:
        size = DELETES_AT_ONCE[self._scheme]
        groups = [keys[start : start + size] for start in range(0, len(keys), size)]
        await asyncio.gather(*(self._delete_group(group) for group in groups))

    async def _delete_group(self, keys: tuple[str, ...]) -> None:
        """One request. Where it tells of a key that was not there, others may have failed: one by one then."""
        paths = [self._path(key) for key in keys]
        for key in keys:
            self._generations.pop(key, None)
        try:
            await self._repeat("delete", lambda: self._bucket.once.delete(paths))
        except _Absent:
            if len(keys) > 1:
                await asyncio.gather(*(self._delete_group((key,)) for key in keys))

    async def _copy(self, source: str, target: str) -> bool:
        try:
            await self._repeat("copy", lambda: self._bucket.once.copy(self._path(source), self._path(target)))
        except _Absent:
            return False
        return True

    async def _put_parts(self, key: str, head: bytes, rest: AsyncIterator[bytes]) -> int:
        """Upload in parts, as they come. Where the stream breaks the library drops the parts; nothing is visible."""
        loop = asyncio.get_running_loop()
        size = len(head)
        pending: Future[bytes | None] | None = None
        broken: list[BaseException] = []

        async def following() -> bytes | None:
            return await anext(rest, None)

        def chunks() -> Iterator[bytes]:
            nonlocal size, pending
            yield head
            while True:
                try:
                    pending = asyncio.run_coroutine_threadsafe(following(), loop)
                    chunk = pending.result()
                except BaseException as error:
                    broken.append(error)
                    raise
                if chunk is None:
                    return
                size += len(chunk)
                yield chunk

        try:
            await self._threads.run(
                self._bucket.stream.put,
                self._path(key),
                chunks(),
                use_multipart=True,
                chunk_size=PART,
                max_concurrency=PARTS_AT_ONCE,
            )
        except asyncio.CancelledError:
            if pending is not None:
                pending.cancel()
            raise
        except Exception as error:
            if broken:
                raise broken[0] from None
            raise explain(diagnose(error), "create", self._bucket.place) from error
        finally:
            self._counts["create"] += 2 + -(-size // PART)
        return size

    async def _repeat(self, kind: str, call: Callable[[], T], threads: Threads | None = None) -> T:
        """A request that may be repeated, until it is answered. Raises `_Absent` where the object is not there."""
        for attempt in itertools.count():
            self._counts[kind] += 1
            try:
                return await (threads or self._threads).run(call)
            except self._errors as error:
                trouble = diagnose(error)
                if trouble.cause is Cause.ABSENT:
                    raise _Absent from None
                await self._again(kind, trouble, attempt, TRY_AGAIN)
        raise AssertionError("unreachable")

    async def _again(self, kind: str, trouble: Trouble, attempt: int, retried: frozenset[Cause]) -> None:
        """Wait before another try, or raise what ends this one."""
        slow = trouble.cause is Cause.SLOW
        if trouble.cause not in retried or attempt >= self._bucket.retries * (2 if slow else 1):
            raise explain(trouble, kind, self._bucket.place, attempt + 1)
        await pause(self._ids, attempt, slow=slow)

    def _tag(self, key: str, meta: Any) -> str:
        """The etag of the port. Google's conditions are on an object's generation, which its listings don't tell."""
        etag = _bare(meta["e_tag"])
        if self._scheme != "gs":
            return etag
        generation = str(meta["version"])
        if len(self._generations) > 10_000:
            self._generations.clear()
        self._generations[key] = (etag, generation)
        return generation

    def _listed_tag(self, key: str, meta: Any) -> str:
        etag = _bare(meta["e_tag"])
        if self._scheme == "gs":
            known = self._generations.get(key)
            return known[1] if known and known[0] == etag else f"listed {etag}"
        return etag

    async def _delete_if(self, key: str, etag: str) -> object:
        able = await self._can_delete_if()
        if not able:
            return UNKNOWN if able is None else UNSUPPORTED
        for attempt in itertools.count():
            trouble = await self._ask_delete_if(key, etag)
            if trouble is None:
                self._generations.pop(key, None)
                return etag
            if trouble.cause in (Cause.LOST, Cause.ABSENT):
                return CONFLICT
            if trouble.cause is Cause.DOUBT or (trouble.cause is Cause.AGAIN and attempt >= self._bucket.retries):
                return UNKNOWN
            await self._again("delete", trouble, attempt, NOT_APPLIED)
        raise AssertionError("unreachable")

    async def _ask_delete_if(self, key: str, etag: str) -> Trouble | None:
        name, value = ("x-goog-if-generation-match", etag) if self._scheme == "gs" else ("If-Match", f'"{etag}"')
        try:
            sign, bucket = self._obstore.sign, self._bucket.once
            url: str = await self._threads.run(sign, bucket, "DELETE", self._path(key), SIGNED_FOR)
        except self._errors as error:
            return Trouble(Cause.WRONG, 0, "", diagnose(error).said)
        self._counts["deleteif"] += 1
        return trouble_of(await self._ask("DELETE", url, {name: value, "x-ms-version": "2023-11-03"}))

    async def _ask(
        self, method: str, url: str, headers: dict[str, str], timeout: float | None = None
    ) -> Answer | OSError:
        bucket = self._bucket

        def ask() -> Answer | OSError:
            try:
                return request(
                    method,
                    url,
                    headers,
                    timeout=timeout or bucket.timeout,
                    insecure=bucket.insecure,
                    ca_file=bucket.ca_file,
                    proxy=bucket.proxy,
                )
            except OSError as error:
                return error

        return await self._threads.run(ask)

    async def _can_delete_if(self) -> bool | None:
        """Whether this store heeds a condition on a delete: seen once, on an object made for it. None: not yet."""
        if self._probing is None:
            self._probing = asyncio.Lock()
        async with self._probing:
            if self._deletes_if is None:
                self._deletes_if = await self._probe_delete_if()
                if self._deletes_if is False:
                    log.info("%s has no conditional delete: emptied lanes and used ids stay", self._bucket.place)
            return self._deletes_if

    async def _probe_delete_if(self) -> bool | None:
        key = f"probe/{self._ids.nonce()}"
        etag = await self._write("create", key, key.encode(), "create")
        if not isinstance(etag, str):
            return None
        other = str(int(etag) - 1) if self._scheme == "gs" else f"{'0' * 31}1"
        refused = await self._ask_delete_if(key, other)
        if refused is not None and refused.cause is Cause.LOST:
            done = await self._ask_delete_if(key, etag)
            if done is None:
                return True
            refused = done
        with contextlib.suppress(BrigadeError):
            await self._delete((key,))
        return None if refused is not None and refused.cause in TRY_AGAIN else False

    def _measure_soon(self) -> None:
        self._clock_due = self._clock.monotonic() + CLOCK_EVERY * self._ids.uniform(0.8, 1.2)
        task = asyncio.get_running_loop().create_task(self._measure())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _measure(self) -> None:
        """Set the clock's offset. One answer does where the clocks may agree; where not, a few narrow it down."""
        clock = self._clock
        self._clock_due = clock.monotonic() + CLOCK_EVERY * self._ids.uniform(0.8, 1.2)
        if not isinstance(clock, SystemClock):
            return
        for sample in range(CLOCK_SAMPLES):
            if sample:
                await asyncio.sleep(self.offset.wait(clock.now() - clock.offset_ms) / 1000)
            sent = clock.now() - clock.offset_ms
            self._counts["head"] += 1
            answer = await self._ask("HEAD", self._bucket.place.endpoint, {}, CLOCK_TIMEOUT)
            date = None if isinstance(answer, OSError) else date_of(answer)
            if date is None:
                log.warning("%s does not tell its time; this machine's clock is used", self._bucket.place)
                return
            self.offset.add(date, sent, clock.now() - clock.offset_ms)
            clock.offset_ms = self.offset.best
            if self.offset.best == 0:
                return


class _Absent(Exception):
    """The object is not there."""


def _next(pieces: Iterator[Any]) -> Any:
    return next(pieces, None)


def _bare(etag: str | None) -> str:
    return (etag or "").strip('"')


def _ms(moment: Any) -> int:
    return int(moment.timestamp() * 1000)
