"""Sealed values where text or JSON is stored: errors, results, attributes, and the secret part of a line of history.

They carry the place they were sealed for, because a store may move them without opening them: a dead letter's
contents keep the place of the message that failed.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

import msgspec

from brigade.crypto.keys import KeySource
from brigade.crypto.places import is_staged_for, place_of
from brigade.crypto.streams import StreamOpener, StreamSealer
from brigade.crypto.vault import Vault, is_sealed
from brigade.errors import CannotDecrypt
from brigade.ids import secret_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from brigade.crypto.vault import DataKey

__all__ = ["Fields", "fields_from"]

_MARK = "sealed:"
_json = msgspec.json.Encoder()


class Fields:
    """Seals and opens the fields of one store. `moved` says that a value may have come from another message."""

    def __init__(self, vault: Vault) -> None:
        self.vault = vault

    def seal_text(self, text: str, place: str, key: DataKey | None = None) -> str:
        sealed = (key or self.vault.data_key()).seal(text.encode("utf-8", "surrogatepass"), place, carry=True)
        return _MARK + base64.b64encode(sealed).decode()

    def open_text(self, text: str, place: str, *, moved: bool = False) -> str:
        """The text that was sealed; a text that was never sealed as it is."""
        sealed = _decoded(text)
        if sealed is None:
            return text
        return self.open_bytes(sealed, place, moved=moved).decode("utf-8", "surrogatepass")

    def seal_json(self, value: Any, place: str, key: DataKey | None = None) -> str:
        return self.seal_text(_json.encode(value).decode(), place, key)

    def open_json(self, value: Any, place: str, *, moved: bool = False) -> Any:
        """The value that was sealed as a JSON string; any other value as it is."""
        sealed = _decoded(value) if isinstance(value, str) else None
        if sealed is None:
            self.check_clear(place)
            return value
        return msgspec.json.decode(self.open_bytes(sealed, place, moved=moved))

    def open_bytes(self, sealed: bytes, place: str, *, moved: bool = False) -> bytes:
        data, carried = self.vault.open_moved(sealed, place)
        if not moved:
            return data if is_staged_for(carried, place) else self.vault.open(sealed, place)
        if carried.partition("\0")[0] != place.partition("\0")[0]:
            raise CannotDecrypt(f"{place.replace(chr(0), ' ')} holds something else that was sealed: it was swapped")
        return data

    def sealer(self) -> StreamSealer:
        """Seals one payload, bound to a number of its own."""
        return StreamSealer(self.vault, int.from_bytes(secret_bytes(4), "big") & 0x3FFFFFFF | 0x40000000)

    def opener(self, binding: int, what: str) -> StreamOpener:
        return StreamOpener(self.vault, binding, what)

    async def seal_stream(self, chunks: AsyncIterator[bytes], sealer: StreamSealer) -> AsyncIterator[bytes]:
        """A payload as it is stored."""
        async for chunk in chunks:
            if sealed := sealer.update(chunk):
                yield sealed
        yield sealer.finish()

    async def open_stream(self, chunks: AsyncIterator[bytes], binding: int, what: str) -> AsyncIterator[bytes]:
        """A payload as it was sent. CannotDecrypt as soon as something is amiss, at the end where it is cut short."""
        opener = self.opener(binding, what)
        async for chunk in chunks:
            if opened := opener.update(chunk):
                yield opened
        if opened := opener.finish():
            yield opened

    def vouch(self, queue: str, known: Mapping[str, str]) -> dict[str, str] | None:
        """Check our keys against those that a queue was sealed with: `known` has a sealed nothing for each, by id.

        Whoever claims writes accounts that others must be able to read, so nobody starts with keys of their own.
        Returns what the queue should know from now on, or None where it does.
        """
        place = place_of("keys", queue, "")
        held = [name for name in known if self.vault.holds(name)]
        if known and not held:
            raise CannotDecrypt(
                f"queue {queue!r} is sealed under {', '.join(known)}, and {self.vault.source} has none of these keys; "
                "connect with the keys of this store, nothing was changed"
            )
        for name in held:
            self.open_text(known[name], place)
        primary = self.vault.primary
        return None if primary in known else {**known, primary: self.seal_text("", place)}

    def check_clear(self, place: str) -> None:
        """Contents that are not sealed are fine, unless only sealed ones are."""
        if self.vault.strict:
            raise CannotDecrypt(
                f"{place.replace(chr(0), ' ')} is not sealed, and encryption_strict is on: somebody else wrote it, or "
                "it is from before encryption; connect without encryption_strict to read it"
            )


def fields_from(reference: str, *, strict: bool = False) -> Fields:
    """What seals and opens with the keys that an `encryption` option names; they are read when they are first needed.

    For whoever reads what a store has written without that store: `brigade.stores.bucket.history.opened` takes it.
    """
    return Fields(Vault(KeySource(reference), strict=strict))


def _decoded(text: str) -> bytes | None:
    if not text.startswith(_MARK):
        return None
    try:
        sealed = base64.b64decode(text[len(_MARK) :], validate=True)
    except (binascii.Error, ValueError):
        return None
    return sealed if is_sealed(sealed) else None
