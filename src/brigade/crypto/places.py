"""What sealed values are bound to. Pure: stores need it where encryption is off, to see that something is sealed."""

from __future__ import annotations

from brigade.errors import CannotDecrypt

__all__ = ["bind", "binding_of", "crc_of", "is_staged_for", "place_of", "sealed_queue", "staged_place"]

_STAGED = "staged-"


def place_of(kind: str, queue: str, ref: str) -> str:
    """The place of a field of a message."""
    return f"{kind}\0{queue}\0{ref}"


def staged_place(kind: str, queue: str, part: int, place: int) -> str:
    """The place of a field of a message that has no number yet: a bulk job has staged it."""
    return place_of(kind, queue, f"{_STAGED}{part}-{place}")


def is_staged_for(carried: str, place: str) -> bool:
    """Whether what was sealed for one place was staged for the queue and the kind of field of the other."""
    field, separator, _ = place.rpartition("\0")
    return bool(separator) and carried.startswith(f"{field}\0{_STAGED}")


def sealed_queue(queue: str) -> CannotDecrypt:
    """What to say to whoever opens a sealed queue with encryption off."""
    return CannotDecrypt(
        f"queue {queue!r} is sealed, and encryption is off here; connect with encryption= and the keys of this store"
    )


def bind(number: int, checksum: int) -> int:
    """A payload's CRC together with the number that its sealed stream is bound to, in the bits above it."""
    return number << 32 | checksum


def binding_of(checksum: int | None) -> int | None:
    """The number that a payload's stream is bound to; None where it is not sealed."""
    return None if checksum is None or checksum >> 32 == 0 else checksum >> 32


def crc_of(checksum: int | None) -> int | None:
    """The CRC of a payload, sealed or not."""
    return None if checksum is None else checksum & 0xFFFFFFFF
