"""What a ledger tells of leases that are over, packed away.

Whoever takes or acks messages one at a time swaps a ledger for each of them. Only what is recent is at hand in it; the
rest lies in a few chunks of bytes, which are copied from one swap to the next without being looked at.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Protocol

import msgspec

from brigade.errors import CorruptObject
from brigade.stores.bucket.wire import End, GrantRow

__all__ = ["Log", "log_of", "pack", "shorten"]

LONGEST = 4000
"""Ends that are kept of messages which come back over and over. Those of acks are kept, all of them."""


class Log(msgspec.Struct, array_like=True):
    """Grants, and how their leases ended. A grant of which something is leased still is not in a chunk."""

    grants: list[GrantRow]
    ends: list[End]


class HasLog(Protocol):
    @property
    def grants(self) -> list[GrantRow]: ...
    @property
    def ends(self) -> list[End]: ...
    @property
    def past(self) -> list[bytes]: ...


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Log)


def pack(grants: Sequence[GrantRow], ends: Sequence[End]) -> bytes:
    """A chunk."""
    return zlib.compress(_encoder.encode(Log(list(grants), list(ends))), 1)


def _unpack(chunk: bytes) -> Log:
    try:
        return _decoder.decode(zlib.decompress(chunk))
    except (zlib.error, msgspec.DecodeError) as error:
        reason = f"its account of leases that are over cannot be read ({error})"
        raise CorruptObject("led/…", reason, "delete that ledger, and its messages are handed out again") from None


def log_of(account: HasLog) -> Log:
    """Everything that an account, or a book, tells of leases: of each message in the order of time."""
    if not account.past:
        return Log(account.grants, account.ends)
    grants: list[GrantRow] = []
    ends: list[End] = []
    for log in (*map(_unpack, account.past), account):
        grants += log.grants
        ends += log.ends
    ends.sort(key=lambda end: end.version)
    return Log(grants, ends)


def shorten(past: Sequence[bytes]) -> bytes:
    """All chunks in one, without the oldest ends where there are too many, and without grants that have none."""
    logs = [_unpack(chunk) for chunk in past]
    ends = [end for log in logs for end in log.ends]
    surplus = len(ends) - LONGEST // 2
    kept: list[End] = []
    for end in ends:
        if surplus > 0 and end.how != "acked":
            surplus -= 1
            continue
        kept.append(end)
    logged = {end.version for end in kept}
    return pack([grant for log in logs for grant in log.grants if grant.version in logged], kept)
