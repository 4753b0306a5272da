"""The envelope of every stored object: magic, kind, version and checksum, then msgpack.

A truncated or bit-flipped object fails its checksum and is a `CorruptObject` that names it; an object of a
newer version is told apart from a damaged one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from brigade.errors import BrigadeError, CannotDecrypt, CorruptObject

__all__ = ["SEALED", "Format", "is_sound", "plain"]

T = TypeVar("T")
_MAGIC = b"BG"
SEALED = b"BX"
"""How an object starts that `brigade.crypto` has sealed."""

_HEADER = struct.Struct("<2scBI")
_SEALED = 4
"""The checksum also covers the first bytes of the header: magic, kind and version."""


def _checksum(head: bytes, body: bytes | memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(head))


def is_sound(data: bytes) -> bool:
    """Whether the bytes are a whole object of any kind."""
    if len(data) < _HEADER.size or data[:2] != _MAGIC:
        return False
    return _HEADER.unpack_from(data)[3] == _checksum(data[:_SEALED], memoryview(data)[_HEADER.size :])


class Format(Generic[T]):
    """How one kind of object is written and read."""

    def __init__(
        self, kind: str, shape: type[T], *, version: int = 1, version_of: Callable[[T], int] | None = None
    ) -> None:
        """`version_of` says the oldest version that can tell a value, so that others can be read by older readers."""
        self._kind = kind.encode()
        self._version_of = version_of
        self._version = version
        self._heads = [_MAGIC + self._kind + bytes((number,)) for number in range(version + 1)]
        self._sums = [zlib.crc32(head) for head in self._heads]
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(shape)

    def encode(self, value: T) -> bytes:
        version = self._version if self._version_of is None else self._version_of(value)
        body = self._encoder.encode(value)
        return b"".join((self._heads[version], zlib.crc32(body, self._sums[version]).to_bytes(4, "little"), body))

    def decode(self, data: bytes, *, key: str) -> T:
        if data[:2] == SEALED:
            raise CannotDecrypt(
                f"object {key!r} is sealed, and encryption is off here; connect with encryption= and the keys of this "
                "store, nothing was changed"
            )
        if len(data) < _HEADER.size:
            raise CorruptObject(key, f"it has {len(data)} bytes, fewer than its header needs")
        magic, kind, version, checksum = _HEADER.unpack_from(data)
        body = memoryview(data)[_HEADER.size :]
        if magic != _MAGIC or kind != self._kind:
            raise CorruptObject(key, f"it starts with {bytes(data[:3])!r}, not {(_MAGIC + self._kind)!r}")
        if _checksum(data[:_SEALED], body) != checksum:
            raise CorruptObject(key, "its checksum does not match: it was cut short or altered")
        if version > self._version:
            raise BrigadeError(
                f"object {key!r} has format version {version}, newer than {self._version}; "
                "upgrade bucket-brigade to read it"
            )
        try:
            return self._decoder.decode(body)
        except msgspec.DecodeError as error:
            raise CorruptObject(key, f"its contents do not fit ({error})") from None


def plain(value: Any) -> bytes:
    """JSON for objects that people and other programs read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2)
