"""Load: the messages of grants, read from their segments, possibly in another process than the one that claimed.

A message is delivered only from a segment that was read after its ledger was won; where the segment is gone, the
ledger is an orphan and is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from brigade.errors import BrigadeError, QueueNotFound
from brigade.model import Grant
from brigade.stores.bucket.accounts import read_segment
from brigade.stores.bucket.keys import SegmentName
from brigade.stores.bucket.lanes import drop_orphan
from brigade.stores.bucket.steps import Env, Proto, side_by_side
from brigade.stores.bucket.view import QueueView
from brigade.stores.bucket.wire import SEGMENT, Entry

__all__ = ["Loaded", "load", "load_one", "sole_entry"]

WIDTH = 16


class Loaded(msgspec.Struct, frozen=True):
    """A grant with the messages it leases."""

    grant: Grant
    name: SegmentName
    entries: list[Entry]


def load(env: Env, view: QueueView, grants: Sequence[Grant]) -> Proto[list[Loaded]]:
    """Read the segments of won grants. What is gone is left out, and its orphaned ledger deleted.

    A segment that was read before under the same account is still there, because that account was won just now; so
    of several grants in one segment the first one reads it.
    """
    if len(grants) == 1:
        one = yield from _load(env, view, grants[0])
        return [] if one is None else [one]
    first = {grant.segment: place for place, grant in reversed(list(enumerate(grants)))}
    places = sorted(first.values())
    places += [place for place in range(len(grants)) if first[grants[place].segment] != place]
    found: dict[int, Loaded | None] = {}
    for some in (places[: len(first)], places[len(first) :]):
        loaded = yield from side_by_side([_load(env, view, grants[place]) for place in some], WIDTH)
        found.update(zip(some, loaded, strict=True))
    return [item for place in range(len(grants)) if (item := found[place]) is not None]


def _load(env: Env, view: QueueView, grant: Grant) -> Proto[Loaded | None]:
    name = SegmentName.parse(grant.segment)
    if name is None:
        raise QueueNotFound(f"grant names segment {grant.segment!r}, which is not one; was it made by this version?")
    return (yield from load_one(env, view, name, grant))


def sole_entry(body: bytes) -> Entry | None:
    """The message of a segment that has just one; None where that is not what the bytes are, whatever they are."""
    try:
        segment = SEGMENT.decode(body, key="")
    except BrigadeError:
        return None
    return segment.entries[0] if len(segment.entries) == 1 and not segment.void else None


def load_one(env: Env, view: QueueView, name: SegmentName, grant: Grant) -> Proto[Loaded | None]:
    """Read the messages of a grant in that segment; None where it is gone."""
    known = view.entries.get(name)
    if known is not None and known.account == grant.account != "":
        entries = known.entries
    else:
        entries = yield from read_segment(env, view, name)
        if entries is None:
            yield from drop_orphan(env, view, name)
            return None
        view.keep_entries(name, grant.account, entries)
    return Loaded(grant, name, [entry for place in grant.members if (entry := entries[place]) is not None])
