"""A stand-in for Google's object store: the part of its XML API that the store uses, with generations.

No emulator that can be installed from a registry takes conditional writes by that API (`gcp-storage-emulator` ignores
conditions and has no XML API), so this one is written from Google's documentation of it. It shows that the client's
side is right, not that Google's side is.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

__all__ = ["GoogleStandIn", "google_stand_in", "gs_url"]

BUCKET = "brigade"


@dataclass(frozen=True, slots=True)
class _Object:
    body: bytes
    etag: str
    generation: int
    modified: float


class GoogleStandIn:
    """The contents of one bucket. `writes_a_second`, if set, is how often one object name may be written."""

    def __init__(self, writes_a_second: float = 0.0) -> None:
        self.port = 0
        self.writes_a_second = writes_a_second
        self.slowed = 0
        self._lock = threading.Lock()
        self._objects: dict[str, _Object] = {}
        self._generation = 1_700_000_000_000_000
        self._allowance: dict[str, tuple[float, float]] = {}

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """One request, alone."""
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        with self._lock:
            if not bucket:
                return 400, {}, b""
            if bucket != BUCKET:
                return 404, {}, b"<Error><Code>NoSuchBucket</Code></Error>"
            if not key:
                return 200, {}, self._list(query)
            found = self._objects.get(key)
            condition = headers.get("x-goog-if-generation-match")
            if condition is not None and int(condition) != (found.generation if found else 0):
                return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
            if method == "PUT":
                return self._put(key, headers, body)
            if found is None:
                return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
            if method == "DELETE":
                del self._objects[key]
                return 204, {}, b""
            told = self._told(found)
            start = int(headers.get("Range", "bytes=0-")[6:].partition("-")[0])
            if start:
                told["Content-Range"] = f"bytes {start}-{len(found.body) - 1}/{len(found.body)}"
            return 206 if start else 200, told, found.body[start:]

    def _put(self, key: str, headers: Any, body: bytes) -> tuple[int, dict[str, str], bytes]:
        if not self._may_write(key):
            self.slowed += 1
            return 429, {}, b"<Error><Code>SlowDown</Code></Error>"
        source = headers.get("x-goog-copy-source")
        if source is not None:
            copied = self._objects.get(unquote(source).lstrip("/").partition("/")[2])
            if copied is None:
                return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
            body = copied.body
        self._generation += 1
        etag = hashlib.md5(body).hexdigest()
        self._objects[key] = made = _Object(body, etag, self._generation, time.time())
        answer = f"<CopyObjectResult><ETag>{etag}</ETag></CopyObjectResult>".encode() if source else b""
        return 200, self._told(made), answer

    def _may_write(self, key: str) -> bool:
        if not self.writes_a_second:
            return True
        left, at = self._allowance.get(key, (2.0, time.monotonic()))
        left = min(2.0, left + (time.monotonic() - at) * self.writes_a_second)
        self._allowance[key] = (max(left - 1, 0), time.monotonic()) if left >= 1 else (left, time.monotonic())
        return left >= 1

    def _told(self, found: _Object) -> dict[str, str]:
        return {
            "ETag": f'"{found.etag}"',
            "x-goog-generation": str(found.generation),
            "Last-Modified": formatdate(found.modified, usegmt=True),
        }

    def _list(self, query: dict[str, str]) -> bytes:
        prefix, after = query.get("prefix", ""), query.get("start-after", "")
        after = max(after, query.get("continuation-token", ""))
        keys = sorted(key for key in self._objects if key.startswith(prefix) and key > after)
        page = keys[:1000]
        items = "".join(
            f"<Contents><Key>{escape(key)}</Key><ETag>&quot;{found.etag}&quot;</ETag><Size>{len(found.body)}</Size>"
            f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(found.modified))}.000Z</LastModified>"
            "</Contents>"
            for key in page
            if (found := self._objects[key])
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(keys) > len(page) else ""
        return f"<ListBucketResult>{items}{token}</ListBucketResult>".encode()


@contextmanager
def google_stand_in(writes_a_second: float = 0.0) -> Generator[GoogleStandIn]:
    """Serve a bucket while this is open."""
    stand_in = GoogleStandIn(writes_a_second)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, answer = stand_in.answer(self.command, self.path, self.headers, body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stand_in.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, name="google")
    thread.start()
    try:
        yield stand_in
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)


def gs_url(stand_in: GoogleStandIn, prefix: str = "") -> str:
    """A store's URL on it."""
    return f"gs://{BUCKET}/{prefix}?endpoint=http://127.0.0.1:{stand_in.port}&token=stand-in"
