"""A real HTTP proxy between a client and an object store: it counts requests by kind, and spoils some of them.

It runs on a thread of its own, so that it serves any number of processes. Writes go to the store one at a time, so
that a listener is told of each in the order in which it was applied, before the client is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import unescape

__all__ = ["CONDITIONAL", "WRITES", "Fault", "Proxy", "Request", "Weather", "seeded"]

_KEYS = re.compile(rb"<Key>([^<]+)</Key>")
CONDITIONAL = frozenset({"create", "swap", "deleteif"})
WRITES = CONDITIONAL | {"put", "copy", "delete"}
_CODES = {409: "ConditionalRequestConflict", 429: "TooManyRequests", 503: "SlowDown"}


@dataclass(slots=True)
class Request:
    """One request as the client sent it; `kind` is what it counts as, `key` the object it is about."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    kind: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        parts = urlsplit(self.target)
        query = parse_qs(parts.query, keep_blank_values=True)
        self.key = unquote(parts.path)
        self.kind = self._kind_of(query)

    def _kind_of(self, query: dict[str, list[str]]) -> str:
        has = self.headers.__contains__
        match self.method:
            case "GET":
                return "list" if "list-type" in query or query.get("comp") == ["list"] else "get"
            case "HEAD":
                return "head"
            case "DELETE":
                return "deleteif" if has("if-match") else "delete"
            case "POST" if "delete" in query or query.get("comp") == ["batch"]:
                return "delete"
            case "PUT" if has("x-amz-copy-source") or has("x-ms-copy-source"):
                return "copy"
            case "PUT" if has("if-none-match"):
                return "create"
            case "PUT" if has("if-match"):
                return "swap"
            case _:
                return "put"

    def deleted(self) -> list[str]:
        """The keys that a bulk delete names."""
        return [unescape(found.decode()) for found in _KEYS.findall(self.body)]


@dataclass(frozen=True, slots=True)
class Fault:
    """What to do to one request.

    `status` is answered instead of the true answer, 0 cuts the connection; `applied` says whether the store sees
    the request all the same: before that answer, or, with `late`, that many seconds after it. `cut` passes the
    true answer on until its middle.
    """

    status: int = 0
    applied: bool = False
    late: float = 0.0
    delay: float = 0.0
    cut: bool = False
    passed: bool = False

    @property
    def name(self) -> str:
        """What it counts as."""
        if self.passed:
            return "slow"
        when = " before it is applied" if self.late else " after" if self.applied else ""
        return f"{self.status or 'cut'}{when}"


Decide = Callable[[Request], Fault | None]
Tell = Callable[[Request], None]
Doubt = Callable[[Request], Awaitable[Request | None]]
"""Finds out what the store applied of a write that it gave no answer to, or an odd one."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How often things go wrong, for each request."""

    refused: float = 0.0
    failed: float = 0.0
    lost_answer: float = 0.0
    late: float = 0.0
    cut: float = 0.0
    slow: float = 0.0


def seeded(seed: int, weather: Weather) -> Decide:
    """Faults drawn from a seed."""
    rng = random.Random(seed)

    def decide(request: Request) -> Fault | None:
        chance = rng.random()
        for share, fault in (
            (weather.refused, Fault(status=rng.choice((409, 429, 503)))),
            (weather.failed, Fault(status=rng.choice((0, 500, 503)))),
            (weather.lost_answer, Fault(status=rng.choice((0, 0, 500)), applied=True)),
            (weather.late, Fault(applied=True, late=rng.uniform(0.05, 1.0))),
            (weather.cut, Fault(cut=True)),
            (weather.slow, Fault(delay=rng.uniform(0, 0.5), passed=True)),
        ):
            if chance < share:
                return fault
            chance -= share
        return None

    return decide


