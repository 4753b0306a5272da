"""The durable record of a message that ended, the same for every store."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

__all__ = ["Ended", "Held"]


class Held(NamedTuple):
    """One lease of the message, by the store's clock."""

    version: int
    claimed: int
    ended: int
    how: str


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """A message that ended; `counted` is how many of its leases count as attempts."""

    queue: str
    ref: str
    uid: str
    outcome: str
    counted: int
    max_attempts: int
    group: str | None = None
    held: list[Held] = []
