"""Sealing and opening values: AES-256-GCM under a data key of its own, which is wrapped by one of the user's keys.

A sealed value is

    magic, version, key id, nonce (24), wrapped data key (48), number (4), place (if carried), ciphertext and tag

The data key is wrapped with XAES-256-GCM, whose long random nonces never run out however many values one key
wraps. What is sealed is bound to its place (object, queue, message): it opens nowhere else. The reader knows the place,
or finds it carried in the value, authenticated, where stores move values without looking into them.
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from typing import TYPE_CHECKING

from brigade.clock import SystemClock
from brigade.codec import SEALED as MAGIC
from brigade.errors import CannotDecrypt, ConfigError
from brigade.ids import secret_bytes

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:
    raise ConfigError(
        "encryption needs cryptography, which is not installed; pip install 'bucket-brigade[crypto]'"
    ) from None

if TYPE_CHECKING:
    from brigade.crypto.keys import Keys, KeySource

__all__ = ["DataKey", "Vault", "is_sealed", "key_id_of"]

log = logging.getLogger("brigade")
VERSION = 1
WRAP_NONCE, DATA_KEY, TAG = 24, 32, 16
REREAD_EVERY, LOOK_EVERY = 10.0, 60.0
MOST_OPENED = 2048
_NUMBERS = struct.Struct(">IH")
_WRAPPED = WRAP_NONCE + DATA_KEY + TAG


def is_sealed(data: bytes | bytearray) -> bool:
    """Whether these bytes claim to be sealed."""
    return bytes(data[:2]) == MAGIC


def key_id_of(data: bytes) -> str | None:
    """The id of the key that a sealed value or stream needs; None where the bytes are neither."""
    if len(data) < 4 or not is_sealed(data):
        return None
    return bytes(data[4 : 4 + data[3]]).decode("ascii", "replace")


class Wrapper:
    """One of the user's keys: wraps data keys with XAES-256-GCM (c2sp.org/XAES-256-GCM)."""

    def __init__(self, key: bytes) -> None:
        self._blocks = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 - a single block, as specified
        zero = int.from_bytes(self._blocks.update(bytes(16)), "big")
        doubled = (zero << 1) & ((1 << 128) - 1)
        mask = doubled ^ 0x87 if zero >> 127 else doubled
        self._mask = mask << 128 | mask

    def _cipher(self, nonce: bytes) -> AESGCM:
        first, second = b"\0\1X\0" + nonce[:12], b"\0\2X\0" + nonce[:12]
        blocks = int.from_bytes(first + second, "big") ^ self._mask
        return AESGCM(self._blocks.update(blocks.to_bytes(32, "big")))

    def seal(self, nonce: bytes, data: bytes, bound: bytes) -> bytes:
        return self._cipher(nonce).encrypt(nonce[12:], data, bound)

    def open(self, nonce: bytes, data: bytes, bound: bytes) -> bytes:
        return self._cipher(nonce).decrypt(nonce[12:], data, bound)


class DataKey:
    """A data key and how it is written in front of what it seals. Each value under it has a number of its own."""

    __slots__ = ("_cipher", "_count", "head")

    def __init__(self, cipher: AESGCM, head: bytes) -> None:
        self._cipher = cipher
        self._count = 0
        self.head = head

    def seal(self, data: bytes, place: str, *, carry: bool = False) -> bytes:
        number = self._count
        self._count += 1
        bound = place.encode()
        head = self.head + _NUMBERS.pack(number, len(bound) if carry else 0)
        sealed = self._cipher.encrypt(number.to_bytes(12, "big"), data, head + bound)
        return b"".join((head, bound, sealed)) if carry else head + sealed

    @property
    def cipher(self) -> AESGCM:
        return self._cipher