@dataclass(slots=True)
class Proxy:
    """Stands before the store at `upstream` while it is used as a context manager."""

    upstream: str
    decide: Decide | None = None
    tell: Tell | None = None
    doubt: Doubt | None = None
    counts: Counter[str] = field(default_factory=Counter[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    port: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _thread: threading.Thread | None = None
    _server: asyncio.Server | None = None
    _writes: asyncio.Lock = field(default_factory=asyncio.Lock)
    _doubtful: asyncio.Lock = field(default_factory=asyncio.Lock)
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])

    @property
    def endpoint(self) -> str:
        parts = urlsplit(self.upstream)
        return f"http://127.0.0.1:{self.port}{parts.path}"

    @property
    def total(self) -> int:
        return self.counts.total()

    @contextlib.contextmanager
    def counting(self) -> Generator[Counter[str]]:
        """What was asked for while this is open."""
        before, made = Counter(self.counts), Counter[str]()
        yield made
        made.update(self.counts - before)

    def __enter__(self) -> Self:
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join(30)
        self._loop.close()

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        here = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not here]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client connection, and one to the store behind it."""
        upstream = _Upstream(self.upstream)
        task = asyncio.current_task()
        assert task is not None
        # Streams hold on to each other weakly: with the client gone, nothing else would keep this until it is answered.
        self._tasks.add(task)
        try:
            while (request := await _read_request(reader)) is not None:
                self.counts[request.kind] += 1
                if not await self._answer(request, upstream, writer):
                    return
        except (OSError, asyncio.IncompleteReadError):
            return
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            upstream.close()
            writer.close()

    async def _answer(self, request: Request, upstream: _Upstream, writer: asyncio.StreamWriter) -> bool:
        """Deal with one request; False where the connection is over."""
        fault = self.decide(request) if self.decide is not None else None
        if fault is None:
            writer.write(await self._forward(request, upstream))
            await writer.drain()
            return True
        self.faults[f"{request.kind} {fault.name}"] += 1
        await asyncio.sleep(fault.delay)
        if fault.passed or fault.cut:
            answer = await self._forward(request, upstream)
            writer.write(answer[: len(answer) // 2] if fault.cut else answer)
            await writer.drain()
            return not fault.cut
        if fault.applied and not fault.late:
            await self._forward(request, upstream)
        elif fault.applied:
            task = self._loop.create_task(self._later(request, fault.late))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if not fault.status:
            return False
        body = f"<Error><Code>{_CODES.get(fault.status, 'InternalError')}</Code></Error>".encode()
        writer.write(b"HTTP/1.1 %d Spoiled\r\nContent-Length: %d\r\n\r\n" % (fault.status, len(body)) + body)
        await writer.drain()
        return True

    async def _later(self, request: Request, seconds: float) -> None:
        await asyncio.sleep(seconds)
        upstream = _Upstream(self.upstream)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._forward(request, upstream)
        finally:
            upstream.close()

    async def _forward(self, request: Request, upstream: _Upstream) -> bytes:
        if request.kind not in WRITES or self.tell is None:
            async with self._doubtful if self._doubtful.locked() else contextlib.nullcontext():
                pass
            return await upstream.ask(request)
        async with self._writes:
            try:
                answer = await upstream.ask(request)
            except (OSError, asyncio.IncompleteReadError):
                await self._resolve(request)
                raise
            kind = answer.split(b" ", 2)[1][:1]
            if kind == b"2":
                self.tell(request)
            elif kind == b"5":
                await self._resolve(request)
            return answer

    async def _resolve(self, request: Request) -> None:
        """Tell of what was applied before anybody can read it."""
        if self.doubt is None or self.tell is None:
            return
        async with self._doubtful:
            applied = await self.doubt(request)
        if applied is not None:
            self.tell(applied)


class _Upstream:
    """A connection to the store, opened when it is needed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, request: Request) -> bytes:
        if self._reader is None or self._writer is None or self._reader.at_eof():
            self.close()
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=1 << 24)
        head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        self._writer.write(f"{request.method} {request.target} HTTP/1.1\r\n{head}\r\n".encode() + request.body)
        await self._writer.drain()
        start = await self._reader.readuntil(b"\r\n\r\n")
        return start + await _read_body(self._reader, start, request.method)

    def close(self) -> None:
        """At once: a request that was not sent to its end is given up."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, target, headers, body)


async def _read_body(reader: asyncio.StreamReader, head: bytes, method: str) -> bytes:
    """The answer's body as it is on the wire."""
    status = int(head.split(b" ", 2)[1])
    if method == "HEAD" or status in (204, 304) or status < 200:
        return b""
    if found := re.search(rb"(?i)\r\ncontent-length: *(\d+)", head):
        return await reader.readexactly(int(found[1]))
    if not re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        return await reader.read()
    body = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        chunk = await reader.readexactly(int(line.split(b";")[0], 16) + 2)
        body += line + chunk
        if len(chunk) == 2:
            return body
