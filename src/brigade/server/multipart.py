"""Multipart bodies as they come in: a part at a time, a chunk at a time, never a whole payload in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from email.message import Message as Headers

from brigade.server.call import InvalidRequest

__all__ = ["Multipart", "is_multipart"]

MOST_HEADERS = 16 * 1024
MOST_HELD = 64 * 1024
END = b"--"


def is_multipart(content_type: str) -> bool:
    return content_type.partition("/")[0].strip().lower() == "multipart"


class Multipart:
    """The parts of a body, in order. A part must be read to its end before the next one."""

    def __init__(self, content_type: str, chunks: AsyncIterator[bytes]) -> None:
        boundary = _parameter(content_type, "boundary") or ""
        if not 1 <= len(boundary) <= 70 or not boundary.isascii():
            raise _wrong("the Content-Type has no boundary of 1 to 70 characters")
        self._mark = b"\r\n--" + boundary.encode()
        self._chunks = chunks
        self._held = bytearray(b"\r\n")  # so that the first boundary looks like the others
        self._inside = True  # in what comes before the first part

    async def next(self) -> Headers | None:
        """The headers of the next part; None where there is no other. What is left of the part before is skipped."""
        if self._inside:
            async for _ in self._until_mark():
                pass
        self._inside = False
        while len(self._held) < len(END):
            await self._more()
        if self._held.startswith(END):
            return None
        await self._line()
        headers, total = Headers(), 0
        while line := await self._line():
            total += len(line)
            name, colon, value = line.partition(b":")
            if not colon or total > MOST_HEADERS:
                raise _wrong("a part has headers that are none, or too many of them")
            headers[name.decode("latin-1").strip()] = value.decode("latin-1").strip()
        self._inside = True
        return headers

    async def body(self) -> AsyncIterator[bytes]:
        """The chunks of the part whose headers were read last."""
        async for chunk in self._until_mark():
            yield chunk
        self._inside = False

    async def _until_mark(self) -> AsyncIterator[bytes]:
        """What comes before the next boundary, which is taken out."""
        while True:
            found = self._held.find(self._mark)
            if found >= 0:
                before = bytes(self._held[:found])
                del self._held[: found + len(self._mark)]
                if before:
                    yield before
                return
            safe = len(self._held) - len(self._mark) + 1
            if safe >= MOST_HELD:
                before = bytes(self._held[:safe])
                del self._held[:safe]
                yield before
            await self._more()

    async def _line(self) -> bytes:
        while True:
            found = self._held.find(b"\r\n")
            if found >= 0:
                line = bytes(self._held[:found])
                del self._held[: found + 2]
                return line
            if len(self._held) > MOST_HEADERS:
                raise _wrong("a part has a line of headers that is too long")
            await self._more()

    async def _more(self) -> None:
        chunk = await anext(self._chunks, None)
        if chunk is None:
            raise _wrong("the body ends before its last boundary")
        self._held += chunk


def _parameter(header: str, name: str) -> str | None:
    made = Headers()
    made["Content-Type"] = header
    value = made.get_param(name)
    return value if isinstance(value, str) else None


def _wrong(why: str) -> InvalidRequest:
    return InvalidRequest(f"the multipart body is not valid: {why}", "body")
