"""Special messages: those with a due time, ttl, attempt limit or id of their own."""

from __future__ import annotations

from collections.abc import Sequence

from brigade.stores.bucket.wire import Entry, Spec

__all__ = ["is_special", "specs_of"]


def is_special(entry: Entry) -> bool:
    """Whether a claimer has to know more of the message than its segment's name tells."""
    return bool(entry.due or entry.ttl is not None or entry.max_attempts or entry.own_id)


def specs_of(entries: Sequence[Entry | None]) -> list[Spec] | None:
    """What a ledger must know of messages that have limits of their own; None where none has."""
    if not any(e is None or e.due or e.ttl is not None or e.max_attempts for e in entries):
        return None
    return [
        Spec(hole=True) if entry is None else Spec(entry.due, _lapse(entry), entry.max_attempts) for entry in entries
    ]


def _lapse(entry: Entry) -> int | None:
    return None if entry.ttl is None else max(entry.due, entry.enqueued) + entry.ttl
