"""Sealed streams: a payload of any size in frames, each authenticated with its number and whether it is the last.

A frame that is missing, moved, repeated or cut off does not open. The stream is bound to a number that its message
carries, so it can be copied inside a store, together with its message, and can't stand in for another.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidTag

from brigade.crypto.vault import TAG, WRAP_NONCE, Vault, is_sealed
from brigade.errors import CannotDecrypt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["FRAME", "StreamOpener", "StreamSealer"]

FRAME = 64 * 1024
STREAM = 2
_NONCE = struct.Struct(">xxxQB")
_BOUND = struct.Struct(">Q")


class StreamSealer:
    """Seals a stream piece by piece: `update` as pieces come, `finish` at the end."""

    def __init__(self, vault: Vault, binding: int) -> None:
        key = vault.data_key(STREAM)
        self._cipher = key.cipher
        self.binding = binding
        self._bound = key.head + _BOUND.pack(binding)
        self._head = key.head
        self._held = bytearray()
        self._count = 0

    def update(self, data: bytes) -> bytes:
        self._held += data
        return b"".join(self._frames())

    def _frames(self) -> Iterator[bytes]:
        """All but the last bytes: whether a frame is the last one is known when more comes."""
        if self._head:
            yield self._head
            self._head = b""
        while len(self._held) > FRAME:
            yield self._seal(bytes(memoryview(self._held)[:FRAME]), last=False)
            del self._held[:FRAME]

    def finish(self) -> bytes:
        return b"".join((*self._frames(), self._seal(bytes(self._held), last=True)))

    def _seal(self, frame: bytes, *, last: bool) -> bytes:
        nonce = _NONCE.pack(self._count, last)
        self._count += 1
        return self._cipher.encrypt(nonce, frame, self._bound)


class StreamOpener:
    """Opens a sealed stream piece by piece. Bytes come out only when their frame is authentic."""

    def __init__(self, vault: Vault, binding: int, what: str) -> None:
        self._vault = vault
        self._binding = binding
        self._what = what
        self._held = bytearray()
        self._cipher: AESGCM | None = None
        self._bound = b""
        self._count = 0

    def update(self, data: bytes) -> bytes:
        self._held += data
        if self._cipher is None and not self._start():
            return b""
        opened: list[bytes] = []
        while len(self._held) > FRAME + TAG:
            opened.append(self._open(bytes(memoryview(self._held)[: FRAME + TAG]), last=False))
            del self._held[: FRAME + TAG]
        return b"".join(opened)

    def finish(self) -> bytes:
        """The last bytes; CannotDecrypt where the stream is not whole."""
        if self._cipher is None:
            raise CannotDecrypt(f"{self._what} is cut short; it is left as it is, restore it from a copy")
        return self._open(bytes(self._held), last=True)

    def _start(self) -> bool:
        held = self._held
        if len(held) >= 4 and (not is_sealed(held) or held[2] != STREAM):
            raise CannotDecrypt(f"{self._what} is not the sealed payload that its message tells of; restore it")
        head = 4 + held[3] + WRAP_NONCE + 48 if len(held) >= 4 else 0
        if not head or len(held) < head:
            return False
        self._cipher = self._vault.cipher_of(bytes(held[:head]), self._what)
        self._bound = bytes(held[:head]) + _BOUND.pack(self._binding)
        del held[:head]
        return True

    def _open(self, frame: bytes, *, last: bool) -> bytes:
        assert self._cipher is not None
        try:
            opened = self._cipher.decrypt(_NONCE.pack(self._count, last), frame, self._bound)
        except InvalidTag:
            raise CannotDecrypt(
                f"{self._what} was altered, cut short or swapped with another, at byte {self._count * FRAME} or after; "
                "discard what was read, and restore it from a copy"
            ) from None
        self._count += 1
        return opened