class Vault:
    """Seals under the primary key, opens under any. It belongs to one store, and so to one event loop."""

    def __init__(self, source: KeySource, *, strict: bool = False) -> None:
        self._source = source
        self._clock = SystemClock()
        self._wrappers: dict[str, Wrapper] = {}
        self._keys: Keys | None = None
        self._read_at = self._looked_at = 0.0
        self._opened: OrderedDict[bytes, AESGCM] = OrderedDict()
        self.strict = strict

    def __repr__(self) -> str:
        return f"Vault({self._source!r})"

    def unlock(self) -> None:
        """Read the keys. A ConfigError says what is wrong with them."""
        self._take(self._source.read())
        self._read_at = self._looked_at = self._clock.monotonic()

    def _take(self, keys: Keys) -> None:
        before = self._keys
        if before is not None and before == keys:
            return
        self._keys = keys
        self._wrappers = {name: Wrapper(key) for name, key in keys.by_id.items()}

    def _reread(self) -> None:
        """Look for keys that were added meanwhile. What was known stays where the source fails."""
        self._read_at = self._looked_at = self._clock.monotonic()
        try:
            self._take(self._source.read())
        except ConfigError as error:
            log.warning("keys could not be read again (%s); going on with those known", error)

    @property
    def primary(self) -> str:
        if self._keys is None:
            self.unlock()
            assert self._keys is not None
        if self._source.cheap and self._clock.monotonic() - self._looked_at > LOOK_EVERY:
            self._reread()
        return self._keys.primary

    def holds(self, name: str) -> bool:
        """Whether there is a key of this id, after another look where there is none."""
        if name not in self._wrappers:
            self._look_again()
        return name in self._wrappers

    @property
    def source(self) -> str:
        """Where the keys are from, as errors name it."""
        return self._source.name

    def _look_again(self) -> None:
        if self._keys is None:
            self.unlock()
        elif self._clock.monotonic() - self._read_at > REREAD_EVERY:
            self._reread()

    def data_key(self, version: int = VERSION) -> DataKey:
        """A fresh data key, wrapped by the primary."""
        name = self.primary
        start = MAGIC + bytes((version, len(name))) + name.encode()
        fresh = secret_bytes(DATA_KEY + WRAP_NONCE)
        key, nonce = fresh[:DATA_KEY], fresh[DATA_KEY:]
        return DataKey(AESGCM(key), start + nonce + self._wrappers[name].seal(nonce, key, start))

    def seal(self, data: bytes, place: str, *, carry: bool = False) -> bytes:
        """Seal one value under a data key of its own."""
        return self.data_key().seal(data, place, carry=carry)

    def open(self, sealed: bytes, place: str) -> bytes:
        """What was sealed for this place; CannotDecrypt where it was not, or no key fits."""
        data, carried = self._open(sealed, place, place)
        if carried is not None and carried != place:
            raise CannotDecrypt(f"{_shown(place)} holds what was sealed for {_shown(carried)}: it was moved or swapped")
        return data

    def open_moved(self, sealed: bytes, what: str) -> tuple[bytes, str]:
        """What a value that carries its place holds, and that place. `what` names it in errors."""
        data, carried = self._open(sealed, None, what)
        assert carried is not None
        return data, carried

    def _open(self, sealed: bytes, place: str | None, what: str) -> tuple[bytes, str | None]:
        size = len(sealed)
        head = 4 + sealed[3] + _WRAPPED if size > 4 else 0
        start = head + _NUMBERS.size
        if not is_sealed(sealed) or size < start + TAG or sealed[2] != VERSION:
            raise self._refused(what, sealed)
        number, length = _NUMBERS.unpack_from(sealed, head)
        try:
            carried = sealed[start : start + length].decode() if length else None
        except UnicodeDecodeError:
            raise self._refused(what, sealed) from None
        bound = carried if place is None else carried or place
        if bound is None or size < start + length + TAG:
            raise self._refused(what, sealed)
        cipher = self.cipher_of(sealed[:head], what)
        try:
            return cipher.decrypt(
                number.to_bytes(12, "big"), sealed[start + length :], sealed[:start] + bound.encode()
            ), carried
        except InvalidTag:
            raise CannotDecrypt(
                f"{_shown(what)} was altered, or swapped with another: it does not open under its own data key; "
                "it is left as it is, restore it from a copy"
            ) from None

    def _refused(self, what: str, sealed: bytes) -> CannotDecrypt:
        if is_sealed(sealed) and len(sealed) > 2 and sealed[2] > VERSION + 1:
            return CannotDecrypt(f"{_shown(what)} is sealed in a newer format; upgrade bucket-brigade to read it")
        return CannotDecrypt(f"{_shown(what)} is sealed but cut short or altered; it is left as it is, restore it")

    def cipher_of(self, head: bytes, what: str) -> AESGCM:
        """The data key that a header wraps."""
        known = self._opened.get(head)
        if known is not None:
            return known
        length = head[3]
        start, nonce = head[: 4 + length], head[4 + length : 4 + length + WRAP_NONCE]
        wrapped = head[4 + length + WRAP_NONCE :]
        name = start[4:].decode("ascii", "replace")
        wrapper = self._wrappers.get(name)
        if wrapper is None:
            self._look_again()
            wrapper = self._wrappers.get(name)
        if wrapper is None:
            raise CannotDecrypt(
                f"{_shown(what)} is sealed under key {name!r}, which {self._source.name} does not hold; "
                "add that key to it, nothing was changed"
            )
        try:
            cipher = AESGCM(wrapper.open(nonce, wrapped, start))
        except InvalidTag:
            raise CannotDecrypt(
                f"{_shown(what)} is sealed under another key than the one that {self._source.name} calls {name!r}, or "
                "was altered; put the right key there, nothing was changed"
            ) from None
        self._opened[head] = cipher
        if len(self._opened) > MOST_OPENED:
            self._opened.popitem(last=False)
        return cipher


def _shown(place: str) -> str:
    return " ".join(part for part in place.split("\0") if part)
