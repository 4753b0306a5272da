"""HTTP to a server: what can be repeated is repeated, and what can't says that its outcome is unknown."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from brigade._version import __version__
from brigade.clock import SystemClock
from brigade.errors import BrigadeError, StoreUnavailable
from brigade.ids import Ids
from brigade.stores.remote.faults import OutcomeUnknown, Throttled, error_of
from brigade.stores.remote.wire import FRAMES, KEY, RETRY_OF, SERVER, Fault

__all__ = ["Client"]

T = TypeVar("T")
PATIENCE = 10.0
"""Seconds for which a request whose connection failed is tried again: a server may be restarting."""

OK = 200
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
CONNECTING = 5.0
ANSWERING = 60.0
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


class _Tries:
    """How long a request is tried again, and the pauses between, which grow."""

    def __init__(self, ids: Ids, patience: float) -> None:
        self._ids = ids
        self._monotonic = SystemClock().monotonic
        self._end = self._monotonic() + patience
        self._pause = FIRST_PAUSE

    @property
    def over(self) -> bool:
        """Whether the next pause would take too long."""
        return self._monotonic() + self._pause > self._end

    def throttled(self, error: Throttled) -> None:
        """Pause as long as the server asks for, or raise that where it is too long."""
        if self._monotonic() + error.retry_after > self._end:
            raise error
        self._pause = error.retry_after

    async def rest(self) -> None:
        await asyncio.sleep(self._pause * self._ids.uniform(0.5, 1.0))
        self._pause = min(self._pause * 2, LONGEST_PAUSE)


class Client:
    """One server, many requests at a time."""

    def __init__(self, base: str, token: str | None, tls: ssl.SSLContext | None = None) -> None:
        self.base = base
        self.ids = Ids()
        self.counts: Counter[str] = Counter()
        self.server: str | None = None
        headers = {"User-Agent": f"brigade/{__version__}"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._http = httpx.AsyncClient(
            base_url=base,
            headers=headers,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30),
            timeout=httpx.Timeout(ANSWERING, connect=CONNECTING, pool=None),
            verify=tls or True,
            trust_env=urlsplit(base).hostname not in LOOPBACK,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str, kind: type[T], *, patience: float = PATIENCE, **query: str | int) -> T:
        """Read something. It is repeated freely."""
        return await self.ask(path, kind, query, patience=patience)

    async def ask(self, path: str, kind: type[T], query: Mapping[str, str | int], *, patience: float = PATIENCE) -> T:
        """`get`, with the query as one value."""
        return await self._again("GET", path, kind, patience=patience, params=query)

    async def post(
        self,
        path: str,
        body: Any,
        kind: type[T],
        *,
        key: str | None = None,
        once: bool = False,
        answering: float = ANSWERING,
        patience: float = PATIENCE,
    ) -> T:
        """Change something under a key: repeated, it is carried out once.

        With `once` a server that can't know whether it was carried out refuses; without it, doing it twice is harmless,
        or the store can tell.
        """
        content = msgspec.json.encode(body)
        return await self._again(
            "POST",
            path,
            kind,
            key=key or self.ids.nonce(),
            once=once,
            patience=patience,
            answering=answering,
            content=content,
        )

    async def send(self, path: str, chunks: AsyncIterator[bytes], kind: type[T]) -> T:
        """Stream something. It can't be repeated."""
        try:
            response = await self._request("POST", path, {"Content-Type": FRAMES}, ANSWERING, content=chunks)
        except httpx.ConnectError as error:
            raise self._unreachable(error) from error
        except httpx.TransportError as error:
            raise self._unknown(error) from error
        return self._read(response, kind)

    async def send_again(
        self,
        path: str,
        chunks: Callable[[], AsyncIterator[bytes]],
        kind: type[T],
        query: Mapping[str, str | int],
        *,
        key: str | None = None,
        answering: float = ANSWERING,
    ) -> T:
        """Stream something that may be sent twice: `chunks` makes it anew for every try."""
        return await self._again("POST", path, kind, key=key, answering=answering, params=query, chunks=chunks)

    async def stream(self, path: str, body: Any = None, **query: str) -> AsyncIterator[bytes]:
        """The bytes of an answer, as they come. With a body it is a POST, which must be one that may be repeated.

        While nothing has come it is asked for again; what breaks off later is for the caller to read again.
        """
        method, content = ("GET", None) if body is None else ("POST", msgspec.json.encode(body))
        tries, started = _Tries(self.ids, PATIENCE), False
        while True:
            self.counts[f"http_{method.lower()}"] += 1
            try:
                async with self._http.stream(method, path, params=query, content=content) as response:
                    if response.status_code != OK:
                        await response.aread()
                        raise self._error(response)
                    async for chunk in response.aiter_bytes():
                        started = True
                        yield chunk
                return
            except httpx.TransportError as error:
                if started:
                    raise StoreUnavailable(
                        f"the answer of {self.base} broke off ({_why(error)}); read it again"
                    ) from error
                if tries.over:
                    raise self._unreachable(error) from error
            except Throttled as error:
                tries.throttled(error)
            await tries.rest()

    async def _again(
        self,
        method: str,
        path: str,
        kind: type[T],
        *,
        key: str | None = None,
        once: bool = False,
        patience: float = PATIENCE,
        answering: float = ANSWERING,
        chunks: Callable[[], AsyncIterator[bytes]] | None = None,
        **what: Any,
    ) -> T:
        tries = _Tries(self.ids, patience)
        headers = {} if key is None else {KEY: key}
        while True:
            if chunks is not None:
                what["content"] = chunks()
            try:
                return self._read(await self._request(method, path, headers, answering, **what), kind)
            except httpx.TransportError as error:
                if key is not None and not isinstance(error, httpx.ConnectError):
                    headers.setdefault(RETRY_OF, self.server or "unknown")
                if tries.over:
                    unknown = once and RETRY_OF in headers
                    raise (self._unknown(error) if unknown else self._unreachable(error)) from error
            except Throttled as error:
                tries.throttled(error)
            await tries.rest()

    async def _request(
        self, method: str, path: str, headers: Mapping[str, str], answering: float, **what: Any
    ) -> httpx.Response:
        self.counts[f"http_{method.lower()}"] += 1
        timeout = httpx.Timeout(answering, connect=CONNECTING, pool=None)
        return await self._http.request(method, path, headers=headers, timeout=timeout, **what)

    def _read(self, response: httpx.Response, kind: type[T]) -> T:
        self.server = response.headers.get(SERVER, self.server)
        if response.status_code != OK:
            raise self._error(response)
        try:
            return msgspec.json.decode(response.content, type=kind)
        except (msgspec.DecodeError, ValueError) as error:
            raise StoreUnavailable(
                f"{self.base} answered what this version doesn't understand ({error}); is it a newer server?"
            ) from None

    def _error(self, response: httpx.Response) -> BrigadeError:
        try:
            return error_of(msgspec.json.decode(response.content, type=Fault))
        except (msgspec.DecodeError, ValueError):
            return StoreUnavailable(f"{self.base} answered with status {response.status_code}; is it a brigade server?")

    def _unreachable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(f"{self.base} does not answer ({_why(error)}); is `brigade serve` running there?")

    def _unknown(self, error: Exception) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the answer of {self.base} was lost ({_why(error)}), so it may or may not have been carried out; "
            "look before you repeat it, or enqueue with an id of your own, which may be repeated safely"
        )


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
