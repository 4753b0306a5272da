"""Which keys what is stored needs: counted by looking at the start of everything."""

from __future__ import annotations

import base64
import binascii
import contextlib
import zlib
from collections import Counter
from typing import Any

import msgspec

from brigade.blobs import Blob, Blobs, Get, List, Page
from brigade.crypto.blobs import SealedBlobs
from brigade.crypto.vault import key_id_of
from brigade.errors import MessageNotFound

__all__ = ["count_keys"]

_SEALED = b'"sealed":"sealed:'


async def count_keys(blobs: Blobs) -> Counter[str]:
    """How many objects of a bucket are sealed under each key, by id; under "" those that are not sealed."""
    if isinstance(blobs, SealedBlobs):
        blobs = blobs.inner
    found: Counter[str] = Counter()
    after = ""
    while True:
        page = await blobs.perform(List("q/", after))
        assert isinstance(page, Page)
        for item in page.items:
            for name in await _keys_of(blobs, item.key):
                found[name] += 1
        if not page.more or not page.items:
            return found
        after = page.items[-1].key


async def _keys_of(blobs: Blobs, key: str) -> set[str]:
    kind = key.split("/", 3)[2] if key.count("/") > 1 else ""
    if kind == "policy.json" or "/seg/!" in key:
        return set()
    if kind == "blob":
        with contextlib.suppress(MessageNotFound):
            async with contextlib.aclosing(blobs.get_stream(key, chunk=4096)) as chunks:
                async for chunk in chunks:
                    return {key_id_of(chunk) or ""}
        return set()
    blob: Any = await blobs.perform(Get(key))
    if not isinstance(blob, Blob):
        return set()
    if kind != "hist":
        return {key_id_of(blob.body) or ""}
    try:
        lines = zlib.decompress(blob.body, 31).splitlines()
        return {_of_line(line) for line in lines}
    except zlib.error:
        return set()


class _Line(msgspec.Struct):
    sealed: str | None = None


def _of_line(line: bytes) -> str:
    if _SEALED not in line:
        return ""
    with contextlib.suppress(msgspec.DecodeError, binascii.Error, ValueError):
        sealed = msgspec.json.decode(line, type=_Line).sealed or ""
        return key_id_of(base64.b64decode(sealed.removeprefix("sealed:")[:64])) or ""
    return ""
